"""Networks and steps in MNN: results and gradients are those of PyTorch, the rest is refused."""

from dataclasses import replace

import pytest

pytest.importorskip("MNN")

import torch

from joulecast.families import make_family
from joulecast.mnn.networks import (
    ENGINE,
    FUNCTIONS,
    NN,
    OPTIM,
    MnnNetwork,
    draw_uniform,
    make_indices,
    make_scalar,
)
from joulecast.mnn.runtime import MnnStep
from joulecast.operators import make_layer, make_op, output_shape
from joulecast.records import INT8_PRECISIONS, Execution, Input, Network, Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, NetError, NotTrainingError
from joulecast.testing.runtimes import SMALL, RuntimeContract
from joulecast.torch_nets.build import build_seeded
from kind_examples import POOLS, conv, join, make_pool

IMAGE = Input((4, 6, 8))
EMBEDDED = make_family("lstm:6,1")
FOUR = {"stride": (4, 4), "padding": (0, 0)}
BATCH = 3


def compare_with_torch(network: Network) -> None:
    """Train one step of the squared error in both frameworks from the same weights."""
    net, module = MnnNetwork(network, 5), build_seeded(network, 5)
    if network.input.vocabulary:
        count = BATCH * network.input.shape[0]
        tokens = [number % network.input.vocabulary for number in range(count)]
        x = make_indices(tokens, [BATCH, *network.input.shape])
        inputs = torch.tensor(tokens).reshape(BATCH, -1)
    else:
        x = draw_uniform([BATCH, *network.input.shape], 1.0, 6)
        inputs = torch.tensor(x.read())
    before = {name: torch.tensor(weight.read()) for name, weight in net.weights.trained.items()}
    weights = [weight for name, weight in module.named_parameters() if "bias_hh" not in name]
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "bias_hh" in name:
                weight.zero_()
        for weight, drawn in zip(weights, before.values(), strict=True):
            weight.copy_(drawn.reshape(weight.shape))
    net.check_shapes(x)
    out, expected = net.run(x), module(inputs)
    torch.testing.assert_close(torch.tensor(out.read()), expected.detach(), rtol=1e-3, atol=1e-3)

    targets = draw_uniform([1, expected.numel()], 1.0, 7)
    loss = NN.loss.mse(ENGINE.reshape(net.run(x), [1, expected.numel()]), targets)
    assert OPTIM.SGD(net.weights.module, 1.0, 0.0).step(loss)
    (expected.reshape(1, -1) - torch.tensor(targets.read())).square().sum().backward()
    for (name, old), weight in zip(before.items(), weights, strict=True):
        gradient = old - torch.tensor(net.weights.trained[name].read())
        scale = float(weight.grad.abs().max()) or 1.0
        torch.testing.assert_close(
            gradient.reshape(weight.shape) / scale, weight.grad / scale, rtol=0, atol=2e-3, msg=name
        )


def make_join(fn):
    layers = (conv(4, 4, **THREE), conv(4, 4, **THREE), join(fn, (1, 2), shape=(4, 6, 8)))
    return Network(layers, IMAGE)


def make_convs(cout=5, **sizes):
    first = conv(4, cout, **sizes)
    return Network((first, conv(cout, 2, space=output_shape(first)[1:])), IMAGE)


THREE = {"kernel": 3, "padding": 1}
RELU = make_op("elementwise", fn="relu")
HALF = make_pool("max", 2, stride=(2,), padding=(0,))
FIVE = {"kernel": 5, "padding": 2}
LSTM = make_layer("lstm", cin=6, hidden=4, tokens=32, bias=0)
TAILS = (
    *POOLS,
    make_op("batch_norm"),
    make_op("elementwise", fn="mean", axes=(1, 2)),
    make_op("permute", order=(2, 0, 1)),
    make_op("view", out=(8, 24)),
    make_op("flatten"),
    make_op("last"),
    make_op("layer_norm", dims=2),
)
NETWORKS = {
    **{fn: Network(
        (make_layer("linear", (make_op("elementwise", fn=fn),), cin=5, cout=6),), Input((5,))
    ) for fn in FUNCTIONS},
    **{f"convolution {sizes}": make_convs(**sizes) for sizes in (
        {"kernel": (3, 5), "padding": (1, 2)},
        {"kernel": (3, 2), "stride": (1, 2), "padding": (2, 0)},
        {"kernel": (2, 3), "stride": (2, 1), "dilation": (1, 2), "bias": 0},
        {"kernel": (3, 3), "padding": (1, 1), "groups": 4, "cout": 4},
        {"kernel": (1, 1), "stride": (2, 2)},
    )},
    # A norm would cancel a bias.
    **{f"{op.kind} {op.sizes}": Network((conv(4, 4, (op,), bias=0, **THREE),), IMAGE)
       for op in TAILS},
    "signals": Network((
        make_layer("conv1d", (RELU, HALF), cin=3, cout=4, space=(12,), **FIVE),
        make_layer("conv1d", (make_op("flatten"),), cin=4, cout=2, space=(6,), **FIVE),
        make_layer("linear", cin=12, cout=3),
    ), Input((3, 12))),
    "sum": make_join("add"),
    "product": make_join("mul"),
    "concatenation": Network(
        (conv(4, 3, **THREE), conv(3, 2), conv(5, 2, reads=(1, 2), join="concat")), IMAGE
    ),
    "tokens": Network((
        make_layer("embedding", vocabulary=7, width=6, lead=(4,)),
        make_layer("layer_norm", shape=(4, 6)),
        make_layer("linear", cin=6, cout=5, lead=(4,), bias=0),
    ), Input((4,), 7)),
    "lstm": make_family("lstm:5,1"),
    "lstm of two layers": make_family("lstm:5,2"),
    "whole sequence without bias": Network(
        (EMBEDDED.layers[0], LSTM, make_layer("linear", cin=4, cout=3, lead=(32,))), EMBEDDED.input
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_network_trains_as_in_pytorch(name):
    compare_with_torch(NETWORKS[name])


CONV = conv(3, 4, space=(8, 8), **THREE)


def test_unused_results_and_inputs_read_late_are_kept():
    layers = (CONV, conv(3, 2, space=(8, 8), reads=(2,)))
    net = MnnNetwork(Network(layers, Input((3, 8, 8))), 1)
    assert net.run(draw_uniform([2, 3, 8, 8], 1.0, 1)).shape == [2, 2, 8, 8]


def test_shape_that_differs_from_the_record_is_refused():
    # Training such a graph ends the process.
    net = MnnNetwork(Network((CONV,), Input((3, 8, 8))), 1)
    with pytest.raises(NetError, match=r"layer 0 gives None in MNN instead of \[4, 8, 8\]"):
        net.check_shapes(draw_uniform([2, 3, 9, 9], 1.0, 1))


UNTRAINABLE = {
    "gru": make_layer("gru", cin=4, hidden=4, tokens=3),
    "two directions": make_layer("lstm", cin=4, hidden=4, tokens=3, bidirectional=1),
    "2 groups": conv(4, 8, kernel=3, groups=2),
    "'elu'": make_layer("elementwise", fn="elu", shape=(4,)),
    "adaptive": conv(4, 4, (make_pool("adaptive_avg", 4, 4),)),
    "beyond the padding": conv(4, 4, (make_pool("avg", 4, 4, ceil=1, **FOUR),)),
    "memory format": replace(CONV, channels_last=True),
}


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(), "no layers"),
        (Network((CONV,), Input((3, 8, 8)), buildable=False), "cannot be rebuilt"),
        *(
            (Network((replace(layer, name="mine"),)), f"layer mine: MNN cannot train .*{what}")
            for what, layer in UNTRAINABLE.items()
        ),
    ],
)
def test_network_that_cannot_be_trained_is_refused_by_name(network, message):
    with pytest.raises(NetError, match=message):
        MnnNetwork(network, 1)


LINEAR = make_layer("linear", cin=6, cout=4)


class TestMnnRuntime(RuntimeContract):
    stages = ("step", "forward")
    refuses_when_closed = True

    def make_runtime(self):
        return open_runtime("mnn:cpu")

    def make_huge_trial(self):
        return Trial(make_family("cnn5:4096,4096,4096,4096"), Setup(batch=100_000))


@pytest.mark.parametrize("name", ["cnn5:3,4,5,6", "har:3,4,5,6", "lstm:6,2", "resnet18:4,1,1,1,1"])
def test_families_train(name):
    step = open_runtime("mnn").prepare(Trial(make_family(name), Setup(batch=2, threads=1)))
    step.run(1)
    step.close()


FROZEN = replace(LINEAR, trains=False, input_grad=False)
TWO = Setup(batch=2)


def alone(layer, setup=TWO, execution=None):
    """Return a trial of a layer that reads six numbers."""
    return Trial(Network((layer,), Input((6,))), setup, execution or Execution())


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        *(
            (alone(LINEAR, replace(TWO, **setup)), InputError, message)
            for setup, message in (
                ({"precision": "bf16"}, "fp32 only"),
                ({"loss": "own"}, "needs PyTorch"),
                ({"processor": "NPU"}, "MNN has no processor 'NPU'"),
                ({"compiled": True}, "MNN .*: leave compiled out"),
                ({"accumulate": 2}, "MNN .*: leave accumulate out"),
                ({"phase": "inference", "cuda_graphs": True}, "MNN .*: leave cuda_graphs out"),
                *(
                    ({"phase": "inference", "precision": one}, f"not run {one} .* on='onnx:cpu'")
                    for one in INT8_PRECISIONS
                ),
            )
        ),
        (alone(replace(LINEAR, recomputed=True)), InputError, "MNN .*: leave checkpoint out"),
        (alone(LINEAR, TWO, Execution(mode="graph")), InputError, "use eager"),
        (Trial(make_family("transformer:16,1"), TWO), NetError, r"block0\.sdpa: MNN cannot train"),
        (alone(FROZEN), NotTrainingError, "nothing to train"),
    ],
)
def test_what_mnn_lacks_is_refused(trial, error, message):
    with pytest.raises(error, match=message):
        open_runtime("mnn").prepare(trial)


def test_frozen_layer_keeps_its_weights():
    layers = (FROZEN, make_layer("linear", cin=4, cout=3))
    step = open_runtime("mnn").prepare(Trial(Network(layers, Input((6,))), Setup(batch=2)))
    assert [*step._weights] == ["0.1.linear.weight", "0.1.linear.bias"]


def test_gradient_of_the_input_is_computed_where_the_layer_needs_it():
    for layer, more in ((LINEAR, {"0.input.offset"}), (replace(LINEAR, input_grad=False), set())):
        step = open_runtime("mnn").prepare(alone(layer, TWO, Execution(upstream="random")))
        assert {*step._weights} == {"0.0.linear.weight", "0.0.linear.bias", *more}


def test_equal_trials_start_from_equal_weights():
    trial = alone(LINEAR, TWO, Execution(copies=2))
    first, again = (open_runtime("mnn").prepare(trial)._weights for _ in range(2))
    assert all((first[name].read() == again[name].read()).all() for name in first)
    copies = [first[f"{copy}.0.linear.weight"].read() for copy in (0, 1)]
    assert (copies[0] != copies[1]).any()
    # As PyTorch draws the weights of a layer with six inputs.
    assert 0.5 < abs(copies[0]).max() * 6**0.5 <= 1.0


def _lose_infinitely(replica):
    own = replica.loss
    replica.loss = lambda out: own(out) + make_scalar(float("inf"))


def _cut_gradient(replica):
    # A cast has no gradient in MNN, and says nothing.
    run = replica.net.run
    replica.net.run = lambda x: ENGINE.cast(run(x), ENGINE.float)


def _add_unused_weight(replica):
    replica.net.weights.begin_layer("unused", True)
    replica.net.weights.draw("weight", [2, 2], 2)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_cut_gradient, "no gradient"),
        (_add_unused_weight, r"weight unused\.weight did not change"),
        (_lose_infinitely, "loss is inf"),
    ],
)
def test_a_step_that_does_not_train_is_rejected(spoil, reason):
    (replica,) = open_runtime("mnn").prepare(SMALL)._replicas
    spoil(replica)
    with pytest.raises(NotTrainingError, match=reason):
        MnnStep([replica], SMALL)


def copy_weights(step):
    return {name: weight.read().copy() for name, weight in step._weights.items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_measured_steps_hardly_change_weights(optimizer):
    setup = Setup(batch=4, threads=1, optimizer=optimizer)
    step = open_runtime("mnn").prepare(Trial(SMALL.network, setup))
    before = copy_weights(step)
    step.run(5)
    changes = [abs(after - before[name]).max() for name, after in copy_weights(step).items()]
    # SGD's momentum still carries the two steps of the check.
    assert 0.0 < max(changes) < (0.1 if optimizer == "sgd" else 1e-5)


def test_adamw_shrinks_weights_before_its_update():
    step = open_runtime("mnn").prepare(Trial(SMALL.network, Setup(batch=4, optimizer="adamw")))
    step._optimizer.learning_rate, before = 1.0, copy_weights(step)
    step._decay_weights()
    for name, after in copy_weights(step).items():
        assert after == pytest.approx(before[name] * (1.0 - 0.01), rel=1e-6)
    # A whole step: half of the weight is left, and the update hardly shows.
    step._optimizer.learning_rate, step._decay, before = 1e-6, 5e5, copy_weights(step)
    assert step._step()
    for name, after in copy_weights(step).items():
        assert after == pytest.approx(before[name] * 0.5, abs=1e-4)
