"""Test that variants of blocks are read back, and that layers are read as before."""

import random
from dataclasses import replace

import pytest

from joulecast.families import FAMILIES, IMAGE_FAMILIES, draw_family, make_family
from joulecast.records import Network, Setup
from joulecast.variants import (
    BLOCK,
    BLOCKS,
    LAYERS,
    curve_key,
    make_variant,
    part_widths,
    plan_curves,
    read_block_variant,
    read_variant,
    resize_part,
    split_blocks,
)

SETUP = Setup()


# Variants are the paper's method, and for its families: a split or shuffle has no widths.
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in IMAGE_FAMILIES])
def test_variants_of_all_parts_are_read_back(name):
    network = make_family(name)
    plan = plan_curves(network, BLOCKS.split)
    keys = {curve_key(found.part, SETUP) for found in plan}
    for found in plan:
        for widths in (found.lows, found.highs):
            part = resize_part(found.part, widths)
            shown, *others = BLOCKS.read_variant(make_variant(part, network))
            assert shown == replace(part, half_input=shown.half_input)
            assert {curve_key(other, SETUP) for other in others} <= keys


@pytest.mark.parametrize("name", ["transformer", "resnet18"])
def test_ranges_contain_the_blocks_of_every_member(name):
    plan = {curve_key(one.part, SETUP): one for one in plan_curves(make_family(name), BLOCKS.split)}
    rng = random.Random(name)
    for _ in range(4):
        for placed in split_blocks(draw_family(name, rng.randint)):
            if placed.part.role == BLOCK:
                found = plan[curve_key(placed.part, SETUP)]
                assert found.lows <= part_widths(placed.part) <= found.highs


def test_networks_without_blocks_have_the_same_curves():
    network = make_family("cnn5")
    assert plan_curves(network, BLOCKS.split) == plan_curves(network, LAYERS.split)


def test_layers_do_not_read_variants_of_blocks():
    network = make_family("transformer")
    block = plan_curves(network, BLOCKS.split)[-1].part
    variant = make_variant(block, network)
    assert read_variant(variant) is None
    assert read_block_variant(variant) is not None
    called_twice = replace(variant.layers[0], calls=2)
    again = replace(variant, layers=(called_twice, *variant.layers[1:]))
    assert read_block_variant(again) is None


def test_whole_networks_are_no_variants():
    assert read_block_variant(Network()) is None
    assert read_block_variant(make_family("transformer:width=8,depth=1")) is None
    assert read_block_variant(make_family("resnet18")) is None
