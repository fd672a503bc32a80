"""Test that whole blocks are scaled, and that blocks that cannot be are left as they are."""

import random
from dataclasses import replace

import pytest

from joulecast.families import draw_family, make_family
from joulecast.kinds import make_layer
from joulecast.records import Setup
from joulecast.variants import BLOCK, Part, curve_key, part_widths, resize_part, split_blocks
from joulecast.variants.blocks import find_block_scale, find_least_scale, find_scale_step

SETUP = Setup()


def list_blocks(network):
    return [placed.part for placed in split_blocks(network) if placed.part.role == BLOCK]


@pytest.mark.parametrize(
    ("family", "scale"),
    [("transformer:width=64,depth=1", 16), ("resnet18:width=24", 24), ("resnet50:width=8", 8)],
)
def test_scale_divides_all_channels(family, scale):
    assert part_widths(list_blocks(make_family(family))[0]) == (scale,)


@pytest.mark.parametrize("family", ["transformer", "resnet18", "resnet50"])
def test_blocks_of_a_family_lie_on_the_curves_of_its_original(family):
    keys = {curve_key(part, SETUP) for part in list_blocks(make_family(family))}
    rng = random.Random(family)
    for _ in range(3):
        network = draw_family(family, rng.randint)
        assert {curve_key(part, SETUP) for part in list_blocks(network)} <= keys


@pytest.mark.parametrize("family", ["transformer", "resnet34", "resnet50"])
def test_resized_block_is_the_block_of_a_narrower_network(family):
    (wide, narrow) = (list_blocks(make_family(name))[0] for name in (family, f"{family}:width=32"))
    assert resize_part(wide, part_widths(narrow)) == narrow


def test_block_of_other_ratios_lies_on_another_curve():
    first, second = (make_layer("linear", cin=8, cout=cout, lead=(4,)) for cout in (8, 16))
    back = make_layer("linear", cin=16, cout=8, lead=(4,))
    same, wider = Part(BLOCK, (first, first)), Part(BLOCK, (second, back))
    assert curve_key(same, SETUP) != curve_key(wider, SETUP)
    assert curve_key(same, SETUP) == curve_key(resize_part(same, (3,)), SETUP)


def test_connections_belong_to_the_curve():
    part = list_blocks(make_family("transformer"))[0]
    *layers, last = part.layers
    other = replace(part, layers=(*layers, replace(last, reads=(1, 9))))
    assert curve_key(other, SETUP) != curve_key(part, SETUP)


def test_grouped_convolutions_are_not_scaled():
    conv = make_layer("conv2d", cin=8, cout=8, space=(4, 4), kernel=3, padding=1, groups=8)
    plain = make_layer("conv2d", cin=8, cout=8, space=(4, 4), kernel=1)
    part = Part(BLOCK, (conv, plain))
    assert find_block_scale(part.layers) is None
    assert part_widths(part) == ()
    assert resize_part(part, ()) == part


def test_scales_keep_heads_and_norms_valid():
    attention = make_layer("attention", width=12, heads=3, tokens=5, kv_tokens=5)
    norm = make_layer("layer_norm", shape=(5, 12))
    assert find_scale_step((norm, attention)) == 3
    assert find_least_scale((norm, attention), 12) == 4
    assert find_least_scale(list_blocks(make_family("transformer"))[0].layers, 64) == 1
