"""Leaves of compiled layers: what fuses, and how many bytes it moves."""

import pytest

from joulecast.estimators.additive.layers import set_up_layer, split_layers
from joulecast.estimators.additive.operators import (
    FUSED,
    count_moved_bytes,
    find_compiled_share,
    is_library_operator,
    run_as_library,
    starts_chain,
)
from joulecast.families import make_family
from joulecast.kinds import layer_work, make_layer, make_op
from joulecast.records import Setup
from joulecast.variants import Part

CONV = make_layer("conv2d", cin=8, cout=16, space=(8, 8), kernel=3, padding=1)
RELU = make_layer("elementwise", fn="relu", shape=(16, 8, 8))
NORM = make_layer("batch_norm", shape=(16, 8, 8))
EAGER = Setup(batch=4)
TENSOR_BYTES = 4 * 16 * 8 * 8 * 4


def test_products_and_convolutions_stay_in_libraries():
    assert is_library_operator(CONV)
    assert is_library_operator(make_layer("linear", cin=8, cout=8))
    assert not is_library_operator(RELU)
    assert not is_library_operator(NORM)


def test_images_become_channels_last_and_products_are_padded():
    conv = run_as_library(CONV)
    assert conv.channels_last and conv.channels_last_weights
    head = run_as_library(make_layer("linear", cin=768, cout=50_257))
    assert (head.sizes["cin"], head.sizes["cout"]) == (768, 50_264)
    narrow = make_layer("linear", cin=8, cout=3)
    assert run_as_library(narrow) == narrow


def test_an_operator_inside_a_chain_moves_less_than_at_its_start():
    start, inside = (count_moved_bytes(RELU, before, EAGER) for before in (CONV, NORM))
    assert starts_chain(CONV) and not starts_chain(NORM) and not starts_chain(None)
    assert start == 5 * TENSOR_BYTES
    assert inside == TENSOR_BYTES
    assert count_moved_bytes(NORM, CONV, EAGER) <= 8 * TENSOR_BYTES


@pytest.mark.parametrize("operator", [RELU, NORM], ids=lambda layer: layer.kind)
@pytest.mark.parametrize("setup", [EAGER, Setup(4, phase="inference"), Setup(4, precision="bf16")])
def test_fusing_never_adds_bytes(operator, setup):
    for previous in (None, CONV, NORM):
        moved_bytes = count_moved_bytes(operator, previous, setup)
        assert 0 <= moved_bytes <= layer_work(operator, setup).total.size_bytes


def test_compiled_layers_have_eager_leaves_of_libraries_and_fused_ones():
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
    assert [leaf.operator_class for leaf, _ in compiled.operators] == ["convolution", FUSED, FUSED]
    alone = set_up_layer(Part("hidden", (run_as_library(CONV),)), EAGER)
    assert compiled.operators[0][0].key == alone.key
    assert compiled.launches < eager.launches
    assert compiled.key != eager.key and compiled.structure != eager.structure
    shares = [count for _, count in compiled.own_operators]
    assert shares == [find_compiled_share(leaf.operator_class) for leaf, _ in compiled.operators]


def test_no_piece_of_a_network_costs_more_bytes_when_compiled():
    network = make_family("resnet18")
    eager, compiled = (
        split_layers(network, Setup(batch=8, precision="bf16", compiled=flag))
        for flag in (False, True)
    )

    def count_bytes(pieces):
        return sum(
            leaf.size_bytes * count * one.count
            for one in pieces
            for leaf, count in one.layer.own_operators
        )

    assert count_bytes(compiled) < 0.7 * count_bytes(eager)
