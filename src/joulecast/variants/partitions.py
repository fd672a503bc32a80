"""Ways to split networks into parts: layer by layer, or with every repeated block as one part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulecast.records import Network
from joulecast.variants.parts import BLOCK, Part, PlacedPart, split_blocks, split_network
from joulecast.variants.variant_networks import read_variant


@dataclass(frozen=True)
class Partition:
    """A way to split networks.

    Attributes:
        split: Returns the parts of a network in call order.
        read_variant: Returns the part that a variant shows, then the parts to subtract; None for
            other networks.
    """

    split: Callable[[Network], tuple[PlacedPart, ...]]
    read_variant: Callable[[Network], tuple[Part, ...] | None]


def read_block_variant(network: Network) -> tuple[Part, ...] | None:
    """Return the block or layer that a variant shows, then the parts to subtract."""
    placed = split_blocks(network)
    if [one.part.role for one in placed] != ["input", BLOCK, "output"]:
        return read_variant(network)
    if any(layer.calls > 1 or layer.tied for one in placed for layer in one.layers):
        return None
    first, block, output = (one.part for one in placed)
    return block, first, output


LAYERS = Partition(split_network, read_variant)
BLOCKS = Partition(split_blocks, read_block_variant)
