"""Attribute the energy of networks to their layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from joulecast.estimators.additive.device_model import AdditiveModel, NetworkTotals
from joulecast.estimators.additive.pieces import PlacedPiece
from joulecast.kinds import layer_work
from joulecast.records import Layer, LayerEstimate, Network, Setup
from joulecast.variants import unfold_blocks


def attribute_energies(
    model: AdditiveModel,
    networks: Sequence[Network],
    pieces: Sequence[Sequence[PlacedPiece]],
    totals: NetworkTotals,
) -> tuple[tuple[LayerEstimate, ...], ...]:
    """Return the energy of each layer of each network.

    A layer has its own energy on the device, and a share of waiting for the host by its launches.

    Args:
        model: The fitted model.
        networks: The networks.
        pieces: Pieces of each network.
        totals: Totals of all networks.
    """
    keys = (piece.key for piece in totals.pieces)
    piece_j = dict(zip(keys, totals.piece_energy_j.tolist(), strict=True))
    measured = {piece.label for piece in model.energy.pieces}
    found = []
    for at, (network, placed) in enumerate(zip(networks, pieces, strict=True)):
        launches = sum(one.piece.launches * one.count for one in placed)
        waiting_j = float(totals.energy_j[at] - totals.device_energy_j[at]) / max(launches, 1)
        layers = [
            LayerEstimate(leaf.name or leaf.kind, leaf.kind, 0.0, leaf.calls)
            for leaf in unfold_blocks(network.layers)
        ]
        for one in placed:
            device_j = piece_j[one.piece.key] * float(totals.in_network_factor[at])
            energy_j = (device_j + one.piece.launches * waiting_j) * one.count
            seen = one.piece.label in measured
            for index, share in _share_piece(one):
                layers[index] = replace(layers[index], energy_j=energy_j * share, seen=seen)
        found.append(tuple(layers))
    return tuple(found)


def _share_piece(placed: PlacedPiece) -> list[tuple[int, float]]:
    """Return the layers of a piece by index, with their share of its bytes."""
    layers, start = placed.placed_part.layers, placed.placed_part.index
    if len(layers) == 1:
        return [(start, 1.0)]
    sizes = [_count_bytes(layer) for layer in layers]
    total = sum(sizes) or 1.0
    return [(start + at, size / total) for at, size in enumerate(sizes)]


@lru_cache(maxsize=8192)
def _count_bytes(layer: Layer) -> float:
    return layer_work(layer, Setup()).total.size_bytes
