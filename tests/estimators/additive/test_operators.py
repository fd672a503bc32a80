"""Layers as operators: precision, gradients and memory format pass along the tail."""

import math
from dataclasses import replace

import pytest

from joulecast.estimators.additive.layers import (
    AXES,
    FUSED,
    count_executed_flops,
    count_fork_work,
    count_moved_bytes,
    find_point,
    list_operators,
    run_as_library,
    set_up_layer,
    share_moved_alone,
    split_layers,
    starts_chain,
)
from joulecast.families import make_family
from joulecast.operators import Work, layer_work, make_layer, make_op, output_shape
from joulecast.records import Setup
from joulecast.variants import Part

CONV = make_layer("conv2d", cin=3, cout=8, space=6, kernel=3)
NORM, RELU = make_op("batch_norm"), make_op("elementwise", fn="relu")
ADD = replace(make_layer("elementwise", fn="add", inputs=2, shape=(4, 8)), reads=(1, 1), join="add")


def test_operators_have_the_shapes_of_the_tail():
    layer = replace(CONV, tail=(NORM, RELU, make_op("flatten")))
    operators = [one for one, _ in list_operators(layer, half=False)]
    assert [one.kind for one in operators] == ["conv2d", "batch_norm", "elementwise", "flatten"]
    assert [output_shape(one) for one in operators] == [(8, 4, 4)] * 3 + [(128,)]
    assert not any(one.tail for one in operators)


def test_tail_gets_half_precision_and_a_gradient_from_its_layer():
    layer = replace(CONV, tail=(NORM,), input_grad=False, channels_last_weights=True)
    (conv, conv_half), (norm, norm_half) = list_operators(layer, half=False)
    assert (conv_half, norm_half) == (False, True)
    assert not conv.input_grad and norm.input_grad
    assert norm.channels_last


def test_gradients_are_added_where_branches_fork():
    forward = Work(0.0, 300.0, 1)
    assert count_fork_work(ADD, forward) == Work(0.0, 300.0, 1)
    assert count_fork_work(CONV, forward) == Work()


def test_sum_alone_moves_four_tensors_instead_of_six():
    assert share_moved_alone(ADD, has_gradient=True) == 4 / 6
    assert share_moved_alone(ADD, has_gradient=False) == 2 / 3
    assert share_moved_alone(CONV, has_gradient=True) == 1.0


CONV_FUSED = make_layer("conv2d", cin=8, cout=16, space=(8, 8), kernel=3, padding=1)
RELU_FUSED = make_layer("elementwise", fn="relu", shape=(16, 8, 8))
NORM_FUSED = make_layer("batch_norm", shape=(16, 8, 8))
EAGER = Setup(batch=4)
TENSOR_BYTES = 4 * 16 * 8 * 8 * 4


def test_images_become_channels_last_and_products_are_padded():
    conv = run_as_library(CONV_FUSED)
    assert conv.channels_last and conv.channels_last_weights
    head = run_as_library(make_layer("linear", cin=768, cout=50_257))
    assert (head.sizes["cin"], head.sizes["cout"]) == (768, 50_264)
    narrow = make_layer("linear", cin=8, cout=3)
    assert run_as_library(narrow) == narrow


def test_an_operator_inside_a_chain_moves_less_than_at_its_start():
    start, inside = (
        count_moved_bytes(RELU_FUSED, before, EAGER) for before in (CONV_FUSED, NORM_FUSED)
    )
    assert starts_chain(CONV_FUSED) and not starts_chain(NORM_FUSED) and not starts_chain(None)
    assert start == 5 * TENSOR_BYTES
    assert inside == TENSOR_BYTES
    assert count_moved_bytes(NORM_FUSED, CONV_FUSED, EAGER) <= 8 * TENSOR_BYTES


@pytest.mark.parametrize("operator", [RELU_FUSED, NORM_FUSED], ids=lambda layer: layer.kind)
@pytest.mark.parametrize("setup", [EAGER, Setup(4, phase="inference"), Setup(4, precision="bf16")])
def test_fusing_never_adds_bytes(operator, setup):
    for previous in (None, CONV_FUSED, NORM_FUSED):
        moved_bytes = count_moved_bytes(operator, previous, setup)
        assert 0 <= moved_bytes <= layer_work(operator, setup).total.size_bytes


def test_compiled_layers_have_eager_operators_of_libraries_and_fused_ones():
    layer = make_layer(
        "conv2d",
        (make_op("batch_norm"), make_op("elementwise", fn="relu")),
        cin=8,
        cout=16,
        space=(8, 8),
        kernel=3,
        padding=1,
    )
    eager = set_up_layer(Part("hidden", (layer,)), EAGER)
    compiled = set_up_layer(Part("hidden", (layer,)), Setup(batch=4, compiled=True))
    assert [operator.operator_class for operator, _ in compiled.operators] == [
        "convolution",
        FUSED,
        FUSED,
    ]
    alone = set_up_layer(Part("hidden", (run_as_library(CONV_FUSED),)), EAGER)
    assert compiled.operators[0][0].key == alone.key
    assert compiled.launches < eager.launches
    assert compiled.key != eager.key and compiled.structure != eager.structure
    shares = [count for _, count in compiled.own_operators]
    assert shares == [0.6, 0.79, 0.79]


def test_no_layer_of_a_network_costs_more_bytes_when_compiled():
    network = make_family("resnet18")
    eager, compiled = (
        split_layers(network, Setup(batch=8, precision="bf16", compiled=flag))
        for flag in (False, True)
    )

    def count_bytes(layers):
        return sum(
            operator.size_bytes * count * one.count
            for one in layers
            for operator, count in one.layer.own_operators
        )

    assert count_bytes(compiled) < 0.7 * count_bytes(eager)


SETUP = Setup(batch=4)


def point_of(layer):
    work = layer_work(layer, SETUP).total
    flops = count_executed_flops(layer, work)
    return dict(zip(AXES, find_point(Part("hidden", (layer,)), SETUP, work, flops), strict=True))


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
        (
            make_layer("lstm", cin=16, hidden=32, tokens=7, depth=2),
            {"positions": 4, "window": 14},
        ),
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
