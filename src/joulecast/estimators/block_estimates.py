"""Add up the energies of a network's blocks."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.records import BlockEstimate, LayerEstimate, Network, find_equal_blocks


def estimate_blocks(network: Network, layers: Sequence[LayerEstimate]) -> tuple[BlockEstimate, ...]:
    """Return the energy of blocks, equal ones together.

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
        for block in find_equal_blocks(network)
    )
