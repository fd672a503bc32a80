"""Predict durations on a device that was never measured, by what others were measured at.

    others: data sheets, kernels, steps ─┐
    left out: data sheet (and anchors)  ─┴─▶ durations of its kernels and steps, with intervals

The law is Joulecast's own (``estimators/additive/data_sheets.py``), fitted as the one that ships.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from kernel_choice import AnyStep, count_row
from neusight_data import KernelRow
from published_steps import read_published_steps
from shared_devices import collect_devices, observe_row

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.data_sheets import (
    fit_shared_durations,
    make_sheet_encoder,
)
from joulecast.estimators.additive.fit import extend_durations
from joulecast.estimators.additive.predict import predict_durations
from joulecast.estimators.base import Floats
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.records import DataSheet


@dataclass(frozen=True)
class PredictedDurations:
    """Log-normal predictions, one for each row."""

    log_means: Floats
    log_sds: Floats

    @property
    def medians_s(self) -> Floats:
        """Their medians."""
        return np.asarray(np.exp(self.log_means))

    def interval_s(self, z: float) -> tuple[Floats, Floats]:
        """Return the bounds of central intervals."""
        reach = z * self.log_sds
        return np.exp(self.log_means - reach), np.exp(self.log_means + reach)


@dataclass(frozen=True)
class DurationLaw:
    """The law fitted to other devices, and to anchors of the device if there are any."""

    sheet: DataSheet
    fitted: FittedLogSums

    def predict(self, rows: Sequence[KernelRow | AnyStep]) -> PredictedDurations:
        """Return the durations of kernels or steps."""
        encoder = make_sheet_encoder(self.sheet)
        # Steps of training are sums over forward and backward passes (``additive/passes.py``).
        sums = encoder.sum_layers([count_row(row) for row in rows])
        logs = predict_durations(encoder, self.fitted, sums).logs
        return PredictedDurations(logs.log_mean, np.sqrt(logs.log_variance))

    def condition(self, anchors: Sequence[KernelRow]) -> DurationLaw:
        """Return the law given kernels of the device, as a profile with anchors has it."""
        if not anchors:
            return self
        encoder, rows = make_sheet_encoder(self.sheet), [observe_row(row) for row in anchors]
        return replace(self, fitted=extend_durations(encoder, self.fitted, rows))


def fit_law(device: str, kernels: Iterable[KernelRow], steps: Iterable[AnyStep]) -> DurationLaw:
    """Fit the law for a device to rows of others.

    Args:
        device: The device that is left out.
        kernels: Kernels of any devices; those of the device itself are not used.
        steps: Likewise steps. Published steps are added to them.
    """
    others = collect_devices(
        [row for row in kernels if row.device != device],
        [
            *(row for row in steps if row.device != device),
            *read_published_steps(without=device),
        ],
    )
    return DurationLaw(find_data_sheet(device), fit_shared_durations(others))
