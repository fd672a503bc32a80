"""Layers of networks and their operators: layouts, blocks, calls, tails, passes, fusion."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from joulecast.estimators.additive.layers import (
    AXES,
    FUSED,
    count_executed_flops,
    count_fork_work,
    count_moved_bytes,
    find_point,
    group_alike,
    list_operators,
    run_as_library,
    set_up_layer,
    share_moved_alone,
    split_layers,
    split_passes,
    starts_chain,
)
from joulecast.families import make_family
from joulecast.operators import Work, layer_work, make_layer, make_op, output_shape
from joulecast.records import Input, Network, Setup
from joulecast.variants import Block, curve_key, describe_block, split_network
from kind_examples import join

SETUP, INFERENCE = Setup(4), Setup(4, phase="inference")
NORM, RELU = make_op("batch_norm"), make_op("elementwise", fn="relu")
CONV = make_layer("conv2d", (NORM,), cin=8, cout=16, space=(9, 9), kernel=3, padding=1)


def set_up(layer, setup=SETUP, role="hidden"):
    return set_up_layer(Block(role, (layer,)), setup)


@pytest.mark.parametrize(
    ("layer", "change", "name"),
    [
        (CONV, {"channels_last": True}, "channels last"),
        (CONV, {"channels_last_weights": True}, "channels last"),
        (make_layer("linear", cin=12, cout=16, lead=(8,)), {"transposed": (0,)}, "transposed"),
    ],
)
def test_layout_makes_another_kind_and_curve(layer, change, name):
    default, other = Block("hidden", (layer,)), Block("hidden", (replace(layer, **change),))
    one, two = set_up_layer(default, SETUP), set_up_layer(other, SETUP)
    assert two.kind == f"{one.kind} {name}"
    assert one.key != two.key and one.structure != two.structure
    assert curve_key(default, SETUP) != curve_key(other, SETUP)
    assert name in describe_block(other)


def test_keys_of_default_layouts_are_stable():
    """Profiles that were measured before layouts were distinguished keep their meaning."""
    layer = set_up(CONV, Setup())
    assert (layer.key, layer.structure) == ("2630feb9bb0f23ee", "968ab81f7392bbf9")
    assert curve_key(Block("hidden", (CONV,)), Setup()) == "f4bf6bcc8dc7b264"


def test_blocks_are_sums_of_the_operators_of_their_layers():
    network, setup = make_family("transformer:64,2"), Setup(batch=32)
    blocks = [one.layer for one in split_layers(network, setup) if one.layer.is_block]
    assert len(blocks) == 2
    opened, inside = Counter(), Counter()
    for placed in split_network(network):
        layer = set_up_layer(placed.block, setup)
        if layer.flops and placed.block.role == "hidden":
            for operator, count in layer.own_operators:
                opened[operator.kind] += count
    for block in blocks:
        for operator, count in block.operators:
            assert not operator.operators
            inside[operator.kind] += count
    assert inside["linear"] == opened["linear"]
    assert inside["sdpa"] == opened["sdpa"] == 2


def test_operators_of_a_layer_and_the_loss_are_operators():
    layer = make_layer("linear", (RELU,), cin=8, cout=4)
    kinds = ["linear", "relu", "cross_entropy loss"]
    for setup, expected in ((SETUP, kinds), (INFERENCE, kinds[:2])):
        found = set_up(layer, setup, "output").own_operators
        assert [operator.kind for operator, _ in found] == expected


def test_weights_that_are_called_again_are_updated_once():
    """A linear layer that a step calls eight times updates its weights once."""
    setup = Setup(batch=4, optimizer="adamw")
    wide = make_layer("linear", cin=512, cout=512)
    output = make_layer("linear", cin=512, cout=10)
    network = Network((replace(wide, calls=8), output), Input((512,)))
    first = split_layers(network, setup)[0]
    work = layer_work(wide, setup)
    expected_bytes = 8 * (work.forward + work.backward).size_bytes + work.update.size_bytes
    # Products hardly count beside the update.
    assert first.count * first.layer.size_bytes == pytest.approx(expected_bytes, rel=0.02)


def test_tied_head_loses_its_update_but_not_its_products():
    """The products of a head that shares its weights with an embedding are most of its cost."""
    tokens, width = 5_000, 256
    head = replace(make_layer("linear", cin=width, cout=tokens, lead=(64,), bias=0), tied=True)
    table = make_layer("embedding", vocabulary=tokens, width=width, lead=(64,))
    setup = Setup(batch=32, optimizer="adamw")
    tied = Network((table, head), Input((64,), tokens))
    untied = replace(tied, layers=(table, replace(head, tied=False)))
    counts = [
        [one.count for one in split_layers(network, setup) if one.layer.flops > 1e9]
        for network in (tied, untied)
    ]
    assert counts[1] == [1.0]
    # By bytes alone a fifth would be lost.
    assert len(counts[0]) == 1 and 0.85 < counts[0][0] < 0.95


def test_blocks_written_in_another_order_are_the_same_layer():
    """Operands of a sum may be swapped, and a shortcut may be computed first."""
    linear = make_layer("linear", cin=8, cout=8)
    shortcut = make_layer("linear", cin=8, cout=8, bias=0)
    total = join("add", (2, 1), shape=(8,))
    blocks = [
        (linear, linear, replace(shortcut, reads=(3,)), total),
        (linear, linear, replace(shortcut, reads=(3,)), replace(total, reads=(1, 2))),
        (shortcut, replace(linear, reads=(2,)), linear, replace(total, reads=(3, 1))),
    ]
    layers = {set_up_layer(Block("block", layers), Setup()) for layers in blocks}
    assert len(layers) == len({layer.label for layer in layers}) == 1
    assert len({layer.structure for layer in layers}) == 1


def test_networks_with_the_same_kinds_of_layers_are_one_group():
    lenet, transformer = make_family("lenet5"), make_family("transformer")
    bf16 = replace(SETUP, precision="bf16")
    pairs = (lenet, SETUP), (transformer, SETUP), (lenet, SETUP), (lenet, bf16)
    assert group_alike([split_layers(*pair) for pair in pairs]) == [[0, 2], [1], [3]]


def test_own_cross_entropy_is_the_loss_of_other_networks():
    own = set_up(make_layer("elementwise", fn="cross_entropy", shape=(7, 50), out=(1,)))
    head = set_up(make_layer("linear", cin=8, cout=50, lead=(7,)), role="output")
    loss = head.operators[-1][0]
    assert (own.label, own.point[:3]) == (loss.label, loss.point[:3])


def test_accumulated_batches_update_weights_once():
    one, four = (split_layers(make_family("cnn5:4,8,8,16"), Setup(8, accumulate=n)) for n in (1, 4))
    updating = {placed.layer.key: placed.count for placed in one}
    counts = Counter()
    for placed in four:
        counts[placed.layer.key] += placed.count
    assert sum(counts.values()) == pytest.approx(4 * sum(updating.values()))
    for key, count in updating.items():
        has_weights = counts[key] == count
        assert has_weights or counts[key] == pytest.approx(4 * count)
    moved = [sum(placed.layer.size_bytes * placed.count for placed in some) for some in (one, four)]
    assert 3 * moved[0] < moved[1] < 4 * moved[0]


LARGE = {
    "linear": make_layer("linear", cin=256, cout=512, lead=(64,), bias=0),
    "grouped_linear": make_layer("grouped_linear", cin=256, cout=512, lead=(64,), experts=4),
    "matmul": make_layer("matmul", count=8, m=64, k=32, n=64),
    "conv2d": make_layer("conv2d", cin=32, cout=64, space=32, kernel=3, padding=1),
    "softmax": make_layer("elementwise", fn="softmax", shape=(64, 128)),
    "layer_norm": make_layer("layer_norm", shape=(64, 256)),
    "embedding": make_layer("embedding", vocabulary=1000, width=256, lead=(64,)),
    "lstm": make_layer("lstm", cin=128, hidden=128, tokens=16),
    "attention": make_layer("attention", width=256, heads=4, tokens=64, kv_tokens=64),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_passes_have_the_flops_and_bytes_of_their_operator(name, precision):
    setup = Setup(batch=16, precision=precision)
    for operator, _ in set_up(LARGE[name], setup).operators_alone:
        passes = split_passes(operator)
        moved = sum(n * one.size_bytes for one, n in passes)
        assert moved == pytest.approx(operator.size_bytes, rel=0.02)
        if precision != "tf32":
            flops = sum(n * one.flops for one, n in passes)
            assert flops == pytest.approx(operator.flops, rel=1e-9)
        if name == "linear":
            # Backward of a product is two products.
            assert sum(n for one, n in passes if one.flops) == 3.0
            assert {one.phase for one, _ in passes} == {"inference"}
    for operator, _ in set_up(LARGE[name], replace(setup, phase="inference")).operators_alone:
        assert split_passes(operator) == ((operator, 1.0),)


PLAIN = make_layer("conv2d", cin=3, cout=8, space=6, kernel=3)
ADD = join("add", (1, 1), shape=(4, 8))


def test_operators_of_a_tail_have_its_shapes_and_half_precision_and_a_gradient():
    layer = replace(PLAIN, tail=(NORM, RELU, make_op("flatten")), input_grad=False)
    layer = replace(layer, channels_last_weights=True)
    operators, halves = zip(*list_operators(layer, half=False), strict=True)
    conv, norm, *_ = operators
    assert [one.kind for one in operators] == ["conv2d", "batch_norm", "elementwise", "flatten"]
    assert [output_shape(one) for one in operators] == [(8, 4, 4)] * 3 + [(128,)]
    assert not any(one.tail for one in operators)
    assert halves[:2] == (False, True)
    assert not conv.input_grad and norm.input_grad and norm.channels_last


CONV_LAYER = make_layer("conv2d", cin=8, cout=16, space=(8, 8), kernel=3, padding=1)
RELU_LAYER = make_layer("elementwise", fn="relu", shape=(16, 8, 8))
NORM_LAYER = make_layer("batch_norm", shape=(16, 8, 8))
TENSOR_BYTES = 4 * 16 * 8 * 8 * 4


def test_images_become_channels_last_and_products_are_padded():
    conv = run_as_library(CONV_LAYER)
    assert conv.channels_last and conv.channels_last_weights
    head = run_as_library(make_layer("linear", cin=768, cout=50_257))
    assert (head.sizes["cin"], head.sizes["cout"]) == (768, 50_264)
    narrow = make_layer("linear", cin=8, cout=3)
    assert run_as_library(narrow) == narrow


def test_an_operator_inside_a_chain_moves_less_than_at_its_start():
    start, inside = (
        count_moved_bytes(RELU_LAYER, before, SETUP) for before in (CONV_LAYER, NORM_LAYER)
    )
    assert starts_chain(CONV_LAYER) and not starts_chain(NORM_LAYER) and not starts_chain(None)
    assert start == 5 * TENSOR_BYTES
    assert inside == TENSOR_BYTES
    assert count_moved_bytes(NORM_LAYER, CONV_LAYER, SETUP) <= 8 * TENSOR_BYTES


@pytest.mark.parametrize("operator", [RELU_LAYER, NORM_LAYER], ids=lambda layer: layer.kind)
@pytest.mark.parametrize("setup", [SETUP, INFERENCE, Setup(4, precision="bf16")])
def test_fusing_never_adds_bytes(operator, setup):
    for previous in (None, CONV_LAYER, NORM_LAYER):
        moved_bytes = count_moved_bytes(operator, previous, setup)
        assert 0 <= moved_bytes <= layer_work(operator, setup).total.size_bytes


def test_compiled_layers_have_eager_operators_of_libraries_and_fused_ones():
    layer = replace(CONV_LAYER, tail=(NORM, RELU))
    eager, compiled = set_up(layer), set_up(layer, replace(SETUP, compiled=True))
    classes = [operator.operator_class for operator, _ in compiled.operators]
    assert classes == ["convolution", FUSED, FUSED]
    assert compiled.operators[0][0].key == set_up(run_as_library(CONV_LAYER)).key
    assert compiled.launches < eager.launches
    assert compiled.key != eager.key and compiled.structure != eager.structure
    assert [count for _, count in compiled.own_operators] == [0.6, 0.79, 0.79]


def test_compiled_networks_move_fewer_bytes():
    eager, compiled = (
        sum(
            operator.size_bytes * count * one.count
            for one in split_layers(
                make_family("resnet18"), Setup(8, precision="bf16", compiled=flag)
            )
            for operator, count in one.layer.own_operators
        )
        for flag in (False, True)
    )
    assert compiled < 0.7 * eager


def point_of(layer):
    work = layer_work(layer, SETUP).total
    flops = count_executed_flops(layer, work)
    return dict(zip(AXES, find_point(Block("hidden", (layer,)), SETUP, work, flops), strict=True))


def sdpa(**sizes):
    own = {"heads": 2, "kv_heads": 2, "head_dim": 64, "tokens": 10, "kv_tokens": 20, **sizes}
    return make_layer("sdpa", **own)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            make_layer("linear", cin=32, cout=16, lead=(10,)),
            {"positions": 40, "input channels": 32, "output channels": 16, "window": 1},
        ),
        (make_layer("conv2d", cin=8, cout=8, space=6, kernel=3), {"window": 9, "extent": 36}),
        # Heads of attention are rows of products of their own.
        (sdpa(), {"positions": 4 * 2 * 10, "input channels": 64, "output channels": 20}),
        # Steps of a recurrent layer are a window.
        (make_layer("lstm", cin=16, hidden=32, tokens=7, depth=2), {"positions": 4, "window": 14}),
    ],
    ids=["linear", "conv2d", "sdpa", "lstm"],
)
def test_points_are_logarithms_of_sizes(layer, expected):
    point = point_of(layer)
    for name, value in expected.items():
        assert point[name] == pytest.approx(math.log(value)), name


@pytest.mark.parametrize(("head_dim", "causal", "factor"), [(64, 0, 1), (64, 1, 0.5), (8, 0, 2)])
def test_executed_flops_fill_tiles_and_skip_what_is_masked(head_dim, causal, factor):
    layer = sdpa(head_dim=head_dim, causal=causal)
    work = layer_work(layer, SETUP).total
    assert count_executed_flops(layer, work) == pytest.approx(factor * work.flops)


def conv(groups):
    return make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, groups=groups)


def mul(**sizes):
    return make_layer("elementwise", fn="mul", shape=(7, 8), **sizes)


@pytest.mark.parametrize(
    ("layer", "kind", "operator_class"),
    [
        (conv(1), "conv2d", "convolution"),
        (conv(8), "conv2d depthwise", "grouped convolution"),
        (conv(2), "conv2d grouped", "grouped convolution"),
        # Operands that no layer computes.
        (mul(), "mul", "elementwise"),
        (mul(params=8), "mul parameter", "elementwise"),
        (mul(constant=56), "mul constant", "elementwise"),
    ],
)
def test_kinds_that_run_other_kernels_have_names_of_their_own(layer, kind, operator_class):
    found = set_up(layer)
    assert (found.kind, found.operator_class) == (kind, operator_class)


def test_layer_without_work_is_not_a_layer():
    view = make_layer("view", shape=(4, 4), out=(16,))
    network = Network((make_layer("linear", cin=4, cout=4, lead=(4,)), view), Input((4, 4)))
    layers = split_layers(network, Setup(batch=2, phase="inference"))
    assert [one.layer.label for one in layers] == ["linear fp32 inference"]


def test_sums_add_gradients_of_branches_and_move_less_alone():
    """A sum alone reads one tensor twice: four instead of six."""
    forward = Work(0.0, 300.0, 1)
    assert count_fork_work(ADD, forward) == forward and count_fork_work(PLAIN, forward) == Work()
    assert [share_moved_alone(ADD, flag) for flag in (True, False)] == [4 / 6, 2 / 3]
    assert share_moved_alone(PLAIN, has_gradient=True) == 1.0
