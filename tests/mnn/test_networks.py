"""Networks in MNN: results and gradients are those of PyTorch, and the rest is refused by name."""

from dataclasses import replace

import pytest

pytest.importorskip("MNN")

import torch

from joulecast.families import make_family
from joulecast.mnn.engine import ENGINE, NN, OPTIM, draw_uniform, make_indices
from joulecast.mnn.networks import FUNCTIONS, MnnNetwork
from joulecast.operators import make_layer, make_op, output_shape
from joulecast.records import Input, Network
from joulecast.system.errors import NetError
from joulecast.torch_nets.build import build_seeded
from kind_examples import POOLS, conv, make_pool

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


def make_join(join):
    joined = replace(make_layer("elementwise", fn=join, inputs=2, **MAP), reads=(1, 2), join=join)
    return Network((conv(4, 4, **THREE), conv(4, 4, **THREE), joined), IMAGE)


def make_convs(cout=5, **sizes):
    first = conv(4, cout, **sizes)
    return Network((first, conv(cout, 2, space=output_shape(first)[1:])), IMAGE)


MAP = {"shape": (4, 6, 8)}
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


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (make_layer("gru", cin=4, hidden=4, tokens=3), "gru"),
        (make_layer("lstm", cin=4, hidden=4, tokens=3, bidirectional=1), "two directions"),
        (conv(4, 8, kernel=3, groups=2), "2 groups"),
        (make_layer("elementwise", fn="elu", shape=(4,)), "'elu'"),
        (conv(4, 4, (make_pool("adaptive_avg", 4, 4),)), "adaptive"),
        (conv(4, 4, (make_pool("avg", 4, 4, ceil=1, **FOUR),)), "beyond the padding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_mnn_cannot_train_is_refused_by_name(layer, named):
    with pytest.raises(NetError, match=f"layer mine: MNN cannot train .*{named}.*(--on cpu)"):
        MnnNetwork(Network((replace(layer, name="mine"),), Input((4,))), 1)


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


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(), "no layers"),
        (Network((CONV,), Input((3, 8, 8)), buildable=False), "cannot be rebuilt"),
        (Network((replace(CONV, channels_last=True),), Input((3, 8, 8))), "memory format"),
    ],
)
def test_network_that_cannot_be_built_is_refused(network, message):
    with pytest.raises(NetError, match=message):
        MnnNetwork(network, 1)
