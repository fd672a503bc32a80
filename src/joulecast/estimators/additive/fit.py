"""Fit the model of a device to observations, or condition it on further ones.

Where a runtime captures graphs, layers are graph replays, which no host delays, and of an eager
step E - P0·(T - D) is the device's energy (141 networks on an H200: mean error -0.1 %, sd 1.3 %).
Where it does not, layers are eager and durations contain the host. Which of both holds is a
property of the device, read from its observations.

A device that was never measured starts from its data sheet, and from what others were measured to
do:

    device 1: data sheet, durations ─┐                               data sheet of this device
    device 2: data sheet, durations ─┼─▶ processes over (operator, hardware) ──────┤
    device 3: data sheet, energies  ─┘   the SharedModel                           ▼
                                               FittedAdditive without observations ──▶ own ones

Operators of all devices are inputs of one process of durations and one of powers. Their residuals
are shared by all devices and by those of a maker, and in part belong to a device alone: that part
is unknown, and larger, for a device that was never measured, and what is measured on a device
outweighs what others say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from joulecast.estimators.additive.encode import (
    OperatorEncoder,
    OperatorSums,
    SourceDevice,
    define_durations,
    define_powers,
    define_shared_durations,
    define_shared_powers,
    number_name,
)
from joulecast.estimators.additive.host_time import (
    BOUND_RATIO,
    EXPONENT,
    LATE_SHARE,
    MIN_OWN_STEPS,
    HostTimeModel,
    fit_host_time,
    set_pace,
)
from joulecast.estimators.additive.layers import OVERHEAD
from joulecast.estimators.additive.observations import (
    DecomposedObservation,
    MeasuredKind,
    choose_sum_error_sd_share,
    decompose_observations,
    find_idle_power,
    find_latest_unit,
    is_step,
    share_half_precisions,
    shows_host_time,
    summarise_kinds,
)
from joulecast.estimators.additive.predict import (
    AdditiveModel,
    SumPrediction,
    predict_durations,
    weigh_by_time,
)
from joulecast.estimators.additive.roofline import (
    Hardware,
    find_power_priors,
    find_roofline,
    find_sustained_roofline,
)
from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.fit import fit_logsums
from joulecast.gp.logsums.inputs import LogInputs, LogObservations
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    predict_log_totals,
)
from joulecast.gp.logsums.prior import LogSumProcess, prior_log_mean
from joulecast.gp.logsums.selection import extend_fitted, keep_linearisation
from joulecast.records import DataSheet, Observation
from joulecast.records.codec import Record, cache_on_record
from joulecast.system.errors import MissingError

# A power limit that is not known is assumed to be this much above the largest power observed.
_LIMIT_FACTOR = 1.1
# An overhead of imported runs is about this share of one.
_OVERHEAD_SHARE = 0.1
# An eager step tells nothing about the device if the device's share of its energy is below this.
_MIN_DEVICE_SHARE = 0.15
# The device does not limit a step if issuing it takes more than this share of it, or kernels less
# than that; it does at this share of the power limit.
_MOST_ISSUE_SHARE, _LEAST_BUSY_SHARE, _FULL_SHARE = 0.9, 0.6, 0.5
# How well a step tells that its kernels take no longer than it. Without this, the step of a
# ResNet-34 that its host limits left six more ResNets at +28 %, with it at +11 %.
_BOUND_SD_SHARE = 0.1
# Hosts are fitted again when there are this many times as many steps.
_REFIT_FACTOR = 1.5
# Prior of the share of its power that a device keeps in pauses of microseconds: 0 is idle power.
PAUSE_SHARE, PAUSE_SHARE_SD = 0.4, 0.3
# Relative standard deviation of an issue time from one moment to another.
_HOST_SD_SHARE = 0.15


Model = TypeVar("Model", bound=AdditiveModel)


class ObservedPower(NamedTuple):
    """The mean power of the device while it ran an observation, and its relative variance."""

    observation: DecomposedObservation
    power_w: float
    relative_var: float


def fit_model(
    observations: Sequence[Observation], sources: tuple[SourceDevice, ...] = ()
) -> AdditiveModel:
    """Fit the processes of duration and power, and the model of host time.

    Raises:
        MissingError: No layer was timed, or no energy was measured.
    """
    decomposed = sorted(decompose_observations(observations), key=_sort_key)
    mode = "graph" if any(one.mode == "graph" for one in decomposed) else "eager"
    timed = [one for one in decomposed if one.mode == mode and one.duration_s]
    metered = [one for one in decomposed if one.energy_j]
    if not timed or not metered:
        raise MissingError(
            "no energy of any layer was measured on this device: run `joulecast profile NET` there"
        )
    idle_w, unit = find_idle_power(observations) or 0.0, find_latest_unit(observations)
    limits_w = [one.power_limit_w for one in {seen.device for seen in observations}]
    overheads = {
        layer.kind for one in decomposed for layer in one.counts if layer.operator_class == OVERHEAD
    }
    encoder = OperatorEncoder(
        find_roofline(timed),
        tuple(sorted(overheads)),
        max((limit_w for limit_w in limits_w if limit_w is not None), default=None)
        or _LIMIT_FACTOR
        * max((one.energy_j or 0.0) / one.duration_s for one in metered if one.duration_s),
        sources=sources,
    )
    duration, sums = _fit_durations(timed, encoder), encode_decomposed(encoder, decomposed)
    busy = predict_durations(encoder, condition_logsums(duration), sums)
    host_time = fit_host_time(decomposed, busy.total, busy.variance, unit)
    limit_w = encoder.power_limit_w
    busy_steps = find_busy_steps(decomposed, busy.total, mode, host_time, limit_w)
    if busy_steps:
        duration = keep_linearisation(extend_durations(encoder, duration, busy_steps))
        busy = predict_durations(encoder, duration, sums)
    gap_s = host_time.launch_gap_s
    powers = find_powers(decomposed, busy, mode, idle_w, PAUSE_SHARE * gap_s)
    if not powers:
        raise MissingError(
            "all energy measured on this device belongs to its host: run `joulecast profile NET` "
            "there"
        )
    overhead_w = float(np.median([one.power_w for one in powers]))
    is_imported = all(one.observation.is_imported for one in powers)
    process = define_powers(encoder, idle_w, overhead_w, is_imported)
    inputs, observed = encode_powers(encoder, duration, powers)
    pause_share = PAUSE_SHARE
    if mode == "graph":
        start = FittedLogSums.start(process, process.theta_prior[0], inputs, observed)
        pause_share = fit_pause_share(start, powers, idle_w, gap_s)
        powers = find_powers(decomposed, busy, mode, idle_w, pause_share * gap_s)
        inputs, observed = encode_powers(encoder, duration, powers)
    power = fit_logsums(process, inputs, observed)
    return AdditiveModel(
        mode,
        idle_w,
        unit,
        encoder,
        duration,
        power,
        host_time,
        choose_sum_error_sd_share(decomposed),
        pause_share,
    )


def update_model(model: Model, observations: Sequence[Observation], known: Ints) -> Model:
    """Return the model conditioned on further observations, its hyper-parameters unchanged.

    ``known`` are the identities of the observations that it is conditioned on already.
    """
    encoder = model.encoder
    decomposed = sorted(decompose_observations(select_new(observations, known)), key=_sort_key)
    timed = [one for one in decomposed if one.mode == model.mode and one.duration_s]
    model = replace(
        model,
        unit=find_latest_unit(observations),
        idle_w=find_idle_power(observations) or model.idle_w,
        duration=extend_durations(encoder, model.duration, timed) if timed else model.duration,
    )
    if not decomposed:
        return model
    sums = encode_decomposed(encoder, decomposed)
    busy = predict_durations(encoder, model.duration, sums)
    limit_w = encoder.power_limit_w
    if busy_steps := find_busy_steps(decomposed, busy.total, model.mode, model.host_time, limit_w):
        model = replace(model, duration=extend_durations(encoder, model.duration, busy_steps))
        busy = predict_durations(encoder, model.duration, sums)
    paused_s = model.pause_share * model.host_time.launch_gap_s
    powers = find_powers(decomposed, busy, model.mode, model.idle_w, paused_s)
    if powers:
        inputs, observed = encode_powers(encoder, model.duration, powers)
        model = replace(model, power=_extend(model.power, inputs, observed))
    if any(one.mode == "eager" for one in decomposed) and model.mode == "graph":
        model = replace(model, host_time=_update_host_time(model, observations))
    return model


def _update_host_time(model: AdditiveModel, observations: Sequence[Observation]) -> HostTimeModel:
    """Return the host at the pace of its own steps, or fitted again where there are many more."""
    eager = [one for one in observations if is_step(one) and shows_host_time(one)]
    is_refit = len(eager) >= max(MIN_OWN_STEPS, _REFIT_FACTOR * model.host_time.step_count)
    if not is_refit:
        eager = [one for one in eager if one.device.unit == model.unit]
    decomposed = decompose_observations(eager)
    busy = predict_durations(
        model.encoder, model.duration, encode_decomposed(model.encoder, decomposed)
    )
    if is_refit:
        return fit_host_time(decomposed, busy.total, busy.variance, model.unit)
    return set_pace(model.host_time, decomposed, busy.total)


def extend_durations(
    encoder: OperatorEncoder, duration: FittedLogSums, timed: Sequence[DecomposedObservation]
) -> FittedLogSums:
    """Return the process of durations with further observations of a device."""
    sums = encode_decomposed(encoder, timed)
    operator_s = predict_durations(encoder, duration, sums).by_operator
    inputs = encoder.encode_durations(sums.operators)
    return _extend(duration, inputs, observe_durations(timed, sums, operator_s))


def identify_observations(observations: Sequence[Observation]) -> Ints:
    """Return the identities of all usable observations, in order."""
    return np.unique(np.array([_identify(one) for one in observations if is_step(one)], np.int64))


def select_new(observations: Sequence[Observation], known: Ints) -> list[Observation]:
    """Return the usable observations whose identities are not known."""
    seen = set(known.tolist())
    return [one for one in observations if is_step(one) and _identify(one) not in seen]


def encode_decomposed(
    encoder: OperatorEncoder, decomposed: Sequence[DecomposedObservation]
) -> OperatorSums:
    """Return observations as sums over operators."""
    flags = [not one.is_isolated for one in decomposed]
    return encoder.sum_layers([one.counts for one in decomposed], flags)


def observe_durations(
    timed: Sequence[DecomposedObservation],
    sums: OperatorSums,
    operator_s: Floats,
    units: Sequence[str] = (),
) -> LogObservations:
    """Return the rows of durations, given about how long each operator takes.

    Steps of one unit have an error in common; without ``units``, no steps do.
    """
    values_s = np.array([one.duration_s or 0.0 for one in timed])
    known = np.array([one.duration_relative_var for one in timed])
    log_sums = sums.make_log_sums(operator_s, units)
    return LogObservations(log_sums, np.log(values_s), known, _stratify(timed))


def encode_powers(
    encoder: OperatorEncoder, duration: FittedLogSums, powers: Sequence[ObservedPower]
) -> tuple[LogInputs, LogObservations]:
    """Return the operators of observed powers as inputs of their process, and its rows."""
    own = [one.observation for one in powers]
    sums = encode_decomposed(encoder, own)
    operator_s = predict_durations(encoder, duration, sums).by_operator
    log_sums = sums.make_log_sums(operator_s, [one.unit for one in own])
    values_w = np.array([one.power_w for one in powers])
    known = np.array([one.relative_var for one in powers])
    means = weigh_by_time(log_sums, operator_s)
    inputs = encoder.encode_powers(sums.operators, operator_s)
    return inputs, LogObservations(means, np.log(values_w), known, _stratify(own))


def find_busy_steps(
    decomposed: Sequence[DecomposedObservation],
    device_s: Floats,
    mode: str,
    host: HostTimeModel,
    power_limit_w: float,
) -> list[DecomposedObservation]:
    """Return the eager steps of networks that show the device time, as observations of that.

    Where the device limits a step, T = (H^q + (D + gaps)^q)^(1/q) is solved for D, its own time;
    any other step is at least as long as that. Where layers are eager too, durations are those of
    steps anyway. ``device_s`` is the time that their layers suggest.
    """
    found: list[DecomposedObservation] = []
    if mode != "graph":
        return found
    for one, expected_s in zip(decomposed, device_s.tolist(), strict=True):
        if one.mode != "eager" or one.is_isolated or not one.issue_s or not one.duration_s:
            continue
        step_s, gaps_s = one.duration_s, host.launch_gap_s * one.launches
        is_early = one.issue_s <= LATE_SHARE * step_s
        is_as_expected = step_s <= BOUND_RATIO * (expected_s + gaps_s)
        is_full = (one.energy_j or 0.0) >= _FULL_SHARE * power_limit_w * step_s
        by_host = min(one.issue_s / step_s, 1.0) ** EXPONENT
        busy_s = step_s * (1.0 - by_host) ** (1.0 / EXPONENT) - gaps_s
        if (
            one.issue_s <= _MOST_ISSUE_SHARE * step_s
            and (is_early or is_as_expected or is_full)
            and busy_s >= _LEAST_BUSY_SHARE * step_s
        ):
            host_error = _HOST_SD_SHARE * by_host / (1.0 - by_host)
            gap_error = host.launch_gap_sd_s * one.launches / busy_s
        elif expected_s > step_s - gaps_s > 0:
            # Whatever limits a step, its kernels take no longer than it.
            busy_s = step_s - gaps_s
            host_error, gap_error = _BOUND_SD_SHARE, 0.0
        else:
            continue
        relative_var = one.duration_relative_var + host_error**2 + gap_error**2
        found.append(replace(one, mode=mode, duration_s=busy_s, duration_relative_var=relative_var))
    return found


def find_powers(
    decomposed: Sequence[DecomposedObservation],
    busy: SumPrediction,
    mode: str,
    idle_w: float,
    paused_s: float,
) -> list[ObservedPower]:
    """Return the mean power of the device during each observation with energy.

    A pause between two launches counts as ``paused_s`` of running.
    """
    found = []
    for one, busy_s, busy_var in zip(decomposed, busy.total, busy.variance, strict=True):
        if not one.energy_j or not one.duration_s:
            continue
        energy_j, device_s, relative_var = one.energy_j, one.duration_s, one.energy_relative_var
        if mode == "graph" and one.mode == "eager":
            device_s = min(float(busy_s) + paused_s * one.launches, one.duration_s)
            energy_j = one.energy_j - idle_w * (one.duration_s - device_s)
            if energy_j < _MIN_DEVICE_SHARE * one.energy_j:
                continue
            # With the duration, both the energy and what it is divided by change.
            share = 1.0 - idle_w * device_s / energy_j
            relative_var *= (one.energy_j / energy_j) ** 2
            relative_var += float(busy_var) / device_s**2 * share**2
        found.append(ObservedPower(one, energy_j / device_s, relative_var))
    return found


def fit_pause_share(
    process: FittedLogSums, powers: Sequence[ObservedPower], idle_w: float, gap_s: float
) -> float:
    """Fit the share of its power that a device keeps in pauses to steps, given isolated layers.

    With prior share s₀, residuals r of the log powers of steps around what layers predict, their
    joint covariance C, and x = ∂r/∂s:  s = s₀ - xᵀC⁻¹r / (xᵀC⁻¹x + σ⁻²).
    """
    is_alone = np.array([one.observation.is_isolated for one in powers])
    alone, steps = np.flatnonzero(is_alone), np.flatnonzero(~is_alone)
    if not (alone.size and steps.size):
        return PAUSE_SHARE
    observed = process.observations.take(steps)
    used, sums = observed.sums.narrow()
    posterior = condition_logsums(process, alone)
    found = predict_log_totals(posterior, process.inputs.take(used), sums, joint=True)
    assert found.log_covariance is not None
    cov = found.log_covariance + np.diag(process.noise_variance[steps])
    some = [powers[at] for at in steps.tolist()]
    # All of a step but waiting: what runs, and the pauses beside it.
    slopes = np.array(
        [
            (idle_w / one.power_w - 1.0)
            * min(gap_s * one.observation.launches / (one.observation.duration_s or 1.0), 1.0)
            for one in some
        ]
    )
    solved = np.linalg.solve(cov, np.column_stack([slopes, observed.log_values - found.log_mean]))
    change = -(slopes @ solved[:, 1]) / (slopes @ solved[:, 0] + PAUSE_SHARE_SD**-2)
    return float(np.clip(PAUSE_SHARE + change, 0.0, 1.0))


def _stratify(decomposed: Sequence[DecomposedObservation]) -> Ints:
    """Return the stratum of each observation: its label, or all networks together."""
    names = [next(iter(one.counts)).label if one.is_isolated else "networks" for one in decomposed]
    return np.array(list(map(number_name, names)), np.int64)


@cache_on_record
def _identify(one: Observation) -> int:
    values = one.trial.key, one.run, one.taken_at_s, one.energy_j, one.duration_s
    return number_name(" ".join(map(str, values)))


def _sort_key(one: DecomposedObservation) -> tuple[str, float, float]:
    return one.trial_key, one.energy_j or 0.0, one.duration_s or 0.0


def _fit_durations(
    timed: Sequence[DecomposedObservation], encoder: OperatorEncoder
) -> FittedLogSums:
    sums = encode_decomposed(encoder, timed)
    inputs = encoder.encode_durations(sums.operators)
    # A step contains the overhead of its share of a run.
    runs_s = [
        (one.duration_s or 0.0) / count
        for one in timed
        for layer, count in one.counts.items()
        if layer.operator_class == OVERHEAD
    ]
    overhead_s = _OVERHEAD_SHARE * float(np.median(runs_s)) if runs_s else 1.0
    process = define_durations(encoder, overhead_s, all(one.is_imported for one in timed))
    operator_s = np.exp(prior_log_mean(inputs, process.medians))
    return fit_logsums(process, inputs, observe_durations(timed, sums, operator_s))


def _extend(
    fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations
) -> FittedLogSums:
    """Return the process with further observations of inputs, some of which it may contain."""
    size = fitted.inputs.size
    if not size:
        start = FittedLogSums.start(fitted.process, fitted.theta, inputs, observations)
        return keep_linearisation(start)
    order = np.argsort(fitted.inputs.identities, kind="stable")
    place = np.searchsorted(fitted.inputs.identities[order], inputs.identities)
    found = order[np.minimum(place, size - 1)]
    is_known = fitted.inputs.identities[found] == inputs.identities
    column = np.where(is_known, found, size + np.cumsum(~is_known) - 1)
    observations = replace(observations, sums=observations.sums.renumber(column))
    return extend_fitted(fitted, inputs.take(np.flatnonzero(~is_known)), observations)


SHARED_FIT = Path(__file__).parents[2] / "profiles" / "shared" / "gpus.json"
"""The shared fit that ships with the package; benchmarks/devices makes it."""
# A network of many different layers says little about hyper-parameters, and takes the place of many
# single ones among those that they are fitted to: with such networks, steps on a left-out RTX 4090
# were off by 64 %.
_MAX_ROW_INPUTS = 40


@dataclass(frozen=True)
class MeasuredDevice:
    """A device and what was measured on it.

    Attributes:
        observations: Steps on the device alone, without waiting for a host.
    """

    sheet: DataSheet
    observations: Sequence[DecomposedObservation]


@dataclass(frozen=True)
class SharedModel(Record):
    """What several devices were measured to do, for others to start from.

    Attributes:
        notice: Where its measurements are from, and under which licence.
        host_time: The host of one of them.
    """

    notice: str
    devices: tuple[str, ...]
    duration: FittedLogSums
    power: FittedLogSums
    host_time: HostTimeModel
    measured_kinds: Mapping[str, MeasuredKind]
    sum_error_sd_share: float

    def start_model(self, sheet: DataSheet) -> AdditiveModel:
        """Return the model of a device that was never measured."""
        return AdditiveModel(
            "graph",
            find_power_priors(sheet).idle_w[0],
            "",
            make_sheet_encoder(sheet),
            self.duration,
            self.power,
            replace(self.host_time.for_any_host(), step_count=0),
            self.sum_error_sd_share,
            PAUSE_SHARE,
        )


@cache
def load_shared_model() -> SharedModel:
    """Return the shared model that ships with the package."""
    return SharedModel.from_dict(json.loads(SHARED_FIT.read_text(encoding="utf-8")))


def note_sheet(observation_count: int) -> str:
    """Return a sentence on what an estimate from a data sheet rests on."""
    others = f"{len(load_shared_model().devices)} GPUs that were measured"
    if not observation_count:
        return (
            f"Nothing was measured on this device: estimated from its data sheet and from {others}."
        )
    return (
        f"From {observation_count} observations of this device; where they say little, from its "
        f"data sheet and from {others}."
    )


def make_sheet_encoder(sheet: DataSheet, is_fitted: bool = False) -> OperatorEncoder:
    """Return the encoder of a device that shares its model with others.

    ``is_fitted`` says whether the model is fitted to measurements of the device.
    """
    return OperatorEncoder(
        find_sustained_roofline(sheet),
        (),
        sheet.power_limit_w,
        hardware=Hardware.from_data_sheet(sheet, is_fitted),
    )


def fit_shared_model(
    timed: Sequence[MeasuredDevice],
    metered: Sequence[MeasuredDevice],
    host_time: HostTimeModel,
    notice: str = "",
) -> SharedModel:
    """Fit durations and powers to several devices."""
    duration = fit_shared_durations(timed)
    observations = [row for one in timed for row in one.observations]
    titles = (one.sheet.title for one in (*timed, *metered))
    return SharedModel(
        notice,
        tuple(dict.fromkeys(titles)),
        duration,
        fit_shared_powers(metered, duration),
        host_time,
        share_half_precisions(summarise_kinds(observations, splits_passes=True)),
        choose_sum_error_sd_share(observations),
    )


def fit_shared_durations(devices: Sequence[MeasuredDevice]) -> FittedLogSums:
    """Fit the process of durations to several devices."""
    process = define_shared_durations()
    rows = []
    for device in devices:
        encoder = make_sheet_encoder(device.sheet, is_fitted=True)
        sums = encode_decomposed(encoder, device.observations)
        inputs = encoder.encode_durations(sums.operators)
        operator_s = np.exp(prior_log_mean(inputs, process.medians))
        # Steps of one machine have more in common than steps of several.
        units = ["" if one.is_isolated else device.sheet.name for one in device.observations]
        observed = observe_durations(device.observations, sums, operator_s, units)
        rows.append((device, inputs, observed))
    return _fit_devices(process, rows)


def fit_shared_powers(devices: Sequence[MeasuredDevice], durations: FittedLogSums) -> FittedLogSums:
    """Fit the process of powers to those devices whose energy was measured, if there are any.

    Each device's own durations tell how busy it was.
    """
    observed = []
    for device in devices:
        powers = [
            ObservedPower(one, one.energy_j / one.duration_s, one.energy_relative_var)
            for one in device.observations
            if one.energy_j and one.duration_s
        ]
        observed.append((device, powers))
    rows = []
    for device, powers in [one for one in observed if one[1]] or observed[:1]:
        encoder, own = make_sheet_encoder(device.sheet), durations
        if powers:
            own = extend_durations(encoder, durations, [one.observation for one in powers])
        rows.append((device, *encode_powers(encoder, own, powers)))
    return _fit_devices(define_shared_powers(), rows)


def _fit_devices(
    process: LogSumProcess, rows: Sequence[tuple[MeasuredDevice, LogInputs, LogObservations]]
) -> FittedLogSums:
    """Fit a process to the rows of several devices, each in strata of its own."""
    inputs: LogInputs | None = None
    for device, own_inputs, own in rows:
        assert own.strata is not None
        own = replace(own, strata=own.strata ^ number_name(device.sheet.name))
        if inputs is None:
            inputs, observations = own_inputs, own
        else:
            moved = own.sums.renumber(inputs.size + np.arange(own_inputs.size))
            observations = observations.append(replace(own, sums=moved))
            inputs = inputs.append(own_inputs)
    assert inputs is not None
    return fit_logsums(process, inputs, observations, max_row_inputs=_MAX_ROW_INPUTS)
