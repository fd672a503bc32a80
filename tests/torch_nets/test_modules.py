"""Modules of operators run the kernels that networks run, at any width."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from joulecast.operators import layer_work, make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Network, Setup
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import fit_channels, make_empty_input
from joulecast.torch_nets.losses import mean_square_loss
from joulecast.torch_nets.modules import PackedSdpa
from joulecast.torch_nets.net_reader import read_net
from joulecast.torch_nets.runtime import draw_inputs
from joulecast.variants import (
    Block,
    make_isolated_network,
    make_isolated_trial,
    make_variant,
    split_network,
)
from torch_nets.made_net import MadeNet


def test_attention_takes_its_fourth_input_as_a_bias():
    op = make_op("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=3, kv_tokens=3, causal=0)
    query, key, value = (torch.randn(5, 3, 8, requires_grad=True) for _ in range(3))
    bias = torch.zeros(5, 9, requires_grad=True)
    module = PackedSdpa(op)
    out = module(query, key, value, bias)
    torch.testing.assert_close(out, module(query, key, value))
    out.square().sum().backward()
    assert all(one.grad.abs().sum() > 0 for one in (query, key, value, bias))


def test_inference_reads_cached_keys_instead_of_making_them():
    op = make_op("sdpa", heads=4, kv_heads=2, head_dim=4, tokens=1, kv_tokens=7, causal=0)
    module, x = PackedSdpa(op), torch.randn(3, 1, 32)
    with torch.no_grad():
        out = module(x)
        cached = {name: keys.data_ptr() for name, keys in module.cache.items()}
        torch.testing.assert_close(module(x), out)
    assert out.shape == (3, 1, 16)
    assert cached.keys() == {"key", "value"}
    assert {name: keys.data_ptr() for name, keys in module.cache.items()} == cached
    assert module.cache["key"].shape == (3, 2, 7, 4)


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


def scale(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Use a learned scale, a table that is not learned, and an image that grows."""
    x = net.conv(x) * net.scale
    return F.interpolate(x * net.table * 2.0, scale_factor=2, mode="bilinear")


def list_functions(network: Network) -> list[tuple[str, int, int]]:
    """Return every function with its parameters and the size of its constant operand."""
    ops = [op for layer in network.layers for op in (layer, *layer.tail) if "fn" in op.sizes]
    return [(op.sizes["fn"], op.sizes["params"], op.sizes.get("constant", 0)) for op in ops]


def test_reading_finds_operands_and_modes():
    learned, table = nn.Parameter(torch.ones(8, 1, 1)), torch.ones(4, 4)
    net = MadeNet(scale, conv=nn.Conv2d(3, 8, 1), scale=learned, table=table)
    assert list_functions(read_net(net, torch.randn(BATCH, 3, 4, 4))) == [
        ("mul", 8, 0),
        ("mul", 0, 16),
        ("mul", 0, 0),
        ("interpolate bilinear", 0, 0),
    ]


def cast_around_norm(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.to(torch.float32), x.shape[-1:]).to(x.dtype)


def test_module_that_only_casts_around_one_function_is_that_function():
    net = nn.Sequential(nn.Linear(8, 8), MadeNet(cast_around_norm), nn.Linear(8, 8))
    network = read_net(net, torch.randn(BATCH, 5, 8))
    kinds = [op.kind for layer in network.layers for op in (layer, *layer.tail)]
    assert kinds == ["linear", "layer_norm", "linear"]


def test_constants_of_a_hand_written_module_are_read():
    norm = MadeNet(lambda net, x: x * net.scale + net.scale, scale=torch.ones(8, 1, 1))
    net = nn.Sequential(nn.Conv2d(3, 8, 1), norm, nn.Conv2d(8, 4, 1))
    assert list_functions(read_net(net, torch.randn(BATCH, 3, 4, 4))) == [
        ("mul", 0, 8),
        ("add", 0, 8),
    ]


def compute_own_loss(net: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net.body(x).flatten(0, 1), labels.flatten())


def test_own_loss_reads_no_labels_and_is_measured_without_weights():
    inputs = torch.randn(BATCH, 5, 8), torch.zeros(BATCH, 5, dtype=torch.long)
    net = MadeNet(compute_own_loss, body=nn.Linear(8, 30))
    network = read_net(net, inputs, loss=lambda out: out)
    last = network.layers[-1]
    assert last.sizes["fn"] == "cross_entropy"
    assert last.reads == (1,)
    block = split_network(network)[-1].block
    trial = make_isolated_trial(block, Setup(BATCH))
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


FOUR = Setup(batch=4)
NORM, RELU = make_op("batch_norm"), make_op("elementwise", fn="relu")
CLASSES = make_layer("linear", cin=8, cout=5)
widths = st.integers(1, 120)
counts = st.integers(2, 25)
ways = st.one_of(
    st.tuples(st.just("concat"), st.lists(st.integers(1, 4), max_size=3)),
    st.tuples(st.sampled_from(["concat along 1", "concat along 2"]), st.tuples(widths)),
)


def make_concat(width: int, count: int, space: tuple[int, ...], fn: str = "concat") -> Layer:
    tail = (NORM, RELU) if fn == "concat" else (RELU,)
    layer = make_layer("elementwise", tail, fn=fn, shape=(width, *space))
    return replace(layer, reads=(1,) * count, join="concat")


@settings(deadline=None, max_examples=40)
@given(widths, counts, ways)
def test_concatenation_runs_alone_at_any_width(
    width: int, count: int, way: tuple[str, list[int]]
) -> None:
    fn, space = way
    layer = make_concat(width, count, tuple(space), fn)
    network = make_isolated_network(Block("hidden", (layer,)))
    x = draw_inputs(network, FOUR, torch.Generator().manual_seed(1))
    out = build_net(network)(x)
    assert tuple(out.shape[1:]) == output_shape(layer)
    out.sum().backward()
    # A norm of one value has no gradient.
    assert fn == "concat" or bool(x.grad.any())


@settings(deadline=None, max_examples=10)
@given(widths, counts)
def test_variant_contains_a_concatenation_of_any_width(width: int, count: int) -> None:
    block = Block("hidden", (make_concat(width, count, (3, 3)),))
    network = Network((make_layer("conv2d", cin=3, cout=8, space=(5, 5), kernel=3), CLASSES))
    variant = make_variant(block, network)
    x = torch.randn(FOUR.batch, *variant.input.shape)
    assert tuple(build_net(variant)(x).shape[1:]) == output_shape(variant.layers[-1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 80))
def test_inputs_keep_their_order_and_only_the_last_is_cut(sizes: list[int], wanted: int) -> None:
    inputs = [torch.full((2, size), float(index)) for index, size in enumerate(sizes)]
    fitted = fit_channels(inputs, wanted)
    row = [index for index, size in enumerate(sizes) for _ in range(size)]
    expected = [row[i % len(row)] for i in range(wanted)]
    assert torch.cat(fitted, dim=1)[0].tolist() == expected
    assert [x.shape[1] for x in fitted[:-1]] == [
        sizes[i % len(sizes)] for i in range(len(fitted) - 1)
    ]


@pytest.mark.parametrize("count", [2, 5])
def test_uneven_concatenation_costs_as_much_as_an_even_one(count: int) -> None:
    even = count_bytes(make_concat(40 * count, count, (7, 7))) / (40 * count)
    uneven = count_bytes(make_concat(40 * count + 1, count, (7, 7))) / (40 * count + 1)
    assert uneven == pytest.approx(even, rel=0.02)


def count_bytes(layer: Layer) -> float:
    network = make_isolated_network(Block("hidden", (layer,)))
    with torch.device("meta"):
        net, x = build_net(network), make_empty_input(network, 4).requires_grad_()
    totals = read_net(net, x, mean_square_loss).totals
    return totals.size_bytes
