"""Choose what to measure next, so that the totals of the target's networks become certain.

    1  two measurements of every kind of piece in the target's networks, at the third and the first
       quartile of their work, so that no kind is extrapolated to
    2  if host time is separate, eager steps of three of the networks, one of them as soon as every
       kind was measured once
    3  then, of all pieces, by energy or by duration, and of further networks for the host, the
       measurement that most reduces the mean relative variance of the totals per device second

The variance that a measurement would leave needs no measurement, only its covariance with the
totals (``gp.variance_reduction``). The paper's rule is also available: the piece with the largest
standard deviation, whatever the networks need. Profiling stops when the totals are known within the
target's share, or when nothing that can be measured would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additive.decompose import (
    choose_sum_error_sd_share,
    decompose_observations,
    select_related,
)
from joulecast.estimators.additive.device_model import (
    HOST_TIME,
    AdditiveModel,
    NetworkTotals,
    predict_totals,
)
from joulecast.estimators.additive.encode import encode_counts
from joulecast.estimators.additive.pieces import Piece
from joulecast.estimators.additive.target_pieces import (
    TargetPieces,
    find_host_probe,
    isolated_mode,
    list_host_trials,
    list_probes,
    read_target,
)
from joulecast.estimators.base import Proposal, Target
from joulecast.gp.fitting import MANY_OBSERVATIONS
from joulecast.gp.variance_reduction import predict_measurements
from joulecast.records import Observation, Trial
from joulecast.units import format_share
from joulecast.variants import describe_part, make_isolated_trial, read_isolated_part

FitModel = Callable[[Sequence[Observation]], AdditiveModel]

MEASUREMENTS_PER_KIND = 2
# Device time of a measurement with energy and of a probe, in seconds, if none was made yet.
_DEFAULT_ENERGY_COST_S, _DEFAULT_PROBE_COST_SHARE = 2.0, 0.25
# A measurement must reduce the variance by at least this share.
_MIN_REDUCTION = 0.002
# After all layers were timed, the energy of one must reduce the variance by at least this share.
_MIN_REDUCTION_AFTER_PROBES = 0.05
# Half the width of a 95 % interval, in standard deviations.
_HALF_WIDTH_SDS = 1.96


@dataclass(frozen=True)
class _Measurement:
    """A measurement that could be made of an isolated piece.

    Attributes:
        score: What the best measurement has most of.
        reduction: What it takes off the mean relative variance of the totals.
    """

    key: str
    with_energy: bool
    score: float
    reduction: float


@dataclass(frozen=True)
class _Costs:
    """Device time of a measurement of an isolated piece."""

    energy_s: float = 1.0
    duration_s: float = 1.0


def propose_trial(target: Target, observations: Sequence[Observation], fit: FitModel) -> Proposal:
    """Return the most useful trial, or the reason why there is none."""
    observations = _select_related(target, observations)
    pieces = read_target(target, observations)
    if target.acquisition == "probe":
        probe = _propose_probe(target, pieces, observations)
        return probe if probe.trial else _propose_after_probes(target, pieces, observations, fit)
    hosts = list_host_trials(target, observations)
    count = pieces.observation_count
    for turn in range(MEASUREMENTS_PER_KIND):
        key = _find_new_kind(pieces, turn)
        if key is not None:
            trial, what = _isolate(target, pieces, key, with_energy=True)
            return Proposal(trial, 1.0, f"{what} (few measurements of its kind)", count)
        # One network early: host time is then known however short the campaign is. The rest later.
        if len(hosts.required) > (max(hosts.required_count - 1, 0) if turn == 0 else 0):
            return _propose_host(hosts.required[0], 1.0, count, with_energy=True)
    if target.acquisition == "missing":
        return _propose_probe(target, pieces, observations)
    try:
        model = fit(observations)
    except MissingError as error:
        return Proposal(None, 1.0, str(error), count)
    totals = _predict_target(model, pieces, observations)
    costs = _read_costs(observations)
    return _propose_best(target, pieces, model, totals, costs, hosts.optional)


def _propose_probe(
    target: Target, pieces: TargetPieces, observations: Sequence[Observation]
) -> Proposal:
    """Propose the duration of a layer that was not timed, then its host time."""
    untimed, count = pieces.untimed, pieces.observation_count
    uncertainty = len(untimed) / len(pieces.pieces)
    if untimed:
        trial, what = _isolate(target, pieces, untimed[0], with_energy=False)
        is_probe = target.acquisition == "probe"
        probes = list_probes(target, pieces) if is_probe else ()
        reason = f"{what} ({len(untimed)} left)"
        return Proposal(trial, uncertainty, reason, count, with_energy=False, probes=probes)
    unissued = find_host_probe(target, pieces, observations)
    if unissued is not None:
        return _propose_host(unissued, uncertainty, count, with_energy=False)
    return Proposal(None, 0.0, "every layer of the network was timed", count)


def _propose_after_probes(
    target: Target, pieces: TargetPieces, observations: Sequence[Observation], fit: FitModel
) -> Proposal:
    """Propose the energy of a layer whose duration left the totals uncertain, if it helps."""
    count = pieces.observation_count
    stop = Proposal(None, 0.0, "every layer of the network was timed", count)
    try:
        model = fit(observations)
    except MissingError:
        return stop
    totals = _predict_target(model, pieces, observations)
    uncertainty = _measure_uncertainty(totals)
    by_totals = replace(target, acquisition="target")
    measurements = _list_measurements(by_totals, pieces, model, totals, _Costs())
    best = max(measurements, key=lambda one: one.reduction, default=None)
    variance = _mean_relative_variance(totals)
    is_done = uncertainty <= target.uncertainty_share
    if best is None or is_done or best.reduction < _MIN_REDUCTION_AFTER_PROBES * variance:
        return replace(stop, uncertainty_share=uncertainty)
    trial, what = _isolate(target, pieces, best.key, with_energy=True)
    reason = f"{what} (reduces the variance by {format_share(best.reduction / variance)})"
    return Proposal(trial, uncertainty, reason, count)


def _propose_best(
    target: Target,
    pieces: TargetPieces,
    model: AdditiveModel,
    totals: NetworkTotals,
    costs: _Costs,
    host: Trial | None,
) -> Proposal:
    """Propose the measurement with the highest score, of a piece or of the host."""
    count, uncertainty = pieces.observation_count, _measure_uncertainty(totals)
    if uncertainty <= target.uncertainty_share:
        reason = f"the networks are known within {format_share(target.uncertainty_share)}"
        return Proposal(None, uncertainty, reason, count)
    measurements = _list_measurements(target, pieces, model, totals, costs)
    best = max(measurements, key=lambda one: one.score, default=None)
    variance = _mean_relative_variance(totals)
    rival = 0.0 if best is None else best.score * costs.duration_s
    by_host = _host_reduction(target, model, totals)
    if host is not None and by_host > max(rival, _MIN_REDUCTION * variance):
        return _propose_host(host, uncertainty, count, with_energy=False)
    if best is None:
        reason = "every piece of the networks was measured"
        return Proposal(None, uncertainty, reason, count)
    is_targeted = target.acquisition == "target"
    largest = max(one.reduction for one in measurements)
    if is_targeted and largest < _MIN_REDUCTION * variance:
        sources = totals.variance_by_source
        source = max(sources, key=lambda name: float(sources[name].sum()))
        reason = f"no measurement would help: the remaining uncertainty is {source}"
        return Proposal(None, uncertainty, reason, count)
    trial, what = _isolate(target, pieces, best.key, best.with_energy)
    reduction = f"reduces the variance by {format_share(best.reduction / variance)}"
    why = reduction if is_targeted else "largest standard deviation"
    return Proposal(trial, uncertainty, f"{what} ({why})", count, best.with_energy)


def _list_measurements(
    target: Target,
    pieces: TargetPieces,
    model: AdditiveModel,
    totals: NetworkTotals,
    costs: _Costs,
) -> list[_Measurement]:
    """Return all useful measurements of isolated pieces with their scores."""
    distinct, sums = encode_counts(pieces.networks)
    inputs = model.encoder.encode(distinct, None, model.duration.training_index)
    durations = predict_measurements(model.duration.fitted, inputs, sums)
    inputs = model.encoder.encode(distinct, durations.mean, model.energy.training_index)
    energies = predict_measurements(model.energy.fitted, inputs, sums)
    by_duration = durations.variance_reduction(totals.marginal_power_w / totals.energy_j)
    by_energy = energies.variance_reduction(1.0 / totals.energy_j) + by_duration
    if target.acquisition != "target":
        # The paper's rule: wherever the standard deviation is largest, at any cost.
        found = energies if target.acquisition == "energy" else durations
        by_energy, by_duration = np.sqrt(found.variance), np.zeros(len(distinct))
        costs = _Costs()
    return [
        _Measurement(piece.key, with_energy, reduction / cost_s, reduction)
        for at, piece in enumerate(distinct)
        for with_energy, reduction, cost_s in (
            (True, float(by_energy[at]), costs.energy_s),
            (False, float(by_duration[at]), costs.duration_s),
        )
        if reduction > 0 and pieces.lacks(piece.key, with_energy)
    ]


def _propose_host(trial: Trial, uncertainty: float, count: int, with_energy: bool) -> Proposal:
    what = f"host time of {trial.network.name or 'a layer'}"
    return Proposal(trial, uncertainty, what, count, with_energy)


def _isolate(
    target: Target, pieces: TargetPieces, key: str, with_energy: bool
) -> tuple[Trial, str]:
    """Return the trial that measures a piece in isolation, and what it measures."""
    part = pieces.parts[key]
    quantity = "energy" if with_energy else "duration"
    trial = make_isolated_trial(part, target.setup, isolated_mode(target))
    return trial, f"{quantity} of {describe_part(part)}"


def _select_related(target: Target, observations: Sequence[Observation]) -> Sequence[Observation]:
    """Return what shows kinds of the target if there is very much: every choice needs a fit."""
    if len(observations) <= MANY_OBSERVATIONS:
        return observations
    labels = {piece.label for piece in read_target(target, ()).pieces}
    return select_related(observations, labels)


def _find_new_kind(pieces: TargetPieces, turn: int) -> str | None:
    """Return a piece of a kind that was measured at most ``turn`` times, at a quartile of work."""
    groups: dict[str, list[Piece]] = {}
    for piece in pieces.pieces:
        groups.setdefault(piece.label, []).append(piece)
    for label in sorted(groups):
        group = sorted(groups[label], key=lambda one: (one.size_bytes, one.flops, one.key))
        measured = sum(piece.key in pieces.energy_keys for piece in group)
        keys = [piece.key for piece in group if pieces.lacks(piece.key, with_energy=True)]
        if measured <= turn and keys:
            quartile = (0.75, 0.25)[turn]
            return keys[round(quartile * (len(keys) - 1))]
    return None


def _predict_target(
    model: AdditiveModel, pieces: TargetPieces, observations: Sequence[Observation]
) -> NetworkTotals:
    sum_error_sd_share = choose_sum_error_sd_share(decompose_observations(observations))
    return predict_totals(model, pieces.networks, sum_error_sd_share)


def _measure_uncertainty(totals: NetworkTotals) -> float:
    """Return half the 95 % interval over the energy, averaged over networks."""
    return float(np.mean(_HALF_WIDTH_SDS * np.sqrt(totals.variance) / totals.energy_j))


def _mean_relative_variance(totals: NetworkTotals) -> float:
    return float(np.mean(totals.variance / totals.energy_j**2))


def _host_reduction(target: Target, model: AdditiveModel, totals: NetworkTotals) -> float:
    """Return what timing one more network takes off the mean relative variance."""
    if target.acquisition != "target":
        return 0.0
    host_var = float(np.mean(totals.variance_by_source[HOST_TIME] / totals.energy_j**2))
    return model.host_time.variance_reduction_share * host_var


def _read_costs(observations: Iterable[Observation]) -> _Costs:
    """Return the median device time of measurements with energy and of probes."""
    energies_s: list[float] = []
    probes_s: list[float] = []
    for one in observations:
        if one.cost_s > 0 and read_isolated_part(one.trial) is not None:
            (probes_s if one.energy_j is None else energies_s).append(one.cost_s)
    energy_s = median(energies_s) if energies_s else _DEFAULT_ENERGY_COST_S
    return _Costs(energy_s, median(probes_s) if probes_s else _DEFAULT_PROBE_COST_SHARE * energy_s)
