"""A hidden layer between the network's own input and output layers, as in the paper."""

from __future__ import annotations

import pytest

from joulecast.families import make_family
from joulecast.kinds import input_shape, output_shape
from joulecast.records import Setup
from joulecast.variants import (
    BLOCKS,
    LAYERS,
    adapt_partition,
    curve_key,
    make_paper_variant,
    part_widths,
    plan_curves,
    resize_part,
    split_network,
)

FAMILIES = ("lenet5", "cnn5", "har", "lstm", "transformer", "resnet18")


def check_chain(network):
    """Check that every layer reads what the one before it computes."""
    for before, layer in zip(network.layers, network.layers[1:], strict=False):
        assert output_shape(before) == input_shape(layer)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("base", [LAYERS, BLOCKS])
def test_every_curve_has_a_variant_that_is_read_back(name, base):
    partition, network = adapt_partition(base, True, False), make_family(name)
    plan = plan_curves(network, partition.split, partition.make_variant)
    for found in plan:
        for widths in (found.lows, found.highs):
            part = resize_part(found.part, widths)
            shown, *others = partition.read_variant(partition.make_variant(part, network))
            assert curve_key(shown, Setup()) == curve_key(part, Setup())
            assert part_widths(shown) == widths
            known = {curve_key(one.part, Setup()) for one in plan}
            assert {curve_key(one, Setup()) for one in others} <= known, "what is subtracted"


def test_a_convolution_is_framed_by_the_first_convolution_and_the_classifier():
    network = make_family("cnn5")
    hidden = split_network(network)[1].part
    variant = make_paper_variant(hidden, network)
    check_chain(variant)
    stem, layer, flat, output = variant.layers
    first, last = network.layers[0], network.layers[-1]
    assert (stem.kind, stem.tail, stem.sizes["kernel"]) == (first.kind, first.tail, (3, 3))
    assert stem.sizes["space"] == (96, 96), "the image whose output the layer reads"
    assert flat.kind == "flatten"
    assert output.sizes["cout"] == last.sizes["cout"]
    assert output.sizes["cin"] == 128 * 24 * 24
    assert layer.sizes == network.layers[1].sizes


def test_fewer_curves_are_needed_than_with_stems_of_ours():
    network = make_family("cnn5")
    own = plan_curves(network, LAYERS.split, make_paper_variant)
    assert len(own) == 7 < len(plan_curves(network))
    assert sum(found.part.role == "output" for found in own) == 1


def test_pooling_of_the_output_layer_reads_other_images():
    network = make_family("resnet18")
    block = next(one.part for one in BLOCKS.split(network) if one.part.role == "block")
    variant = make_paper_variant(block, network)
    pool, output = variant.layers[-2:]
    assert pool.kind == "pool" and pool.sizes["shape"] == (64, 24, 24)
    assert output.sizes["cout"] == network.layers[-1].sizes["cout"]


def test_what_does_not_fit_keeps_our_ends():
    """A convolution computes no features of a linear layer."""
    network = make_family("lenet5")
    linear = next(one.part for one in split_network(network) if one.part.layers[0].kind == "linear")
    assert make_paper_variant(linear, network).layers[0].kind == "linear"


def test_partitions_are_equal_if_nothing_is_adapted():
    assert adapt_partition(LAYERS) is LAYERS
    assert adapt_partition(BLOCKS, True, False) is adapt_partition(BLOCKS, True, False)
