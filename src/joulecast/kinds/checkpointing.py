"""Say which layers of a network run under activation checkpointing.

PyTorch checkpoints a module as a whole: its input is kept, and backward first runs it forward
again. It stops as soon as backward has all that it needs. A matrix product at the end needs only
its input, so it is not run again. ``Layer.recomputed`` marks the layers that are.
"""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.kinds.kind_table import find_kind
from joulecast.records import Layer, Network


@dataclass(frozen=True)
class CheckpointSegment:
    """Layers that are checkpointed together: a half-open range.

    Attributes:
        repeats_last: The last layer is run again too; otherwise it is a matrix product whose input
            is computed again.
    """

    start: int
    stop: int
    repeats_last: bool = True


def list_checkpoint_segments(network: Network) -> list[CheckpointSegment]:
    """Return the segments of a network in order; each block is checkpointed by itself."""
    segments = []
    for start, stop in _list_ranges(network):
        index = start
        while index < stop:
            first = index
            while index < stop and network.layers[index].recomputed:
                index += 1
            if index > first:
                has_product = index < stop and needs_only_its_input(network.layers[index])
                segments.append(CheckpointSegment(first, index + has_product, not has_product))
            index += 1
    return segments


def needs_only_its_input(layer: Layer) -> bool:
    """Return whether backward of a layer can do without its result: a product without a tail."""
    is_product = find_kind(layer.kind).operator_class in ("convolution", "matmul")
    return is_product and not layer.tail and not layer.parts


def _list_ranges(network: Network) -> list[tuple[int, int]]:
    """Return the blocks, and the ranges of layers between them."""
    ranges, end = [], 0
    for start, stop in sorted(network.groups):
        if end < start:
            ranges.append((end, start))
        ranges.append((start, stop))
        end = stop
    return [*ranges, (end, len(network.layers))]
