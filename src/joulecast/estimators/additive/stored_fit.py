"""The fit of `additive` as it is stored in a profile, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.estimators.additive.device_model import AdditiveModel
from joulecast.estimators.additive.host_time import HostTimeModel
from joulecast.estimators.additive.measured_kinds import MeasuredKind
from joulecast.estimators.additive.measured_networks import MeasuredNetwork
from joulecast.estimators.additive.transfer import DeviceEncoder
from joulecast.gp.logsums.stored import PackedArray, StoredLogSums
from joulecast.records.codec import Record, omit_default

# Version of the stored fit; other versions are fitted again.
FIT_VERSION = 6


@dataclass(frozen=True)
class StoredFit(Record):
    """A fit of the estimator.

    Attributes:
        fitted_count: Number of observations that hyper-parameters were fitted to.
        identities: Identities of all observations that the model is conditioned on.
        inference: The fit to inferences, where these have one of their own.
    """

    version: int
    fitted_count: int
    identities: PackedArray
    sum_error_sd_share: float
    measured_networks: Mapping[str, MeasuredNetwork]
    measured_kinds: Mapping[str, MeasuredKind]
    mode: str
    idle_w: float
    unit: str
    encoder: DeviceEncoder
    duration: StoredLogSums
    power: StoredLogSums
    host_time: HostTimeModel
    inference: StoredFit | None = omit_default(None)

    def restore_model(self) -> AdditiveModel:
        """Return the model of the device."""
        return AdditiveModel(
            self.mode,
            self.idle_w,
            self.unit,
            self.encoder,
            self.duration.restore(),
            self.power.restore(),
            self.host_time,
        )
