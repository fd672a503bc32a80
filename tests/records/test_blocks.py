"""The block view of a network."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joulecast.records import Layer, Network, Sizes, fold_blocks
from joulecast.records.network import group_by_block
from joulecast.testing import record_strategies as draw


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
