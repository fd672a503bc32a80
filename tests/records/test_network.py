"""Sizes: an immutable mapping whose equal values have equal JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_strategies as draw
from joulecast.families import FAMILIES, make_family
from joulecast.operators import make_layer
from joulecast.records import Layer, Network, Sizes, StepTotals, find_equal_blocks, fold_blocks
from joulecast.records.network import (
    group_by_block,
    list_reading_notes,
    order_branches,
    order_operands,
)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.booleans()))
def test_equal_sizes_have_equal_json(sizes):
    as_floats = Sizes({name: float(value) for name, value in sizes.items()})
    assert as_floats == Sizes(sizes)
    assert hash(as_floats) == hash(Sizes(sizes))
    assert json.dumps(as_floats.to_dict()) == json.dumps(Sizes(sizes).to_dict())


@given(draw.sizes)
def test_sizes_are_an_immutable_mapping(sizes):
    assert Sizes(dict(reversed(list(sizes.items())))) == sizes
    assert dict(sizes) == {name: sizes[name] for name in sizes}
    with pytest.raises(TypeError):
        sizes["cin"] = 1
    assert all(f"{name}=" in repr(sizes) for name in sizes)


@given(draw.networks())
def test_folding_keeps_every_layer_in_order(network):
    folded = fold_blocks(network)
    starts = dict(network.groups)
    assert len(folded.layers) == len(network.layers) - sum(b - a - 1 for a, b in network.groups)
    flat = []
    for layer in folded.layers:
        if len(flat) in starts:
            assert layer.kind.startswith("block:")
            flat.extend(layer.parts)
        else:
            flat.append(layer)
    # ``reads`` counts layers of its own view, so it may differ.
    bare = [replace(layer, reads=()) for layer in network.layers]
    assert [replace(layer, reads=()) for layer in flat] == bare
    assert folded.groups == ()


@given(st.lists(draw.leaves, min_size=1, max_size=3), draw.names)
def test_blocks_of_the_same_structure_have_the_same_kind(parts, name):
    renamed = [
        replace(part, name=name, sizes=Sizes({**part.sizes, "cin": 1 + index}))
        for index, part in enumerate(parts)
    ]
    size = len(parts)
    network = Network((*parts, *renamed), groups=((0, size), (size, 2 * size)))
    first, second = fold_blocks(network).layers
    assert first.kind == second.kind
    other = replace(parts[0], kind="another")
    third = fold_blocks(Network((other, *parts[1:]), groups=((0, size),))).layers[0]
    assert third.kind != first.kind


def test_block_view_reads_across_blocks():
    layer = Layer("linear", Sizes({"cin": 2, "cout": 2}))
    skip = replace(layer, reads=(1, 4), join="add")
    network = Network((layer, layer, layer, layer, skip), groups=((1, 3),))
    folded = fold_blocks(network)
    assert [bool(part.parts) for part in folded.layers] == [False, True, False, False]
    assert [part.reads for part in folded.layers] == [(1,), (1,), (1,), (1, 3)]


def test_layers_are_grouped_by_block():
    assert group_by_block([-1, 0, 0, 0, 1, -1, 2, 2]) == ((1, 4), (6, 8))
    assert group_by_block([]) == ()


def make_blocks(*widths: int) -> Network:
    """Return a network of blocks of two linear layers, the second of which adds its input."""
    layers = []
    for at, width in enumerate(widths):
        sizes = Sizes({"cin": width, "cout": width, "lead": ()})
        layers += [
            Layer("linear", sizes, name=f"h.{at}.first"),
            Layer("linear", sizes, reads=(1, 2), join="add", name=f"h.{at}.second"),
        ]
    return Network(tuple(layers), groups=tuple((2 * at, 2 * at + 2) for at in range(len(widths))))


@pytest.mark.parametrize(
    ("widths", "found"),
    [
        ((8, 8, 8), [("h.0–2", (0, 2, 4))]),
        ((8, 4, 8, 4), [("h.0…2", (0, 4)), ("h.1…3", (2, 6))]),
        ((8, 4, 8, 8), [("h.0…3", (0, 4, 6)), ("h.1", (2,))]),
    ],
)
def test_equal_blocks_are_found_once_with_their_positions(widths, found):
    blocks = find_equal_blocks(make_blocks(*widths))
    assert [(one.name, one.starts) for one in blocks] == found
    assert all(one.layer_count == 2 and one.count == len(one.starts) for one in blocks)
    assert find_equal_blocks(make_family("cnn5")) == ()


def test_blocks_differ_by_what_runs_and_not_by_what_they_read_outside():
    network = make_blocks(8, 8)
    layers = list(network.layers)
    layers[3] = replace(layers[3], reads=(1, 4))
    (block,) = find_equal_blocks(replace(network, layers=tuple(layers)))
    assert block.count == 2
    layers[3] = replace(layers[3], trains=False)
    apart = find_equal_blocks(replace(network, layers=tuple(layers)))
    assert [block.count for block in apart] == [1, 1]


def test_names_are_shortened_to_what_differs():
    stages = find_equal_blocks(make_family("resnet50"))
    names = ["stage1.1–2", "stage2.1–3", "stage3.1–5", "stage4.1–2"]
    assert [block.name for block in stages if block.count > 1] == names
    network = make_blocks(8, 8)
    renamed = [replace(layer, name=layer.name.replace("h.1", "tail")) for layer in network.layers]
    (block,) = find_equal_blocks(replace(network, layers=tuple(renamed)))
    assert block.name == "h.0–tail"


LINEAR = make_layer("linear", cin=8, cout=8)
WIDE = make_layer("linear", cin=8, cout=8, bias=0)


def add(*reads: int, **rest: object) -> Layer:
    layer = make_layer("elementwise", fn="add", inputs=len(reads), shape=(8,))
    return replace(layer, reads=reads, join="add", **rest)


def test_the_longest_branch_comes_first_in_sums() -> None:
    for reads in ((1, 3), (3, 1)):
        assert order_operands([LINEAR, LINEAR, LINEAR, add(*reads)])[-1].reads == (1, 3)
    (*_, last) = order_operands([LINEAR, LINEAR, LINEAR, add(3, 1, transposed=(0,))])
    assert (last.reads, last.transposed) == ((1, 3), (1,))
    layer = make_layer("elementwise", fn="concat", shape=(16,))
    joined = replace(layer, reads=(2, 1), join="concat")
    assert order_operands([LINEAR, LINEAR, joined])[-1].reads == (2, 1)


def test_order_of_parallel_branches_does_not_matter() -> None:
    """A shortcut may be computed before or after the branch it is added to."""
    main_first = [LINEAR, LINEAR, replace(WIDE, reads=(3,)), add(2, 1)]
    shortcut_first = [WIDE, replace(LINEAR, reads=(2,)), LINEAR, add(1, 3)]
    assert order_branches(main_first) == order_branches(shortcut_first) == tuple(main_first)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_are_in_order(name: str) -> None:
    layers = make_family(name).layers
    assert order_operands(layers) == layers


def test_operators_without_a_rule_are_named_with_their_calls() -> None:
    assert list_reading_notes(Network()) == []
    assert list_reading_notes(Network(totals=StepTotals(1.0, 1.0, 1))) == []
    ops = (("aten::foo", 3), ("lib::bar", 1), ("lib::baz", 2), ("lib::far", 9), ("lib::few", 1))
    totals = StepTotals(
        1.0, 1.0, 1, ops_without_rule=ops, uncounted_bytes_share=0.25, notes=("Frozen.",)
    )
    first, second = list_reading_notes(Network(totals=totals))
    assert first == "Frozen."
    assert second == (
        "No cost rule for lib::far (9 calls), aten::foo (3 calls), lib::baz (2 calls), 2 more: "
        "FLOPs that they compute are missing, in 25.0 % of the bytes of a step."
    )
