"""Segments of checkpointed layers: blocks by themselves, and products at their end."""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds import CheckpointSegment, list_checkpoint_segments, make_layer, make_op
from joulecast.records import Input, Layer, Network

LINEAR = make_layer("linear", cin=8, cout=8)
RELU = make_layer("elementwise", fn="relu", shape=(8,))
AGAIN = replace(LINEAR, recomputed=True)


def make_network(*layers: Layer, groups: tuple[tuple[int, int], ...] = ()) -> Network:
    return Network(layers, Input((8,)), groups)


def test_network_without_checkpoints_has_no_segments() -> None:
    assert list_checkpoint_segments(make_network(LINEAR, RELU, LINEAR)) == []


def test_product_after_recomputed_layers_is_checkpointed_with_them() -> None:
    network = make_network(LINEAR, AGAIN, AGAIN, LINEAR, RELU)
    assert list_checkpoint_segments(network) == [CheckpointSegment(1, 4, repeats_last=False)]


def test_layer_whose_result_is_needed_is_not_checkpointed_unless_marked() -> None:
    with_tail = replace(LINEAR, tail=(make_op("elementwise", fn="relu"),))
    for last in (RELU, with_tail):
        segments = list_checkpoint_segments(make_network(AGAIN, last))
        assert segments == [CheckpointSegment(0, 1)]


def test_blocks_are_checkpointed_each_by_itself() -> None:
    network = make_network(AGAIN, AGAIN, AGAIN, AGAIN, LINEAR, groups=((0, 2), (2, 4)))
    assert list_checkpoint_segments(network) == [CheckpointSegment(0, 2), CheckpointSegment(2, 4)]
