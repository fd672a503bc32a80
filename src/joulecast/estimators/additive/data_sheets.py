"""Start a device from its data sheet, and from what other devices were measured to do.

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
from joulecast.gp.logsums.fit import fit_logsums
from joulecast.gp.logsums.inputs import LogInputs, LogObservations
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.gp.logsums.prior import LogSumProcess, prior_log_mean
from joulecast.records import DataSheet
from joulecast.records.codec import Record

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
        sheet: Its data sheet.
        observations: Steps on the device alone, without waiting for a host.
    """

    sheet: DataSheet
    observations: Sequence[DecomposedObservation]


@dataclass(frozen=True)
class SharedModel(Record):
    """What several devices were measured to do, for others to start from.

    Attributes:
        notice: Where its measurements are from, and under which licence.
        devices: Titles of the devices.
        duration: Durations of operators on any of them.
        power: Powers of operators on any of them.
        host_time: The host of one of them.
        measured_kinds: What was measured of each label.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers.
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
        times = self.host_time
        return AdditiveModel(
            "graph",
            find_power_priors(sheet).idle_w[0],
            "",
            make_sheet_encoder(sheet),
            self.duration,
            self.power,
            replace(times, sd_share=math.hypot(times.sd_share, OTHER_HOST_SD_SHARE)),
            self.sum_error_sd_share,
        )


@lru_cache(maxsize=4)
def load_shared_model(path: Path = SHARED_FIT) -> SharedModel:
    """Return the shared model in a file, by default the one that ships with the package."""
    return SharedModel.from_dict(json.loads(path.read_text(encoding="utf-8")))


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
        observed = observe_durations(device.observations, sums, operator_s)
        # Steps of one machine have more in common than steps of several.
        units = ["" if one.is_isolated else device.sheet.name for one in device.observations]
        observed = replace(observed, sums=sums.make_log_sums(operator_s, units))
        rows.append((device, inputs, observed))
    return _fit(process, rows)


def fit_shared_powers(devices: Sequence[MeasuredDevice], durations: FittedLogSums) -> FittedLogSums:
    """Fit the process of powers to those devices whose energy was measured, if there are any.

    Each device's own durations tell how busy it was.
    """
    metered = [
        replace(
            one, observations=[row for row in one.observations if row.energy_j and row.duration_s]
        )
        for one in devices
    ]
    rows = []
    for device in [one for one in metered if one.observations] or metered[:1]:
        encoder, own = make_sheet_encoder(device.sheet), durations
        sums = encode_decomposed(encoder, device.observations)
        if device.observations:
            own = extend_durations(encoder, durations, device.observations)
        operator_s = predict_durations(encoder, own, sums).by_operator
        powers = [
            ObservedPower(one, one.energy_j / one.duration_s, one.energy_relative_var)
            for one in device.observations
            if one.energy_j and one.duration_s
        ]
        inputs = encoder.encode_powers(sums.operators, operator_s)
        rows.append((device, inputs, observe_powers(powers, sums, operator_s)))
    return _fit(define_shared_powers(), rows)


def _fit(
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
