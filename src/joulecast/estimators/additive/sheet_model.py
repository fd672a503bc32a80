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

from joulecast.estimators.additive.datasheet_power import find_power_priors
from joulecast.estimators.additive.decompose import choose_sum_error_sd_share
from joulecast.estimators.additive.device_model import AdditiveModel
from joulecast.estimators.additive.host_time import OTHER_HOST_SD_SHARE, HostTimeModel
from joulecast.estimators.additive.measured_kinds import (
    MeasuredKind,
    share_half_precisions,
    summarise_kinds,
)
from joulecast.estimators.additive.shared_fit import (
    MeasuredDevice,
    fit_shared_durations,
    fit_shared_powers,
    make_sheet_encoder,
)
from joulecast.gp.logsums.posterior import FittedLogSums
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
        duration: Durations of leaves on any of them.
        power: Powers of leaves on any of them.
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
