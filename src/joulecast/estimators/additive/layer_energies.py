"""Attribute the energy of networks to their layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from joulecast.estimators.additive.device_model import NetworkTotals
from joulecast.estimators.additive.pieces import Piece, PlacedPiece, make_piece
from joulecast.records import LayerEstimate, Network
from joulecast.variants import Part, make_isolated_network, split_network, unfold_blocks


def attribute_energies(
    networks: Sequence[Network],
    pieces: Sequence[Sequence[PlacedPiece]],
    totals: NetworkTotals,
    measured_labels: Collection[str],
) -> tuple[tuple[LayerEstimate, ...], ...]:
    """Return the energy of each layer of each network.

    A layer has its own energy on the device, and a share of waiting for the host by its launches.

    Args:
        networks: The networks.
        pieces: Pieces of each network.
        totals: Totals of all networks.
        measured_labels: Labels that were measured.
    """
    device = totals.device
    leaf_j = device.energy_by_leaf_j
    found = []
    for at, (network, placed) in enumerate(zip(networks, pieces, strict=True)):
        launches = sum(one.piece.launches * one.count for one in placed)
        waiting_j = float(totals.energy_j[at] - totals.device_energy_j[at]) / max(launches, 1)
        isolated_j = sum(_sum_leaves(one.piece, leaf_j) * one.count for one in placed)
        factor = float(totals.device_energy_j[at]) / max(isolated_j, 1e-300)
        layers = [
            LayerEstimate(leaf.name or leaf.kind, leaf.kind, 0.0, leaf.calls)
            for leaf in unfold_blocks(network.layers)
        ]
        for one in placed:
            energy_j = factor * _sum_leaves(one.piece, leaf_j) + one.piece.launches * waiting_j
            is_seen = all(leaf.label in measured_labels for leaf, _ in one.piece.own_leaves)
            for index, share in _share_piece(one, leaf_j):
                own_j = layers[index].energy_j + energy_j * one.count * share
                layers[index] = replace(layers[index], energy_j=own_j, seen=is_seen)
        found.append(tuple(layers))
    return tuple(found)


def _sum_leaves(piece: Piece, leaf_j: dict[Piece, float]) -> float:
    return sum(leaf_j[leaf] * count for leaf, count in piece.own_leaves)


def _share_piece(placed: PlacedPiece, leaf_j: Mapping[Piece, float]) -> list[tuple[int, float]]:
    """Return the layers of a piece by index, with their share of its energy."""
    part, start = placed.placed_part.part, placed.placed_part.index
    if len(part.layers) == 1:
        return [(start, 1.0)]
    energies = [0.0] * len(part.layers)
    for inner in split_network(make_isolated_network(part)):
        for offset, layer in enumerate(inner.part.layers):
            own = make_piece(Part("hidden", (layer,), inner.part.half_input), placed.setup)
            energies[inner.index + offset] += sum(
                leaf_j.get(leaf, 0.0) * count * inner.calls for leaf, count in own.own_leaves
            )
    total = sum(energies) or 1.0
    return [(start + at, energy_j / total) for at, energy_j in enumerate(energies)]
