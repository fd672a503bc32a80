"""Fit one model to several devices, so that another one can start from all of them.

    device 1: data sheet, durations ─┐
    device 2: data sheet, durations ─┼─▶ processes over (leaf, hardware) ─▶ any data sheet
    device 3: data sheet, energies  ─┘

Leaves of all devices are inputs of one process of durations and one of powers. Their residuals are
shared by all devices and by those of a maker, and in part belong to a device alone: that part is
unknown, and larger, for a device that was never measured, and what is measured on a device
outweighs what others say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.device_model import predict_durations
from joulecast.estimators.additive.encode import number_name
from joulecast.estimators.additive.hardware import Hardware, find_sustained_roofline
from joulecast.estimators.additive.model_fit import extend_durations
from joulecast.estimators.additive.observed_rows import (
    ObservedPower,
    encode_decomposed,
    observe_durations,
    observe_powers,
)
from joulecast.estimators.additive.processes import define_shared_durations, define_shared_powers
from joulecast.estimators.additive.transfer import DeviceEncoder
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
from joulecast.records import DataSheet

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


def make_sheet_encoder(sheet: DataSheet, is_fitted: bool = False) -> DeviceEncoder:
    """Return the encoder of a device that shares its model with others.

    Args:
        sheet: Its data sheet.
        is_fitted: Whether the model is fitted to measurements of the device.
    """
    return DeviceEncoder(
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
    inputs = encoder.encode_durations(sums.leaves)
    leaf_s = np.exp(prior_log_mean(inputs, _find_medians(process)))
    rows = observe_durations(device.observations, sums, leaf_s)
    # Steps of one machine have more in common than steps of several.
    units = ["" if one.is_isolated else device.sheet.name for one in device.observations]
    return inputs, _stratify(replace(rows, sums=sums.make_log_sums(leaf_s, units)), device)


def _encode_powers(device: MeasuredDevice, durations: FittedLogSums) -> _Rows:
    encoder = make_sheet_encoder(device.sheet)
    sums = encode_decomposed(encoder, device.observations)
    if device.observations:
        durations = extend_durations(encoder, durations, device.observations)
    leaf_s = predict_durations(encoder, durations, sums).leaf
    powers = [
        ObservedPower(one, one.energy_j / one.duration_s, one.energy_relative_var)
        for one in device.observations
        if one.energy_j and one.duration_s
    ]
    rows = _stratify(observe_powers(powers, sums, leaf_s), device)
    return encoder.encode_powers(sums.leaves, leaf_s), rows


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
