"""Test functions that run as networks call them, and how reading finds them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from joulecast.kinds import layer_work, make_layer
from joulecast.records import Input, Layer, Network, Setup
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.modules import ElementwisePlaceholder
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.variants import make_isolated_trial, split_network

BATCH = 2


class RecordedOperators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def train(layer: Layer, half: bool = False) -> tuple[torch.Tensor, list[str]]:
    """Return the output of a layer, and the operators of its forward and backward pass."""
    shape = layer.sizes["shape"]
    net = build_net(Network((layer,), Input(shape)))
    x = torch.randn(BATCH, *shape, requires_grad=True)
    with RecordedOperators() as recorded:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = net(x.bfloat16() if half else x)
        out.float().sum().backward()
    return out, recorded.names


@pytest.mark.parametrize(
    ("fn", "shape", "out", "operator"),
    [
        ("interpolate bilinear", (3, 4, 4), (3, 8, 8), "upsample_bilinear2d_backward"),
        ("interpolate nearest", (3, 4, 4), (3, 8, 8), "upsample_nearest2d_backward"),
        ("amax", (3, 8), (3,), "amax"),
        ("max", (3, 8), (8,), "max"),
        ("sum", (3, 8), (3, 1), "sum"),
        ("logsumexp", (3, 8), (3,), "logsumexp"),
        ("glu", (3, 8), (3, 4), "glu_backward"),
        ("glu", (6, 5), (3, 5), "glu_backward"),
        ("repeat_interleave", (2, 4), (6, 4), "expand"),
        ("cross_entropy", (5, 7), (1,), "_log_softmax_backward_data"),
        ("roll", (3, 4), (3, 4), "roll"),
        ("exp", (3, 4), (3, 4), "exp"),
    ],
)
def test_functions_run_their_own_operators(fn, shape, out, operator):
    sizes = {} if out == shape else {"out": out}
    result, names = train(make_layer("elementwise", fn=fn, shape=shape, **sizes))
    assert result.shape == (BATCH, *out)
    assert operator in names


def test_shapes_that_a_function_cannot_give_get_a_placeholder():
    layer = make_layer("elementwise", fn="glu", shape=(3, 8), out=(3, 7))
    net = build_net(Network((layer,), Input((3, 8))))
    assert isinstance(net.layer_modules()[0].op, ElementwisePlaceholder)
    assert train(layer)[0].shape == (BATCH, 3, 7)


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div"])
def test_learned_operand_is_trained_and_keeps_full_precision(fn):
    layer = make_layer("elementwise", fn=fn, shape=(6, 8), params=8)
    net = build_net(Network((layer,), Input((6, 8))))
    net(torch.randn(BATCH, 6, 8)).sum().backward()
    assert [tuple(weight.grad.shape) for weight in net.parameters()] == [(8,)]
    assert train(layer, half=True)[0].dtype == torch.float32


def test_constant_is_no_weight_but_keeps_full_precision():
    layer = make_layer("elementwise", fn="mul", shape=(6, 8), constant=48)
    net = build_net(Network((layer,), Input((6, 8))))
    assert not list(net.parameters())
    assert train(layer, half=True)[0].dtype == torch.float32
    assert train(make_layer("elementwise", fn="mul", shape=(6, 8)), half=True)[0].dtype == (
        torch.bfloat16
    )


class Scaled(nn.Module):
    """A learned scale, a table that is not learned, an image that grows, and a norm with casts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.register_buffer("table", torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) * self.scale
        x = x * self.table * 2.0
        return F.interpolate(x, scale_factor=2, mode="bilinear")


def find_functions(network: Network) -> dict[str, dict[str, object]]:
    ops = [op for layer in network.layers for op in (layer, *layer.tail)]
    return {op.sizes["fn"]: dict(op.sizes) for op in ops if "fn" in op.sizes}


def test_reading_finds_operands_and_modes():
    network = read_net(Scaled(), torch.randn(BATCH, 3, 4, 4))
    ops = [op for layer in network.layers for op in (layer, *layer.tail) if "fn" in op.sizes]
    found = [(op.sizes["fn"], op.sizes["params"], op.sizes.get("constant", 0)) for op in ops]
    assert found == [
        ("mul", 8, 0),
        ("mul", 0, 16),
        ("mul", 0, 0),
        ("interpolate bilinear", 0, 0),
    ]


class CastingNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.to(torch.float32), x.shape[-1:]).to(x.dtype)


def test_module_that_only_casts_around_one_function_is_that_function():
    net = nn.Sequential(nn.Linear(8, 8), CastingNorm(), nn.Linear(8, 8))
    network = read_net(net, torch.randn(BATCH, 5, 8))
    kinds = [op.kind for layer in network.layers for op in (layer, *layer.tail)]
    assert kinds == ["linear", "layer_norm", "linear"]


class FrozenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.scale


def test_constants_of_a_hand_written_module_are_read():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), FrozenNorm(), nn.Conv2d(8, 4, 1))
    functions = find_functions(read_net(net, torch.randn(BATCH, 3, 4, 4)))
    assert functions["mul"]["constant"] == functions["add"]["constant"] == 8


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 30)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x).flatten(0, 1), labels.flatten())


def test_own_loss_reads_no_labels_and_is_measured_without_weights():
    inputs = torch.randn(BATCH, 5, 8), torch.zeros(BATCH, 5, dtype=torch.long)
    network = read_net(OwnLoss(), inputs, loss=lambda out: out)
    last = network.layers[-1]
    assert last.sizes["fn"] == "cross_entropy"
    assert last.reads == (1,)
    part = split_network(network)[-1].part
    trial = make_isolated_trial(part, Setup(BATCH))
    assert trial.execution.upstream == "random"


def test_gradient_of_a_learned_scale_is_counted():
    """Multiplied by the input and summed: four passes more than a scale that is not learned."""
    size = BATCH * 6 * 8 * 4
    learned, fixed = (
        layer_work(make_layer("elementwise", fn="mul", shape=(6, 8), **sizes), Setup(BATCH))
        for sizes in ({"params": 8}, {"constant": 8})
    )
    assert learned.backward.size_bytes - fixed.backward.size_bytes == 4 * size
    shifted = layer_work(make_layer("elementwise", fn="add", shape=(6, 8), params=8), Setup(BATCH))
    assert shifted.backward.size_bytes == size
