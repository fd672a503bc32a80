"""Start a device from what others have learnt: their residuals are basis functions of its means.

    r_s   residual of a leaf on device s: its posterior mean less ln of the mean of s
    z     = ln m + Σ_s a_s·r_s + δ       log duration, or log power, of a leaf on this device
    m     mean of this device, with rates of its own
    a_s   how alike the residuals of both devices are, fitted with all other hyper-parameters
    δ     residual of this device, with the prior that it has without sources

That is recursive co-kriging (Le Gratiet and Garnier, 2014). Where sources are unlike the device its
own observations make a_s small, and the fit is the one without them. The prior of δ is as wide as
it is without sources, so that own observations always outweigh them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.estimators.additive.encode import PieceEncoder
from joulecast.estimators.additive.pieces import Piece
from joulecast.gp.linalg import Floats
from joulecast.gp.logsums.fit import select_subset
from joulecast.gp.logsums.inputs import LogInputs
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.prior import multiply_prior_covariance, prior_log_mean
from joulecast.gp.logsums.process import LogSumParameters, LogSumProcess
from joulecast.gp.logsums.stored import PackedArray
from joulecast.records.codec import Record, omit_default

# Observations of a source without a posterior mean given all of them: the fit was too large.
_MAX_SOURCE_ROWS = 2000


@dataclass(frozen=True)
class DeviceEncoder(PieceEncoder):
    """Encodes leaves for a device that may start from what others have learnt.

    Attributes:
        sources: The other devices.
    """

    sources: tuple[SourceDevice, ...] = omit_default(())

    def encode_durations(self, leaves: Sequence[Piece]) -> LogInputs:
        """Return leaves as inputs of the process of durations."""
        return self._add_residuals(super().encode_durations(leaves), leaves, 0)

    def encode_powers(self, leaves: Sequence[Piece], durations_s: Floats) -> LogInputs:
        """Return leaves of given durations as inputs of the process of powers."""
        return self._add_residuals(super().encode_powers(leaves, durations_s), leaves, 1)

    def _add_residuals(self, inputs: LogInputs, leaves: Sequence[Piece], column: int) -> LogInputs:
        if not self.sources:
            return inputs
        found = [source.predict_residuals(leaves)[:, column] for source in self.sources]
        return replace(inputs, log_basis=np.column_stack(found))


@dataclass(frozen=True)
class SourceDevice(Record):
    """What one device has learnt, for others to start from.

    Attributes:
        name: Name of the device.
        profile: Key of its profile.
        encoder: Encodes leaves for that device.
        duration: Its durations.
        power: Its powers.
    """

    name: str
    profile: str
    encoder: DeviceEncoder
    duration: SourceMean
    power: SourceMean

    def predict_residuals(self, leaves: Sequence[Piece]) -> Floats:
        """Return the residuals of each leaf's duration and power on that device, P x 2."""
        new = [leaf for leaf in dict.fromkeys(leaves) if leaf.key not in self._known]
        if new:
            inputs = self.encoder.encode_durations(new)
            log_s, duration = self.duration.predict(inputs)
            powers = self.encoder.encode_powers(new, np.exp(log_s))
            residuals = np.column_stack([duration, self.power.predict(powers)[1]])
            self._known.update(zip((leaf.key for leaf in new), residuals, strict=True))
        return np.array([self._known[leaf.key] for leaf in leaves]).reshape(len(leaves), 2)

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Residuals by leaf: a campaign asks for the same ones again and again."""
        return {}


@dataclass(frozen=True)
class SourceMean(Record):
    """The posterior mean of a process, without what variances would need.

    Attributes:
        theta: The fitted hyper-parameters.
        input_weights: The posterior mean is the prior covariance with the inputs times these.
    """

    process: LogSumProcess
    theta: PackedArray
    points: PackedArray
    groups: PackedArray
    regimes: PackedArray
    identities: PackedArray
    input_weights: PackedArray

    @classmethod
    def from_fitted(cls, fitted: FittedLogSums) -> SourceMean:
        """Return the posterior mean of a fitted process."""
        inputs, weights = _find_weights(fitted)
        pack = PackedArray.pack
        return cls(
            fitted.process,
            pack(fitted.theta),
            pack(inputs.points),
            pack(inputs.groups),
            pack(inputs.regimes),
            pack(inputs.identities),
            pack(weights),
        )

    def predict(self, inputs: LogInputs) -> tuple[Floats, Floats]:
        """Return the posterior mean of log values, and by how much it exceeds the mean."""
        coefficients = self._hyper.coefficients
        known = self._known_inputs, self.input_weights.unpack()
        log_values = prior_log_mean(inputs, coefficients)
        log_values = log_values + multiply_prior_covariance(
            self.process, self._hyper, inputs, *known
        )
        plain = prior_log_mean(replace(inputs, log_basis=None), coefficients)
        return log_values, log_values - plain

    @cached_property
    def _hyper(self) -> LogSumParameters:
        return self.process.unpack(self.theta.unpack())

    @cached_property
    def _known_inputs(self) -> LogInputs:
        """The inputs that were observed; of these, covariances need no basis."""
        points = self.points.unpack()
        rest = self.groups.unpack(), self.regimes.unpack(), self.identities.unpack()
        return LogInputs(np.zeros((len(points), 0)), points, *rest)


def note_sources(sources: Sequence[SourceDevice], observation_count: int) -> tuple[str, ...]:
    """Return a sentence on the devices that a fit started from; none if there are none."""
    if not sources:
        return ()
    names = " and ".join(source.name for source in sources)
    return (
        f"Transferred from {names}: what was learnt there counts where the {observation_count} "
        "observations of this device say little.",
    )


def _find_weights(fitted: FittedLogSums) -> tuple[LogInputs, Floats]:
    """Return observed inputs, cell by cell, and the weight of each in the posterior mean."""
    if fitted.mean is not None:
        return fitted.mean.inputs, fitted.mean.input_weights
    posterior = condition_logsums(fitted, select_subset(fitted.observations, _MAX_SOURCE_ROWS))
    weights = posterior.linear.weights
    products = weights.weight * posterior.row_weights[weights.row]
    by_input = np.bincount(weights.column, products, posterior.inputs.size)
    return posterior.inputs, np.asarray(by_input, float)
