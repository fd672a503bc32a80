"""Simple rivals, fitted to the energies of isolated layers that the profile also rests on.

flops        energy = a·FLOPs + b           of a layer, by precision
work         energy = a·FLOPs + b·bytes + c·launches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from joulecast.kinds import network_work
from joulecast.records import Network, Observation, Setup

RIVALS = ("flops", "work")


class LayerRegressions:
    """Energies of layers by their work, for each precision; a network is the sum."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        rows: dict[str, list[tuple[np.ndarray, float]]] = {}
        for one in observations:
            trial = one.trial
            if trial.network.layers and trial.setup.phase == "inference" and one.energy_j:
                work = count_work(trial.network, trial.setup) * trial.execution.copies
                rows.setdefault(trial.setup.precision, []).append((work, one.energy_j))
        self.costs = {
            (name, precision): _fit([*zip(*found, strict=True)], name)
            for precision, found in rows.items()
            for name in RIVALS
        }

    def predict(self, name: str, network: Network, setup: Setup) -> float:
        """Return the energy of a network in joules."""
        return float(self.costs[name, setup.precision] @ count_work(network, setup))


def count_work(network: Network, setup: Setup) -> np.ndarray:
    """Return FLOPs, bytes and launches of a forward pass."""
    work = network_work(network, setup).forward
    return np.array([work.flops, work.size_bytes, work.launches], float)


def _fit(rows: Sequence[Any], name: str) -> np.ndarray:
    """Fit non-negative costs to relative errors; the rival by FLOPs knows no bytes."""
    work, energy_j = np.array(rows[0]), np.array(rows[1])
    if name == "flops":
        work[:, 1] = 0.0
    scale = np.maximum(work.max(axis=0), 1e-30)
    costs, _ = nnls(work / scale / energy_j[:, None], np.ones(len(energy_j)))
    return np.asarray(costs / scale)
