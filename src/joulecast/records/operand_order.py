"""Bring networks that differ only in how they are written into one order.

What is added or multiplied in which order changes nothing, and neither does which of two parallel
branches is called first. In the canonical order the longest branch comes first, as residual blocks
are usually written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.records.network import Layer

_COMMUTATIVE = ("add", "mul")


def order_operands(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers in the same order whose sums and products list the longest branch first."""
    depths: list[int] = []
    ordered: list[Layer] = []
    for index, layer in enumerate(layers):
        found = [depths[index - back] if 0 < back <= index else 0 for back in layer.reads]
        depths.append(1 + max(found, default=0))
        ordered.append(_order_reads(layer, found))
    return tuple(ordered)


def order_branches(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers of a block in canonical order: each after all that it reads.

    Starting from the last layer, what an operand is computed from comes before the next operand.
    Layers that the last one does not depend on keep their places at the end.
    """
    layers = order_operands(layers)
    sequence = _list_dependencies(layers, len(layers) - 1)
    sequence += [index for index in range(len(layers)) if index not in set(sequence)]
    place = {index: at for at, index in enumerate(sequence)}
    if sequence == sorted(sequence):
        return layers
    ordered = []
    for at, index in enumerate(sequence):
        reads = [
            at - place[index - back] if back <= index else at + back - index
            for back in layers[index].reads
        ]
        ordered.append(replace(layers[index], reads=tuple(reads)))
    return tuple(ordered)


def _order_reads(layer: Layer, depths: Sequence[int]) -> Layer:
    if layer.join not in _COMMUTATIVE or len(layer.reads) < 2:
        return layer
    places = sorted(range(len(depths)), key=lambda at: (-depths[at], layer.reads[at]))
    if places == sorted(places):
        return layer
    transposed = tuple(at for at, place in enumerate(places) if place in layer.transposed)
    reads = tuple(layer.reads[place] for place in places)
    return replace(layer, reads=reads, transposed=transposed)


def _list_dependencies(layers: Sequence[Layer], last: int) -> list[int]:
    """Return the layers that one depends on, and itself, each after all that it reads."""
    found: list[int] = []
    seen: set[int] = set()
    open_layers = [(last, False)]
    while open_layers:
        index, is_done = open_layers.pop()
        if is_done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            open_layers.append((index, True))
            sources = [index - back for back in layers[index].reads if back <= index]
            open_layers += [(source, False) for source in reversed(sources)]
    return found
