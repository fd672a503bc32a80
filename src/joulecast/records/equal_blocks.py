"""Find the blocks of a network that are equal, such as the blocks of a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulecast.records.blocks import find_common_path
from joulecast.records.network import Layer, Network


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of a network that are equal; a block that differs from all others is alone.

    Attributes:
        name: Names of the first and the last one: ``h.0–23``, or ``h.0…22`` with others between.
        starts: Index of each one's first layer.
        layer_count: Number of layers in one of them.
    """

    name: str
    starts: tuple[int, ...]
    layer_count: int

    @property
    def count(self) -> int:
        """Number of equal blocks."""
        return len(self.starts)


def find_equal_blocks(network: Network) -> tuple[EqualBlocks, ...]:
    """Return the blocks of a network, equal ones together, by the first one's position.

    Blocks are equal if their layers and the connections between these are. What a block reads from
    outside may be at any distance.
    """
    positions: dict[tuple[Layer, ...], list[int]] = {}
    groups = sorted(network.groups)
    for position, (start, stop) in enumerate(groups):
        block = _disconnect(network.layers[start:stop])
        positions.setdefault(block, []).append(position)
    return tuple(
        EqualBlocks(
            _name_range(network, groups, found), tuple(groups[at][0] for at in found), len(block)
        )
        for block, found in positions.items()
    )


def _disconnect(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers of a block, with everything outside at the same distance."""
    return tuple(
        replace(layer, reads=tuple(min(back, index + 1) for back in layer.reads))
        for index, layer in enumerate(layers)
    )


def _name_range(
    network: Network, groups: Sequence[tuple[int, int]], positions: Sequence[int]
) -> str:
    first, last = (
        find_common_path([layer.name or layer.kind for layer in network.layers[slice(*groups[at])]])
        for at in (positions[0], positions[-1])
    )
    if len(positions) == 1:
        return first
    is_consecutive = positions[-1] - positions[0] == len(positions) - 1
    return f"{first}{'–' if is_consecutive else '…'}{_strip_common_path(first, last)}"


def _strip_common_path(first: str, last: str) -> str:
    """Return a path without the beginning that it shares with another one of the same depth."""
    parts, others = last.split("."), first.split(".")
    if len(parts) != len(others) or parts[:-1] != others[:-1]:
        return last
    return parts[-1]
