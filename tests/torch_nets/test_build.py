"""read(build(n)) == n for every kind and family, and formulas agree with counted operators."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from joulecast.families import FAMILIES, make_family
from joulecast.operators import KINDS, find_kind, make_layer, make_op, network_work, output_shape
from joulecast.records import Input, Layer, Network, Setup, fold_blocks
from joulecast.torch_nets.build import JOINS, build_net
from joulecast.torch_nets.losses import cross_entropy_loss, mean_square_loss
from joulecast.torch_nets.net_reader import read_net
from joulecast.variants.blocks import single_input_shape
from kind_examples import join
from small_families import make_small
from torch_nets.made_net import moved_bytes, step_flops

BATCH = 3
RELU = make_op("elementwise", fn="relu")


def make_chain(*layers: Layer, shape: tuple[int, ...], vocabulary: int = 0) -> Network:
    """Return a chain of layers; the first reads the input, which needs no gradient."""
    first = replace(layers[0], input_grad=False)
    return Network((first, *layers[1:]), Input(shape, vocabulary))


def draw_inputs(network: Network, batch: int = BATCH) -> torch.Tensor:
    shape = (batch, *network.input.shape)
    if network.input.vocabulary:
        return torch.randint(0, network.input.vocabulary, shape)
    return torch.randn(shape)


def read_back(network: Network) -> Network:
    return read_net(build_net(network), draw_inputs(network), mean_square_loss)


@cache
def read_back_named(name: str) -> tuple[Network, Network]:
    """Return a case or a small network of a family, and what reading it back gives."""
    network = CASES[name] if name in CASES else make_small(name)
    return network, read_back(network)


def pool(dims: int, fn: str = "max") -> object:
    return make_op("pool", fn=fn, kernel=(2,) * dims, stride=(2,) * dims, padding=(0,) * dims)


def conv(kind: str, space: tuple[int, ...], **sizes: object) -> Layer:
    return make_layer(kind, (RELU,), cin=4, cout=6, space=space, kernel=3, **sizes)


TOKENS = make_layer("embedding", vocabulary=11, width=8, lead=(5,))
TO_TOKENS = make_layer("linear", cin=6, cout=8, lead=(5,))
IMAGE = make_layer("conv2d", cin=3, cout=8, space=(6, 6), kernel=3, padding=1)

CASES: dict[str, Network] = {
    "conv1d": make_chain(conv("conv1d", (9,), stride=2, padding=1), shape=(4, 9)),
    "conv2d": make_chain(conv("conv2d", (9, 7), dilation=2), shape=(4, 9, 7)),
    "conv3d": make_chain(conv("conv3d", (5, 6, 7)), shape=(4, 5, 6, 7)),
    "conv2d grouped": make_chain(conv("conv2d", (6, 6), groups=2, bias=0), shape=(4, 6, 6)),
    "conv2d depthwise": make_chain(
        make_layer("conv2d", cin=4, cout=4, groups=4, space=(6, 6), kernel=3), shape=(4, 6, 6)
    ),
    "conv2d asymmetric": make_chain(
        make_layer("conv2d", cin=2, cout=4, space=(6, 8), kernel=(1, 5), padding=(0, 2)),
        shape=(2, 6, 8),
    ),
    "conv_transpose1d": make_chain(conv("conv_transpose1d", (5,), stride=2), shape=(4, 5)),
    "conv_transpose2d": make_chain(
        conv("conv_transpose2d", (5, 4), stride=2, output_padding=1, groups=2), shape=(4, 5, 4)
    ),
    "conv_transpose3d": make_chain(conv("conv_transpose3d", (3, 3, 3)), shape=(4, 3, 3, 3)),
    "linear": make_chain(
        make_layer("linear", (RELU, make_op("dropout", p=0.25)), cin=5, cout=7), shape=(5,)
    ),
    "linear on tokens": make_chain(
        make_layer(
            "linear", (make_op("elementwise", fn="gelu"),), cin=5, cout=7, lead=(4,), bias=0
        ),
        shape=(4, 5),
    ),
    **{
        f"linear, {fn}": make_chain(
            make_layer("linear", (make_op("elementwise", fn=fn, passes=passes),), cin=5, cout=7),
            make_layer("linear", cin=7, cout=3),
            shape=(5,),
        )
        for fn, passes in {"newgeluactivation": 8, "quickgeluactivation": 3}.items()
    },
    "embedding": make_chain(TOKENS, shape=(5,), vocabulary=11),
    "embedding_bag": make_chain(
        make_layer("embedding_bag", vocabulary=11, width=8, lead=(5,)), shape=(5,), vocabulary=11
    ),
    "deep lstm": make_chain(
        make_layer("lstm", (make_op("last"),), cin=6, hidden=7, tokens=5, depth=2),
        make_layer("linear", cin=7, cout=3),
        shape=(5, 6),
    ),
    "bidirectional lstm": make_chain(
        make_layer("lstm", cin=6, hidden=7, tokens=5, bidirectional=1, bias=0), shape=(5, 6)
    ),
    "gru": make_chain(TO_TOKENS, make_layer("gru", cin=8, hidden=7, tokens=5), shape=(5, 6)),
    "rnn": make_chain(TO_TOKENS, make_layer("rnn", cin=8, hidden=7, tokens=5), shape=(5, 6)),
    "attention": make_chain(
        TO_TOKENS, make_layer("attention", width=8, heads=2, tokens=5, kv_tokens=5), shape=(5, 6)
    ),
    "sdpa": make_chain(
        make_layer("linear", cin=6, cout=24, lead=(5,)),
        make_layer("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=5, kv_tokens=5),
        shape=(5, 6),
    ),
    "cross sdpa": make_chain(
        make_layer("linear", cin=6, cout=24, lead=(5,)),
        make_layer("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=5, kv_tokens=7),
        shape=(5, 6),
    ),
    "sdpa with grouped queries": make_chain(
        make_layer("linear", cin=6, cout=16, lead=(5,)),
        make_layer("sdpa", heads=2, kv_heads=1, head_dim=4, tokens=5, kv_tokens=5, causal=1),
        shape=(5, 6),
    ),
    "matmul": make_chain(
        make_layer("linear", cin=5, cout=4, lead=(6,)),
        replace(
            make_layer("linear", (make_op("permute", order=(1, 0)),), cin=5, cout=4, lead=(6,)),
            reads=(2,),
            input_grad=False,
        ),
        replace(make_layer("matmul", m=6, k=4, n=6), reads=(2, 1)),
        shape=(6, 5),
    ),
    "batch_norm": make_chain(make_layer("batch_norm", shape=(4, 5, 5)), shape=(4, 5, 5)),
    "batch_norm in a tail": make_chain(
        make_layer("conv1d", (make_op("batch_norm"), RELU), cin=2, cout=3, space=(8,), kernel=3),
        shape=(2, 8),
    ),
    "layer_norm": make_chain(make_layer("layer_norm", shape=(4, 6)), shape=(4, 6)),
    "group_norm": make_chain(make_layer("group_norm", groups=2, shape=(4, 5, 5)), shape=(4, 5, 5)),
    "rms_norm": make_chain(make_layer("rms_norm", shape=(4, 6)), shape=(4, 6)),
    "decomposed rms_norm": make_chain(
        make_layer("rms_norm", spelled=1, shape=(4, 6)), shape=(4, 6)
    ),
    "sum of two layers": make_chain(
        IMAGE,
        make_layer("conv2d", cin=8, cout=8, space=(6, 6), kernel=3, padding=1),
        join("add", (1, 2), (RELU,)),
        shape=(3, 6, 6),
    ),
    "sum of a layer with itself": make_chain(IMAGE, join("add", (1, 1)), shape=(3, 6, 6)),
    "concat": make_chain(
        IMAGE,
        replace(IMAGE, reads=(2,), input_grad=False),
        join("concat", (1, 2), shape=(16, 6, 6)),
        shape=(3, 6, 6),
    ),
    "pool": make_chain(
        make_layer("conv2d", (pool(2, "avg"),), cin=3, cout=4, space=(8, 8), kernel=1),
        make_layer("linear", cin=4, cout=4, lead=(4, 4)),
        shape=(3, 8, 8),
    ),
    "pool alone": make_chain(
        IMAGE,
        replace(
            make_layer(
                "pool", (make_op("flatten"),), fn="adaptive_avg", kernel=(1, 1), shape=(8, 6, 6)
            ),
            name="pool",
        ),
        shape=(3, 6, 6),
    ),
    "view": make_chain(
        make_layer("linear", (make_op("view", out=(2, 3)),), cin=5, cout=6),
        make_layer("linear", cin=3, cout=2, lead=(2,)),
        shape=(5,),
    ),
    "mean of tokens": make_chain(
        make_layer(
            "linear", (make_op("elementwise", fn="mean", axes=(0,)),), cin=4, cout=6, lead=(5,)
        ),
        shape=(5, 4),
    ),
}
# Layers of networks that cannot be rebuilt: they are only measured alone.
PLACEHOLDERS = [
    make_layer("grouped_linear", cin=8, cout=6, lead=(9,), experts=4),
    make_layer("grouped_linear", cin=8, cout=16, lead=(9,), experts=4),
    make_layer("grouped_linear", cin=8, cout=16, lead=(9,), experts=4, half=1),
    make_layer("embedding_bag", vocabulary=11, width=8, lead=(6,), bags=2),
    make_layer("index", fn="index", axes=(0, 1), shape=(5, 6), out=(10,)),
    make_layer("index", fn="index of rows", axes=(0,), across=1, shape=(5, 8), out=(10, 8)),
    make_layer(
        "index", fn="index of a table", axes=(0,), across=1, params=40, shape=(20,), out=(7, 8)
    ),
    make_layer("index", fn="gather", shape=(5, 8), out=(5, 3)),
    make_layer("scatter", fn="index_add", shape=(5, 8), source=(7, 8)),
    make_layer("scatter", fn="scatter_add", copies=1, shape=(5, 8), source=(5, 3)),
    make_layer("sort", fn="sort", shape=(5, 8), out=(5, 8)),
    make_layer("sort", fn="topk", shape=(5, 8), out=(5, 2)),
    make_layer("slice", shape=(16, 8), out=(8,)),
    make_layer("gradient_copy", shape=(3, 4, 8), out=(4, 8)),
    make_layer("gradient_copy", shape=(5, 8), out=(3, 8)),
    make_layer("gradient_copy", shape=(4, 8), out=(8, 4)),
    make_layer("gradient_copy", shape=(2, 8), out=(2, 3, 8)),
    make_layer("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=5, kv_tokens=5, windows=3),
]
# Pooling after a convolution joins its tail: it would need a second reader to be a layer. Reading
# loses the views of a channel shuffle, and a split is built as a placeholder.
CHANGED = {"pool alone", "shufflenetv2"}
NAMES = sorted({*CASES, *FAMILIES} - {"pool alone"})


@pytest.mark.parametrize("name", sorted(set(NAMES) - CHANGED))
def test_built_network_reads_back_the_same(name: str) -> None:
    network, again = read_back_named(name)
    assert again == network
    assert again.buildable


def test_every_kind_has_a_case() -> None:
    used = {op.kind for n in CASES.values() for layer in n.layers for op in (layer, *layer.tail)}
    assert used | {layer.kind for layer in PLACEHOLDERS} == set(KINDS)


@pytest.mark.parametrize("layer", PLACEHOLDERS, ids=lambda layer: layer.sizes.get("fn", layer.kind))
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_placeholders_give_the_expected_shape_and_train(layer: Layer, device: str) -> None:
    """They move as many elements as the module that was read, but not the same ones."""
    vocabulary = layer.sizes.get("vocabulary", 0)
    network = Network((layer,), Input(single_input_shape(layer), vocabulary))
    if device == "meta" and layer.kind == "grouped_linear":
        pytest.skip("on meta tensors PyTorch multiplies groups only in bfloat16")
    with torch.device(device):
        net = build_net(network)
        x = draw_inputs(network).to(device)
        if not vocabulary:
            x.requires_grad_(True)
        out = net(x)
        assert tuple(out.shape) == (BATCH, *output_shape(layer))
        out.square().sum().backward()
    assert all(weight.grad is not None for weight in net.parameters())


def test_operator_joins_the_tail_of_the_layer_before() -> None:
    again = read_back(CASES["pool alone"])
    assert [op.kind for op in again.layers[0].tail] == ["pool", "flatten"]
    assert len(again.layers) == 1


@pytest.mark.parametrize("name", NAMES)
def test_formulas_agree_with_the_independent_count(name: str) -> None:
    network, again = read_back_named(name)
    counted = again.totals
    # The first token of a recurrent layer has no earlier state to send a gradient to.
    close = 0.06 if name in ("gru", "rnn") else 1e-9
    assert step_flops(network, BATCH) == pytest.approx(counted.flops, rel=close)
    assert network_work(network, Setup(batch=BATCH)).params == counted.params
    assert counted.unattributed_flops_share == 0.0
    # Backward of a stack of recurrent layers copies between them.
    assert counted.unattributed_bytes_share < (0.02 if name == "deep lstm" else 0.01)
    assert counted.unattributed_params_share == 0.0


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"lstm"}))
def test_bytes_are_close_to_the_independent_count(name: str) -> None:
    network, again = read_back_named(name)
    if name == "alexnet":  # pads and biases outweigh the products of the small one
        network = make_family(name)
        again = read_back(network)
    counted = again.totals
    moved = moved_bytes(network, BATCH)
    # Gradients of concatenations count as copies; in SqueezeNet, every third layer is one.
    assert moved == pytest.approx(counted.size_bytes, rel=0.2 if name == "squeezenet" else 0.15)


def test_channel_shuffle_is_one_copy() -> None:
    network = make_family("shufflenetv2:8,8,8,8,8", (3, 32, 32))
    concat = next(layer for layer in network.layers if layer.name == "stage2.0.concat")
    alone = Network((replace(concat, reads=(1, 1)),), Input(single_input_shape(concat)))
    net = build_net(alone)
    x = torch.arange(2 * 4 * 16, dtype=torch.float32).reshape(2, 4, 4, 4)
    both = torch.cat([x, x], dim=1)
    expected = both.view(2, 2, 4, 4, 4).transpose(1, 2).reshape(2, 8, 4, 4)
    assert torch.equal(net(x), expected)
    (layer,) = read_net(net, x.requires_grad_(), mean_square_loss).layers
    assert [op.sizes["fn"] for op in layer.tail if not find_kind(op.kind).is_view] == ["copy"]


def test_blocks_and_layers_cost_the_same() -> None:
    _, network = read_back_named("resnet18")
    blocks = fold_blocks(network)
    setup = Setup(batch=BATCH)
    assert len(network.groups) == 4
    assert network_work(blocks, setup) == network_work(network, setup)
    folded = [layer for layer in blocks.layers if layer.parts]
    assert len(folded) == 4
    # Blocks of one structure share a kind, whatever their widths.
    assert len({layer.kind for layer in folded}) == 2


def test_cross_entropy_accepts_logits_of_any_shape() -> None:
    for shape in ((4, 3), (4, 5, 3)):
        assert cross_entropy_loss(torch.zeros(shape)).item() == pytest.approx(1.0986, abs=1e-3)


@pytest.mark.parametrize("fn", ["add", "mul"])
def test_joins_take_any_number_of_inputs(fn):
    inputs = [torch.full((2, 3), 2.0) for _ in range(4)]
    assert JOINS[fn](*inputs).eq(8.0 if fn == "add" else 16.0).all()
