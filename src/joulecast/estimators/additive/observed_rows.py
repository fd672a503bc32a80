"""Observations as rows of the processes of durations and powers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.device_model import SumPrediction, weigh_by_time
from joulecast.estimators.additive.encode import PieceEncoder, PieceSums, number_name
from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.inputs import LogObservations

# An eager step tells nothing about the device if the device's share of its energy is below this.
_MIN_DEVICE_SHARE = 0.15


@dataclass(frozen=True)
class ObservedPower:
    """The mean power of the device while it ran an observation, and its relative variance."""

    observation: DecomposedObservation
    power_w: float
    relative_var: float


def encode_decomposed(
    encoder: PieceEncoder, decomposed: Sequence[DecomposedObservation]
) -> PieceSums:
    """Return observations as sums over leaves."""
    flags = [not one.is_isolated for one in decomposed]
    return encoder.sum_pieces([one.counts for one in decomposed], flags)


def observe_durations(
    timed: Sequence[DecomposedObservation], sums: PieceSums, leaf_s: Floats
) -> LogObservations:
    """Return the rows of durations, given about how long each leaf takes."""
    values_s = np.array([one.duration_s or 0.0 for one in timed])
    known = np.array([one.duration_relative_var for one in timed])
    return LogObservations(
        sums.make_log_sums(leaf_s), np.log(values_s), known, stratify_observations(timed)
    )


def find_powers(
    decomposed: Sequence[DecomposedObservation],
    busy: SumPrediction,
    mode: str,
    idle_w: float,
    launch_gap_s: float,
) -> list[ObservedPower]:
    """Return the mean power of the device during each observation with energy."""
    found = []
    for one, busy_s, busy_var in zip(decomposed, busy.total, busy.variance, strict=True):
        if not one.energy_j or not one.duration_s:
            continue
        energy_j, device_s, relative_var = one.energy_j, one.duration_s, one.energy_relative_var
        if mode == "graph" and one.mode == "eager":
            device_s = min(float(busy_s) + launch_gap_s * one.launches, one.duration_s)
            energy_j = one.energy_j - idle_w * (one.duration_s - device_s)
            if energy_j < _MIN_DEVICE_SHARE * one.energy_j:
                continue
            # With the duration, both the energy and what it is divided by change.
            share = 1.0 - idle_w * device_s / energy_j
            relative_var *= (one.energy_j / energy_j) ** 2
            relative_var += float(busy_var) / device_s**2 * share**2
        found.append(ObservedPower(one, energy_j / device_s, relative_var))
    return found


def observe_powers(
    powers: Sequence[ObservedPower], sums: PieceSums, leaf_s: Floats
) -> LogObservations:
    """Return the rows of powers, given how long each leaf takes."""
    own = [one.observation for one in powers]
    log_sums = sums.make_log_sums(leaf_s, [one.unit for one in own])
    values_w = np.array([one.power_w for one in powers])
    known = np.array([one.relative_var for one in powers])
    return LogObservations(
        weigh_by_time(log_sums, leaf_s), np.log(values_w), known, stratify_observations(own)
    )


def stratify_observations(decomposed: Sequence[DecomposedObservation]) -> Ints:
    """Return the stratum of each observation: its label, or all networks together."""
    names = [next(iter(one.counts)).label if one.is_isolated else "networks" for one in decomposed]
    return np.array(list(map(number_name, names)), np.int64)
