"""Ways to split networks into parts: layer by layer, or with every repeated block as one part.

``adapt_partition`` changes either to what the paper does: hidden layers between the network's own
input and output layers, and an output layer that is trained alone without a gradient of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.records import Network
from joulecast.variants.parts import BLOCK, Part, PlacedPart, split_blocks, split_network
from joulecast.variants.variant_networks import make_paper_variant, make_variant, read_variant


@dataclass(frozen=True)
class Partition:
    """A way to split networks.

    Attributes:
        split: Returns the parts of a network in call order.
        read_variant: Returns the part that a variant shows, then the parts to subtract; None for
            other networks.
        make_variant: Returns the network that shows a part of another network.
    """

    split: Callable[[Network], tuple[PlacedPart, ...]]
    read_variant: Callable[[Network], tuple[Part, ...] | None]
    make_variant: Callable[[Part, Network], Network] = make_variant


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


# Cached, because curves are planned once for each partition.
@lru_cache
def adapt_partition(
    partition: Partition, own_ends: bool = False, output_gradient: bool = True
) -> Partition:
    """Return a partition with variants as the paper makes them.

    Args:
        partition: How networks are split.
        own_ends: Whether variants have the network's own input and output layers, where they fit.
        output_gradient: Whether an output layer that is trained alone computes the gradient of its
            input, as it does inside a network.
    """
    if own_ends:
        partition = replace(partition, make_variant=make_paper_variant)
    if output_gradient:
        return partition
    split, read = partition.split, partition.read_variant

    def split_network_parts(network: Network) -> tuple[PlacedPart, ...]:
        placed = split(network)
        return tuple(replace(one, part=_drop_output_gradient(one.part)) for one in placed)

    def read_variant_parts(network: Network) -> tuple[Part, ...] | None:
        parts = read(network)
        return None if parts is None else tuple(map(_drop_output_gradient, parts))

    return replace(partition, split=split_network_parts, read_variant=read_variant_parts)


def _drop_output_gradient(part: Part) -> Part:
    """Return a part such that all output layers of a curve are alike."""
    if part.role != "output" or not any(layer.input_grad for layer in part.layers):
        return part
    return replace(part, layers=tuple(replace(one, input_grad=False) for one in part.layers))
