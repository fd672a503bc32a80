"""Variants: every layer of every family can be shown, and what is shown can be read back."""

import random
from dataclasses import replace

import pytest

from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.kinds import input_shape, make_layer, make_op, output_shape
from joulecast.records import Input, Network, Setup, fold_blocks
from joulecast.variants import (
    ROLES,
    Part,
    curve_key,
    describe_part,
    make_variant,
    part_widths,
    plan_curves,
    read_variant,
    resize_part,
    split_network,
    width_names,
)

SETUP = Setup()
IMAGE = Input((3, 16, 16))


def spots(found):
    """Widths of a range: both ends and something between them."""
    middle = tuple(
        max(low, high // 2 // step * step)
        for low, high, step in zip(found.lows, found.highs, found.steps, strict=True)
    )
    return {found.lows, middle, found.highs}


def check_chain(network):
    """Every layer must get the shape that it takes."""
    shapes = [network.input.shape]
    for layer in network.layers:
        given = [shapes[-back] for back in layer.reads]
        if layer.join == "concat":
            channels = sum(shape[0] for shape in given)
            given = [(channels, *given[0][1:])]
        assert all(shape == input_shape(layer) for shape in given), (network.name, layer)
        shapes.append(output_shape(layer))
    assert len(shapes[-1]) >= 1


def wrap(*layers, data=IMAGE):
    """A net around some layers: a stem before them and a pooled output behind."""
    shape = output_shape(layers[-1])
    pool = make_layer("pool", (make_op("flatten"),), fn="adaptive_avg", kernel=(1, 1), shape=shape)
    stem = make_layer("conv2d", cin=3, cout=8, space=(16, 16), kernel=3, padding=1)
    head = make_layer("linear", cin=shape[0], cout=10)
    return Network((replace(stem, input_grad=False), *layers, pool, head), data)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_variant_of_every_family_chains_and_reads_back(name):
    network = make_family(name)
    for found in plan_curves(network):
        for widths in spots(found):
            part = resize_part(found.part, widths)
            assert part_widths(part) == widths
            assert curve_key(part, SETUP) == curve_key(found.part, SETUP)
            variant = make_variant(part, network)
            check_chain(variant)
            subject, *others = read_variant(variant)
            # How a part is fed under autocast is the net's business, not the curve's.
            assert subject == replace(part, half_input=subject.half_input)
            assert [other.role for other in others] == {
                "output": [],
                "input": ["output"],
                "hidden": ["input", "output"],
            }[part.role]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_plan_holds_every_member_and_everything_to_subtract(name):
    rng = random.Random(name)
    network = make_family(name)
    plan = {curve_key(found.part, SETUP): found for found in plan_curves(network)}
    members = [draw_family(name, rng.randint) for _ in range(4)]
    parts = [place.part for member in [network, *members] for place in split_network(member)]
    for found in plan.values():
        parts += read_variant(make_variant(found.part, network))
    for part in parts:
        found = plan[curve_key(part, SETUP)]
        ends = zip(found.lows, part_widths(part), found.highs, strict=True)
        # A norm needs a few features; a member with less is below every curve.
        assert all(width <= high and (low <= width or low == 4) for low, width, high in ends)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_plan_comes_in_the_order_of_subtraction(name):
    roles = [ROLES.index(found.part.role) for found in plan_curves(make_family(name))]
    assert roles == sorted(roles)


def test_cnn5_needs_these_curves():
    plan = {describe_part(found.part): found for found in plan_curves(make_family("cnn5"))}
    assert plan["output linear"].steps == (36,)
    assert plan["output linear"].highs == (512 * 36,)
    assert plan["input conv2d 96x96 kernel 3x3, relu, max pool"].highs == (64,)
    assert plan["hidden conv2d 24x24 kernel 3x3, relu, max pool"].highs == (128, 256)
    assert len(plan) == 11


@pytest.mark.parametrize("name", list(FAMILIES))
def test_curves_are_told_apart_by_their_words(name):
    words = [describe_part(found.part) for found in plan_curves(make_family(name))]
    assert len(set(words)) == len(words)
    assert max(map(len, words)) < 72


def test_words_say_what_does_not_train():
    (first, *_, last) = split_network(make_family("lenet5"))
    for part in (first.part, last.part):
        frozen = replace(part, layers=(replace(part.layers[0], trains=False),))
        assert describe_part(frozen) == f"{describe_part(part)}, frozen"
    behind = replace(last.part, layers=(replace(last.part.layers[0], input_grad=False),))
    assert describe_part(behind) == f"{describe_part(last.part)}, first to train"


def test_a_curve_counts_as_often_as_a_step_counts_on_it():
    counts = {
        describe_part(found.part): found.calls
        for found in plan_curves(make_family("transformer:width=64,depth=3"))
    }
    assert counts["hidden elementwise 64, add 2"] == 6
    assert counts["hidden sdpa 64"] == 3
    assert counts["input embedding 64"] == 1


def test_blocks_are_opened():
    network = make_family("resnet18")
    assert split_network(fold_blocks(network)) == split_network(network)


def test_whole_nets_idle_and_odd_reads_are_no_variants():
    assert read_variant(Network()) is None
    assert all(read_variant(make_family(name)) is None for name in FAMILIES if name != "lstm")
    variant = make_variant(plan_curves(make_family("cnn5"))[-1].part, make_family("cnn5"))
    assert read_variant(variant) is not None
    entry, layer, head = variant.layers
    for odd in (replace(layer, reads=(2,)), replace(layer, calls=2), replace(layer, tied=True)):
        assert read_variant(replace(variant, layers=(entry, odd, head))) is None


CONV = make_layer("conv2d", cin=8, cout=12, space=(16, 16), kernel=3, padding=1)


@pytest.mark.parametrize(
    "other",
    [
        replace(CONV, trains=False),
        replace(CONV, input_grad=False),
        replace(CONV, tail=(make_op("elementwise", fn="relu"),)),
        replace(CONV, reads=(1, 1), join="add"),
        make_layer("conv2d", cin=8, cout=12, space=(16, 16), kernel=5, padding=2),
        make_layer("conv2d", cin=8, cout=12, space=(16, 16), kernel=3, padding=1, stride=2),
        make_layer("conv2d", cin=8, cout=12, space=(8, 8), kernel=3, padding=1),
        make_layer("conv2d", cin=8, cout=12, space=(16, 16), kernel=3, padding=1, bias=0),
        make_layer("conv2d", cin=8, cout=8, space=(16, 16), kernel=3, padding=1, groups=8),
        make_layer("conv2d", cin=8, cout=8, space=(16, 16), kernel=3, padding=1, groups=4),
    ],
)
def test_whatever_is_no_width_makes_another_curve(other):
    key = curve_key(Part("hidden", (CONV,)), SETUP)
    assert curve_key(Part("hidden", (other,)), SETUP) != key
    assert curve_key(Part("hidden", (CONV,)), Setup(batch=7)) != key
    assert curve_key(Part("input", (CONV,)), SETUP) != key


def test_ties_calls_names_and_reads_make_none():
    other = replace(CONV, reads=(2,), calls=3, tied=True, name="conv")
    before = make_layer("conv2d", cin=8, cout=8, space=(16, 16), kernel=1)
    one, two = (split_network(wrap(before, layer))[2] for layer in (CONV, other))
    assert one.part == two.part
    assert (one.calls, two.calls) == (1, 3)


@pytest.mark.parametrize(
    ("layer", "widths"),
    [
        (make_layer("conv2d", cin=8, cout=8, space=(16, 16), kernel=3, padding=1, groups=8), (8,)),
        (
            make_layer("conv2d", cin=8, cout=16, space=(16, 16), kernel=3, padding=1, groups=8),
            (16,),
        ),
        (
            make_layer("conv2d", cin=8, cout=16, space=(16, 16), kernel=3, padding=1, groups=4),
            (16,),
        ),
        (make_layer("conv2d", cin=8, cout=4, space=(16, 16), kernel=1, groups=2), ()),
        (replace(CONV, tail=(make_op("group_norm", groups=4),)), (8, 12)),
        (replace(CONV, tail=(make_op("view", out=(12, 16, 16)),)), ()),
        (make_layer("batch_norm", shape=(8, 16, 16)), (8,)),
        (make_layer("conv_transpose2d", cin=8, cout=6, space=(16, 16), kernel=2, stride=2), (8, 6)),
    ],
)
def test_grouped_and_rigid_layers_keep_their_structure(layer, widths):
    network = wrap(layer)
    (found,) = (
        f for f in plan_curves(network) if f.part.layers == split_network(network)[1].part.layers
    )
    assert found.highs == widths
    for spot in spots(found):
        part = resize_part(found.part, spot)
        assert curve_key(part, SETUP) == curve_key(found.part, SETUP)
        check_chain(make_variant(part, network))


def test_inputs_that_are_joined_are_joined_in_the_variant():
    plus = make_layer("elementwise", fn="add", inputs=2, shape=(8, 16, 16))
    wide = make_layer("conv2d", cin=16, cout=4, space=(16, 16), kernel=1)
    for layer in (
        replace(plus, reads=(1, 2), join="add"),
        replace(wide, reads=(1, 2), join="concat"),
    ):
        variant = make_variant(split_network(wrap(CONV, layer))[2].part, wrap(CONV, layer))
        assert variant.layers[1].reads == (1, 1)
        check_chain(variant)


def test_a_layer_behind_frozen_ones_stands_behind_a_frozen_entry():
    for grad in (True, False):
        network = wrap(replace(CONV, input_grad=grad))
        entry, layer, *head = make_variant(split_network(network)[1].part, network).layers
        assert entry.trains is grad
        assert layer.input_grad is grad
        assert all(one.input_grad for one in head)
    frozen = wrap(replace(CONV, input_grad=False, trains=False))
    head = make_variant(split_network(frozen)[1].part, frozen).layers[2:]
    assert not any(one.input_grad for one in head)


def test_a_large_vocabulary_is_neither_entry_nor_head():
    data = Input((16,), 50_000)
    embedding = make_layer("embedding", vocabulary=50_000, width=32, lead=(16,))
    layer = make_layer("linear", cin=32, cout=32, lead=(16,))
    head = make_layer("linear", cin=32, cout=50_000, lead=(16,))
    network = Network((replace(embedding, input_grad=False), layer, head), data)
    kinds = [one.kind for one in make_variant(split_network(network)[1].part, network).layers]
    assert kinds == ["linear", "linear", "elementwise", "linear"]
    # A second table of words or positions reads data too, wherever it stands.
    again = Network((*network.layers[:1], replace(embedding, reads=(2,)), head), data)
    assert [place.part.role for place in split_network(again)] == ["input", "input", "output"]


def test_widths_of_roles():
    network = make_family("cnn5")
    names = [width_names(place.part) for place in split_network(network)]
    assert names == [("cout",), ("cin", "cout"), ("cin", "cout"), ("cin", "cout"), ("cin",)]
