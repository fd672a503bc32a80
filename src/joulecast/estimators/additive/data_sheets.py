"""Start a device from its data sheet, and from what other devices were measured to do.

shared fit of several devices ─┐
data sheet of this device ─────┴─▶ FittedAdditive without observations ──▶ condition on own ones
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from joulecast.estimators.additive.encode import OperatorEncoder, number_name
from joulecast.estimators.additive.fit import (
    ObservedPower,
    encode_decomposed,
    extend_durations,
    observe_durations,
    observe_powers,
)
from joulecast.estimators.additive.host_time import OTHER_HOST_SD_SHARE, HostTimeModel
from joulecast.estimators.additive.measured import (
    MeasuredKind,
    share_half_precisions,
    summarise_kinds,
)
from joulecast.estimators.additive.observations import (
    DecomposedObservation,
    choose_sum_error_sd_share,
)
from joulecast.estimators.additive.predict import AdditiveModel, predict_durations
from joulecast.estimators.additive.processes import define_shared_durations, define_shared_powers
from joulecast.estimators.additive.roofline import (
    Hardware,
    find_power_priors,
    find_sustained_roofline,
)
from joulecast.gp.linalg import Floats, WeightedSums
from joulecast.gp.logsums.fit import fit_logsums
from joulecast.gp.logsums.inputs import (
    LogInputs,
    LogObservations,
    LogSums,
    append_inputs,
    append_rows,
)
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.gp.logsums.prior import prior_log_mean
from joulecast.gp.logsums.process import LogSumProcess
from joulecast.gp.logsums.stored import StoredLogSums
from joulecast.records import DataSheet
from joulecast.records.codec import Record

SHARED_FIT = Path(__file__).parents[2] / "profiles" / "shared" / "gpus.json"
"""The shared fit that ships with the package; benchmarks/devices makes it."""


@dataclass(frozen=True)
class SharedModel:
    """What several devices were measured to do, for others to start from.

    Attributes:
        devices: Titles of the devices.
        duration: Durations of operators on any of them.
        power: Powers of operators on any of them.
        host_time: The host of one of them.
        measured_kinds: What was measured of each label.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers.
    """

    devices: tuple[str, ...]
    duration: FittedLogSums
    power: FittedLogSums
    host_time: HostTimeModel
    measured_kinds: Mapping[str, MeasuredKind]
    sum_error_sd_share: float

    def start_model(self, sheet: DataSheet) -> AdditiveModel:
        """Return the model of a device that was never measured."""
        times = self.host_time
        return AdditiveModel(
            "graph",
            find_power_priors(sheet).idle_w[0],
            "",
            make_sheet_encoder(sheet),
            self.duration,
            self.power,
            replace(times, sd_share=math.hypot(times.sd_share, OTHER_HOST_SD_SHARE)),
        )


def fit_shared_model(
    timed: Sequence[MeasuredDevice], metered: Sequence[MeasuredDevice], host_time: HostTimeModel
) -> SharedModel:
    """Fit durations and powers to several devices.

    Args:
        timed: Devices whose durations are shared.
        metered: Devices whose powers are shared.
        host_time: The host of one of them.
    """
    duration = fit_shared_durations(timed)
    observations = [row for one in timed for row in one.observations]
    titles = (one.sheet.title for one in (*timed, *metered))
    return SharedModel(
        tuple(dict.fromkeys(titles)),
        duration,
        fit_shared_powers(metered, duration),
        host_time,
        share_half_precisions(summarise_kinds(observations, splits_passes=True)),
        choose_sum_error_sd_share(observations),
    )


@dataclass(frozen=True)
class StoredSharedModel(Record):
    """A shared model as JSON.

    Attributes:
        notice: Where its measurements are from, and under which licence.
    """

    notice: str
    devices: tuple[str, ...]
    duration: StoredLogSums
    power: StoredLogSums
    host_time: HostTimeModel
    measured_kinds: Mapping[str, MeasuredKind]
    sum_error_sd_share: float

    @classmethod
    def from_model(cls, model: SharedModel, notice: str) -> StoredSharedModel:
        """Return what is stored of a shared model."""
        return cls(
            notice,
            model.devices,
            StoredLogSums.from_fitted(model.duration),
            StoredLogSums.from_fitted(model.power),
            model.host_time,
            model.measured_kinds,
            model.sum_error_sd_share,
        )

    def restore(self) -> SharedModel:
        """Return the shared model."""
        return SharedModel(
            self.devices,
            self.duration.restore(),
            self.power.restore(),
            self.host_time,
            self.measured_kinds,
            self.sum_error_sd_share,
        )


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


@lru_cache(maxsize=4)
def load_shared_model(path: Path = SHARED_FIT) -> SharedModel:
    """Return the shared model in a file, by default the one that ships with the package."""
    return StoredSharedModel.from_dict(json.loads(path.read_text(encoding="utf-8"))).restore()


_Rows = tuple[LogInputs, LogObservations]
# A network of many different layers says little about hyper-parameters, and takes the place of many
# single ones among those that they are fitted to: with such networks, steps on a left-out RTX 4090
# were off by 64 %.
_MAX_ROW_INPUTS = 40


@dataclass(frozen=True)
class MeasuredDevice:
    """A device and what was measured on it.

    Attributes:
        sheet: Its data sheet.
        observations: Steps on the device alone, without waiting for a host.
    """

    sheet: DataSheet
    observations: Sequence[DecomposedObservation]


def make_sheet_encoder(sheet: DataSheet, is_fitted: bool = False) -> OperatorEncoder:
    """Return the encoder of a device that shares its model with others.

    Args:
        sheet: Its data sheet.
        is_fitted: Whether the model is fitted to measurements of the device.
    """
    return OperatorEncoder(
        find_sustained_roofline(sheet),
        (),
        sheet.power_limit_w,
        hardware=Hardware.from_data_sheet(sheet, is_fitted),
    )


def fit_shared_durations(devices: Sequence[MeasuredDevice]) -> FittedLogSums:
    """Fit the process of durations to several devices."""
    process = define_shared_durations()
    return _fit(process, [_encode_durations(one, process) for one in devices])


def fit_shared_powers(devices: Sequence[MeasuredDevice], durations: FittedLogSums) -> FittedLogSums:
    """Fit the process of powers to those devices whose energy was measured, if there are any.

    Args:
        devices: The devices. Each one's own durations tell how busy it was.
        durations: The process of durations, fitted to these devices or to others.
    """
    metered = [
        replace(
            one, observations=[row for row in one.observations if row.energy_j and row.duration_s]
        )
        for one in devices
    ]
    some = [one for one in metered if one.observations] or metered[:1]
    return _fit(define_shared_powers(), [_encode_powers(one, durations) for one in some])


def _encode_durations(device: MeasuredDevice, process: LogSumProcess) -> _Rows:
    encoder = make_sheet_encoder(device.sheet, is_fitted=True)
    sums = encode_decomposed(encoder, device.observations)
    inputs = encoder.encode_durations(sums.operators)
    operator_s = np.exp(prior_log_mean(inputs, _find_medians(process)))
    rows = observe_durations(device.observations, sums, operator_s)
    # Steps of one machine have more in common than steps of several.
    units = ["" if one.is_isolated else device.sheet.name for one in device.observations]
    return inputs, _stratify(replace(rows, sums=sums.make_log_sums(operator_s, units)), device)


def _encode_powers(device: MeasuredDevice, durations: FittedLogSums) -> _Rows:
    encoder = make_sheet_encoder(device.sheet)
    sums = encode_decomposed(encoder, device.observations)
    if device.observations:
        durations = extend_durations(encoder, durations, device.observations)
    operator_s = predict_durations(encoder, durations, sums).by_operator
    powers = [
        ObservedPower(one, one.energy_j / one.duration_s, one.energy_relative_var)
        for one in device.observations
        if one.energy_j and one.duration_s
    ]
    rows = _stratify(observe_powers(powers, sums, operator_s), device)
    return encoder.encode_powers(sums.operators, operator_s), rows


def _find_medians(process: LogSumProcess) -> Floats:
    return np.array([median for median, _ in process.coefficients])


def _stratify(rows: LogObservations, device: MeasuredDevice) -> LogObservations:
    """Return observations in strata of this device alone."""
    assert rows.strata is not None
    return replace(rows, strata=rows.strata ^ number_name(device.sheet.name))


def _fit(process: LogSumProcess, rows: Sequence[_Rows]) -> FittedLogSums:
    inputs, observations = rows[0]
    for more_inputs, more in rows[1:]:
        observations = _append_observations(observations, more, inputs.size)
        inputs = append_inputs(inputs, more_inputs)
    return fit_logsums(process, inputs, observations, max_row_inputs=_MAX_ROW_INPUTS)


def _append_observations(
    left: LogObservations, right: LogObservations, offset: int
) -> LogObservations:
    """Return the observations of both, those on the right over inputs after the left ones."""
    counts = right.sums.counts
    moved = WeightedSums(counts.size, counts.row, counts.column + offset, counts.weight)
    assert left.strata is not None and right.strata is not None
    return LogObservations(
        LogSums(
            append_rows(left.sums.counts, moved),
            append_rows(left.sums.structures, right.sums.structures),
            np.concatenate([left.sums.identities, right.sums.identities]),
        ),
        np.concatenate([left.log_values, right.log_values]),
        np.concatenate([left.log_variance, right.log_variance]),
        np.concatenate([left.strata, right.strata]),
    )
