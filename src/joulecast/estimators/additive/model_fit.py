"""Fit the model of a device to observations.

Where a runtime captures graphs, pieces are graph replays, which no host delays, and eager steps
enter the energy process as E - P0·(T - D). Where it does not, pieces are eager, E - P0·T adds up
and so does T: exactly so where the host waits for every operator, as on a CPU. Which of both holds
is a property of the device, read from its observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulecast.errors import MissingError
from joulecast.estimators.additive.decompose import (
    DecomposedObservation,
    decompose_observations,
    find_idle_power,
    find_latest_unit,
)
from joulecast.estimators.additive.device_model import (
    AdditiveModel,
    PieceProcess,
    predict_durations,
)
from joulecast.estimators.additive.encode import (
    PieceEncoder,
    encode_counts,
    find_short_launch_duration,
    list_pieces,
    make_discrepancy_loadings,
    make_encoder,
    make_training_data,
    make_unit_loadings,
)
from joulecast.estimators.additive.host_time import fit_host_time
from joulecast.estimators.additive.hyperpriors import choose_priors, make_hyperprior
from joulecast.gp.fitting import DRAW_COUNT, fit_process
from joulecast.gp.prediction import SumPrediction
from joulecast.gp.weighted_sums import WeightedSums
from joulecast.records import Observation

# An eager step tells nothing about the device if the device's share of its energy is below this.
_MIN_DEVICE_SHARE = 0.15
# Likewise on devices without graphs, if the share above idle power is below this.
_MIN_ABOVE_IDLE_SHARE = 0.01
# Relative standard deviation of whole networks around the sum of their pieces that is common to all
# networks of the same kinds.
_DISCREPANCY_SD = 0.02


@dataclass(frozen=True)
class _DeviceEnergy:
    """The part of an observed energy that adds up over pieces, and its relative variance."""

    observation: DecomposedObservation
    energy_j: float
    relative_var: float


def fit_model(observations: Sequence[Observation], draw_count: int = DRAW_COUNT) -> AdditiveModel:
    """Fit the processes of duration and energy, and the model of host time.

    Raises:
        MissingError: No layer was timed, or no energy was measured.
    """
    decomposed = sorted(decompose_observations(observations), key=_sort_key)
    mode = "graph" if any(one.mode == "graph" for one in decomposed) else "eager"
    timed = [one for one in decomposed if one.mode == mode and one.duration_s]
    if not timed or not any(one.energy_j for one in decomposed):
        raise MissingError(
            "no energy of any layer was measured on this device: run `joulecast profile NET` there"
        )
    idle_w = find_idle_power(observations) or 0.0
    encoder = make_encoder(decomposed)
    duration = _fit_durations(timed, encoder, draw_count)
    if mode == "graph":
        # Eager durations contain the host, so that short ones tell nothing about the device.
        encoder = replace(encoder, short_launch_s=find_short_launch_duration(timed))
    pieces, sums = encode_counts([one.counts for one in decomposed])
    busy = predict_durations(encoder, duration, pieces, sums)
    unit = find_latest_unit(observations)
    host_time = fit_host_time(decomposed, busy.mean, busy.variance, unit)
    energies = _find_device_energies(decomposed, busy, mode, idle_w)
    fit = _EnergyFit(encoder, duration, unit, idle_w if mode == "graph" else None, draw_count)
    return AdditiveModel(mode, idle_w, encoder, duration, fit.run(energies), host_time)


def _sort_key(one: DecomposedObservation) -> tuple[str, float, float]:
    return one.trial_key, one.energy_j or 0.0, one.duration_s or 0.0


def _fit_durations(
    decomposed: Sequence[DecomposedObservation], encoder: PieceEncoder, draw_count: int
) -> PieceProcess:
    pieces = list_pieces(decomposed)
    values = [one.duration_s or 0.0 for one in decomposed]
    variances = [one.duration_relative_var for one in decomposed]
    data = make_training_data(decomposed, pieces, values, variances)
    inputs = encoder.encode(pieces)
    prior, _ = choose_priors(decomposed)
    hyperprior = make_hyperprior(inputs, data, prior, len(encoder.overhead_labels))
    return PieceProcess(pieces, fit_process(inputs, data, hyperprior, draw_count))


@dataclass(frozen=True)
class _EnergyFit:
    """What the fit of energies depends on besides them.

    Attributes:
        unit: The unit of the device to estimate for.
        idle_w: Power of the idle device; None if durations contain the host.
    """

    encoder: PieceEncoder
    duration: PieceProcess
    unit: str
    idle_w: float | None
    draw_count: int

    def run(self, energies: Sequence[_DeviceEnergy]) -> PieceProcess:
        """Return the fitted process of energies."""
        decomposed = [one.observation for one in energies]
        pieces = list_pieces(decomposed)
        single = WeightedSums.of_single_inputs(len(pieces))
        durations = predict_durations(self.encoder, self.duration, pieces, single)
        inputs = self.encoder.encode(pieces, durations.input_mean)
        values, variances = (
            [one.energy_j for one in energies],
            [one.relative_var for one in energies],
        )
        data = make_training_data(decomposed, pieces, values, variances)
        _, prior = choose_priors(decomposed)
        overhead_count = len(self.encoder.overhead_labels)
        hyperprior = make_hyperprior(inputs, data, prior, overhead_count, self.idle_w or 0.0)
        # If durations contain the host, sums are off by more (``additivity_error``), and not alike.
        sd = 0.0 if self.idle_w is None else _DISCREPANCY_SD
        discrepancies = make_discrepancy_loadings(decomposed, data, inputs, hyperprior, sd)
        units = make_unit_loadings(decomposed, self.unit)
        data = replace(data, discrepancy_loadings=discrepancies, unit_loadings=units)
        return PieceProcess(pieces, fit_process(inputs, data, hyperprior, self.draw_count, sd))


def _find_device_energies(
    decomposed: Sequence[DecomposedObservation], busy: SumPrediction, mode: str, idle_w: float
) -> list[_DeviceEnergy]:
    """Return the part of each energy that adds up over pieces.

    Raises:
        MissingError: All energies belong to the host.
    """
    min_share = _MIN_DEVICE_SHARE if mode == "graph" else _MIN_ABOVE_IDLE_SHARE
    found = []
    for one, busy_s, busy_var in zip(decomposed, busy.mean, busy.variance, strict=True):
        if not one.energy_j or not one.duration_s:
            continue
        idle_s, idle_var = 0.0, 0.0
        if mode == "eager":
            idle_s = one.duration_s
        elif one.mode == "eager":
            idle_s, idle_var = max(0.0, one.duration_s - float(busy_s)), float(busy_var)
        energy_j = one.energy_j - idle_w * idle_s
        if energy_j > min_share * one.energy_j:
            own_var = one.energy_relative_var * (one.energy_j / energy_j) ** 2
            relative_var = own_var + idle_w**2 * idle_var / energy_j**2
            found.append(_DeviceEnergy(one, energy_j, relative_var))
    if not found:
        raise MissingError(
            "all energy measured on this device belongs to its host: run `joulecast profile NET` "
            "there"
        )
    return found
