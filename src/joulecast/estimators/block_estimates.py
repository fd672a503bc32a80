"""Add up the energies of a network's equal blocks."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.records import BlockEstimate, LayerEstimate, Network, find_repeated_blocks


def estimate_blocks(network: Network, layers: Sequence[LayerEstimate]) -> tuple[BlockEstimate, ...]:
    """Return the energy of each group of equal blocks.

    Args:
        network: The network.
        layers: The energy of each of its layers; none if the estimator does not tell.
    """
    if len(layers) != len(network.layers):
        return ()
    return tuple(
        BlockEstimate(
            block.name,
            block.count,
            block.layer_count,
            sum(
                layer.energy_j
                for start in block.starts
                for layer in layers[start : start + block.layer_count]
            ),
            block.starts,
        )
        for block in find_repeated_blocks(network)
    )
