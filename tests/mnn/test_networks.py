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

IMAGE = Input((4, 6, 8))
FOUR = {"stride": (4, 4), "padding": (0, 0), "shape": (4, 6, 8)}
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


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_activation_trains_as_in_pytorch(fn):
    layer = make_layer("linear", (make_op("elementwise", fn=fn),), cin=5, cout=6)
    compare_with_torch(Network((layer,), Input((5,))))


@pytest.mark.parametrize(
    "sizes",
    [
        {"kernel": (3, 5), "padding": (1, 2)},
        {"kernel": (3, 2), "stride": (1, 2), "padding": (2, 0)},
        {"kernel": (2, 3), "stride": (2, 1), "dilation": (1, 2), "bias": 0},
        {"kernel": (3, 3), "padding": (1, 1), "groups": 4, "cout": 4},
        {"kernel": (1, 1), "stride": (2, 2)},
    ],
    ids=str,
)
def test_convolution_trains_as_in_pytorch(sizes):
    layer = make_layer("conv2d", **{"cin": 4, "cout": 5, "space": (6, 8), **sizes})
    space = output_shape(layer)[1:]
    second = make_layer("conv2d", cin=layer.sizes["cout"], cout=2, space=space, kernel=1)
    compare_with_torch(Network((layer, second), IMAGE))


def test_signals_train_as_in_pytorch():
    pool = make_op("pool", fn="max", kernel=(2,), stride=(2,), padding=(0,))
    tail = (make_op("elementwise", fn="relu"), pool)
    sizes = {"kernel": 5, "padding": 2}
    first = make_layer("conv1d", tail, cin=3, cout=4, space=(12,), **sizes)
    second = make_layer("conv1d", (make_op("flatten"),), cin=4, cout=2, space=(6,), **sizes)
    linear = make_layer("linear", cin=12, cout=3)
    compare_with_torch(Network((first, second, linear), Input((3, 12))))


@pytest.mark.parametrize(
    "op",
    [
        make_op("pool", fn="max", kernel=(2, 2), stride=(2, 2), padding=(0, 0)),
        make_op("pool", fn="avg", kernel=(2, 4), stride=(2, 3), padding=(0, 0)),
        make_op("pool", fn="max", kernel=(3, 3), stride=(1, 1), padding=(1, 1)),
        make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
        make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(0, 0), ceil=1),
        make_op("pool", fn="avg", kernel=(3, 2), stride=(2, 2), padding=(1, 1)),
        make_op("pool", fn="adaptive_avg", kernel=(1, 1)),
        make_op("pool", fn="adaptive_max", kernel=(3, 2)),
        make_op("batch_norm"),
        make_op("elementwise", fn="mean", axes=(1, 2)),
        make_op("permute", order=(2, 0, 1)),
        make_op("view", out=(8, 24)),
        make_op("flatten"),
        make_op("last"),
        make_op("layer_norm", dims=2),
    ],
    ids=lambda op: f"{op.kind} {op.sizes}",
)
def test_operator_of_a_tail_trains_as_in_pytorch(op):
    # A norm would cancel a bias.
    conv = make_layer("conv2d", (op,), cin=4, cout=4, space=(6, 8), kernel=3, padding=1, bias=0)
    compare_with_torch(Network((conv,), IMAGE))


@pytest.mark.parametrize("join", ["add", "mul"])
def test_joined_images_train_as_in_pytorch(join):
    conv = make_layer("conv2d", cin=4, cout=4, space=(6, 8), kernel=3, padding=1)
    joined = make_layer("elementwise", fn=join, inputs=2, shape=(4, 6, 8))
    joined = replace(joined, reads=(1, 2), join=join)
    compare_with_torch(Network((conv, conv, joined), IMAGE))


def test_concatenated_images_train_as_in_pytorch():
    first = make_layer("conv2d", cin=4, cout=3, space=(6, 8), kernel=3, padding=1)
    second = make_layer("conv2d", cin=3, cout=2, space=(6, 8), kernel=1)
    third = make_layer("conv2d", cin=5, cout=2, space=(6, 8), kernel=1)
    third = replace(third, reads=(1, 2), join="concat")
    compare_with_torch(Network((first, second, third), IMAGE))


def test_tokens_train_as_in_pytorch():
    embedding = make_layer("embedding", vocabulary=7, width=6, lead=(4,))
    norm = make_layer("layer_norm", shape=(4, 6))
    linear = make_layer("linear", cin=6, cout=5, lead=(4,), bias=0)
    compare_with_torch(Network((embedding, norm, linear), Input((4,), 7)))


@pytest.mark.parametrize("depth", [1, 2])
def test_lstm_trains_as_in_pytorch(depth):
    compare_with_torch(make_family(f"lstm:5,{depth}"))


def test_whole_sequence_without_bias_trains_as_in_pytorch():
    network = make_family("lstm:6,1")
    lstm = make_layer("lstm", cin=6, hidden=4, tokens=32, bias=0)
    linear = make_layer("linear", cin=4, cout=3, lead=(32,))
    layers = (network.layers[0], lstm, replace(linear, name="fc"))
    compare_with_torch(Network(layers, network.input))


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (make_layer("gru", cin=4, hidden=4, tokens=3), "gru"),
        (make_layer("lstm", cin=4, hidden=4, tokens=3, bidirectional=1), "two directions"),
        (make_layer("conv2d", cin=4, cout=8, space=(6, 8), kernel=3, groups=2), "2 groups"),
        (make_layer("elementwise", fn="elu", shape=(4,)), "'elu'"),
        (make_layer("pool", fn="adaptive_avg", kernel=(4, 4), shape=(4, 6, 8)), "adaptive"),
        (make_layer("pool", fn="avg", kernel=(4, 4), ceil=1, **FOUR), "beyond the padding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_mnn_cannot_train_is_refused_by_name(layer, named):
    with pytest.raises(NetError, match=f"layer mine: MNN cannot train .*{named}.*(--on cpu)"):
        MnnNetwork(Network((replace(layer, name="mine"),), Input((4,))), 1)


CONV = make_layer("conv2d", cin=3, cout=4, space=(8, 8), kernel=3, padding=1)


def test_unused_results_and_inputs_read_late_are_kept():
    layers = (
        CONV,
        replace(make_layer("conv2d", cin=3, cout=2, space=(8, 8), kernel=1), reads=(2,)),
    )
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
