"""Start a device from what another has learnt and from the data sheets of both.

    m_s, m_t  means of leaves by the data sheets of the other device s and of this one
    r         = z_s - ln m_s         how far a leaf of s is from its data sheet, by the fit of s
    z         = ln m_t + a·r + δ     log duration, or log power, of a leaf on this device

A layer that takes twice what the rates of one data sheet suggest takes about twice what those of
another suggest, and a power is about as far from its share of the power limit: a is about one, and
between two devices of one data sheet nothing changes. Rates that were fitted to whole networks
would not do in the place of those of data sheets, since the work of networks hardly tells FLOPs
from bytes. Overheads of runs belong to hosts and scripts, and take as long as before.

Unlike the prior of sources, that of δ is only as wide as devices differ whose data sheets are
known, so that nothing has to be measured on this one. Its own observations then fit a, δ and all
coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.estimators.additive.encode import (
    CLASS,
    DURATION_AXES,
    KIND,
    POWER_AXES,
    OperatorEncoder,
    SourceDevice,
)
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.additive.fit import (
    encode_decomposed,
    find_powers,
    identify_observations,
    observe_durations,
    observe_powers,
)
from joulecast.estimators.additive.host_time import fit_host_time
from joulecast.estimators.additive.layers import SetupLayer
from joulecast.estimators.additive.observations import (
    choose_sum_error_sd_share,
    decompose_observations,
    summarise_kinds,
    summarise_networks,
)
from joulecast.estimators.additive.predict import predict_durations
from joulecast.estimators.additive.roofline import (
    LEVEL_LOG_SD,
    find_power_priors,
    find_sustained_roofline,
)
from joulecast.gp.linalg import Floats
from joulecast.gp.logsums.fit import fit_logsums
from joulecast.gp.logsums.inputs import ALL_INPUTS
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.prior import KernelTerm, LogSumProcess, Prior, prior_log_mean
from joulecast.gp.logsums.stored import PackedArray
from joulecast.gp.logsums.totals import predict_log_means
from joulecast.records import DataSheet, Observation

# Log standard deviations of overheads, whose host is another one.
_OVERHEAD_LOG_SD = 0.5
# Share of the residuals of the other device.
_SHARE: Prior = (1.0, 0.15)
# What data sheets do not say: all durations of a device together, those of a class of operators and
# of a kind. Cards of NVIDIA differ by about that much from what others suggest.
_LEVEL_SD: Prior = (0.15, 0.3)
_CLASS_SD: Prior = (0.1, 0.5)
_KIND_SD: Prior = (0.05, 0.5)
_DURATION_LENGTH_SCALE, _POWER_LENGTH_SCALE = (4.0, 0.7), (3.0, 0.7)


@dataclass(frozen=True)
class SheetMeans:
    """Means of leaves on a device as its data sheet suggests them.

    Attributes:
        sheet: The data sheet.
        overheads: Kinds of overheads.
        overhead_s: How long an overhead takes.
        overhead_w: What an overhead draws.
    """

    sheet: DataSheet
    overheads: tuple[str, ...]
    overhead_s: float
    overhead_w: float

    @cached_property
    def encoder(self) -> OperatorEncoder:
        """Encodes leaves at the rates of the data sheet."""
        roofline = find_sustained_roofline(self.sheet)
        return OperatorEncoder(roofline, self.overheads, self.sheet.power_limit_w)

    @cached_property
    def durations(self) -> tuple[Prior, ...]:
        """Priors of the coefficients of durations."""
        roofline = self.encoder.roofline
        own = tuple(zip(roofline.costs, roofline.log_sds, strict=True))
        return own + ((self.overhead_s, _OVERHEAD_LOG_SD),) * len(self.overheads)

    @cached_property
    def powers(self) -> tuple[Prior, ...]:
        """Priors of the coefficients of powers."""
        own = find_power_priors(self.sheet).coefficients
        return own + ((self.overhead_w, _OVERHEAD_LOG_SD),) * len(self.overheads)

    def predict_durations(self, leaves: Sequence[SetupLayer]) -> Floats:
        """Return the log duration of each leaf."""
        return prior_log_mean(self.encoder.encode_durations(leaves), _take_medians(self.durations))

    def predict_powers(self, leaves: Sequence[SetupLayer], durations_s: Floats) -> Floats:
        """Return the log power of each leaf, given its duration."""
        inputs = self.encoder.encode_powers(leaves, durations_s)
        return prior_log_mean(inputs, _take_medians(self.powers))


@dataclass(frozen=True)
class SheetResiduals(SourceDevice):
    """What a device has learnt, relative to its data sheet.

    Attributes:
        means: What its data sheet suggests.
        log_factors: By how much networks exceed the sums of their leaves: durations and powers.
    """

    means: SheetMeans
    log_factors: tuple[float, float]

    def predict_residuals(self, leaves: Sequence[SetupLayer]) -> Floats:
        """Return by how much duration and power of each leaf exceed those of the data sheet."""
        log_s, _ = self.duration.predict(self.encoder.encode_durations(leaves))
        seconds = np.exp(log_s)
        log_w, _ = self.power.predict(self.encoder.encode_powers(leaves, seconds))
        residuals = np.column_stack(
            [
                log_s - self.means.predict_durations(leaves),
                log_w - self.means.predict_powers(leaves, seconds),
            ]
        )
        return np.asarray(residuals + np.array(self.log_factors))


@dataclass(frozen=True)
class CarriedDevice:
    """A device that starts from another.

    Attributes:
        fitted: The fit of the other device, to whole networks such as imported runs.
        source_sheet: Its data sheet.
        sheet: The data sheet of this device.
    """

    fitted: FittedAdditive
    source_sheet: DataSheet
    sheet: DataSheet

    def fit(self, observations: Sequence[Observation] = ()) -> FittedAdditive:
        """Fit the device to what was observed on it; to nothing but data sheets without that."""
        decomposed = decompose_observations(observations)
        encoder = self._make_encoder()
        sums = encode_decomposed(encoder, decomposed)
        process = self._define_durations()
        inputs = encoder.encode_durations(sums.operators)
        operator_s = np.exp(prior_log_mean(inputs, _take_medians(process.coefficients)))
        duration = fit_logsums(process, inputs, observe_durations(decomposed, sums, operator_s))
        busy = predict_durations(encoder, condition_logsums(duration), sums)
        host_time = fit_host_time(decomposed, busy.total, busy.variance)
        idle_w = find_power_priors(self.sheet).idle_w[0]
        powers = find_powers(decomposed, busy, "eager", idle_w, host_time.launch_gap_s)
        inputs = encoder.encode_powers(sums.operators, busy.by_operator)
        power = fit_logsums(
            self._define_powers(), inputs, observe_powers(powers, sums, busy.by_operator)
        )
        identities = identify_observations(observations)
        return FittedAdditive(
            "eager",
            idle_w,
            "",
            encoder,
            duration,
            power,
            host_time,
            choose_sum_error_sd_share(decomposed),
            len(identities),
            PackedArray.pack(identities),
            summarise_networks(observations),
            summarise_kinds(decomposed),
        )

    @cached_property
    def _source(self) -> SheetResiduals:
        known = self.fitted.as_source(self.source_sheet.title, self.source_sheet.name)
        model = self.fitted
        return SheetResiduals(
            known.name,
            known.profile,
            known.encoder,
            known.duration,
            known.power,
            self._before,
            (_find_network_factor(model.duration), _find_network_factor(model.power)),
        )

    @cached_property
    def _before(self) -> SheetMeans:
        """The other device by its data sheet; overheads as they were fitted."""
        model = self.fitted
        overheads = model.encoder.overheads
        seconds, watts = 1.0, self.source_sheet.power_limit_w
        if overheads:
            at = -len(overheads) - len(model.encoder.sources)
            seconds, watts = (
                float(one.prior.coefficients[at]) for one in (model.duration, model.power)
            )
        return SheetMeans(self.source_sheet, overheads, seconds, watts)

    @cached_property
    def _after(self) -> SheetMeans:
        """This device by its data sheet."""
        before, after = (find_power_priors(one) for one in (self.source_sheet, self.sheet))
        watts = self._before.overhead_w * after.idle_w[0] / before.idle_w[0]
        return replace(self._before, sheet=self.sheet, overhead_w=watts)

    def _make_encoder(self) -> OperatorEncoder:
        own = self._after.encoder
        return OperatorEncoder(
            own.roofline, own.overheads, own.power_limit_w, sources=(self._source,)
        )

    def _define_durations(self) -> LogSumProcess:
        terms = (
            KernelTerm(ALL_INPUTS, shared_sd=_LEVEL_SD),
            KernelTerm(CLASS, shared_sd=_CLASS_SD),
            KernelTerm(KIND, shared_sd=_KIND_SD),
            KernelTerm(CLASS, DURATION_AXES, _CLASS_SD, None, _DURATION_LENGTH_SCALE),
        )
        coefficients = (*self._after.durations, _SHARE)
        return replace(self._source.duration.process, coefficients=coefficients, terms=terms)

    def _define_powers(self) -> LogSumProcess:
        terms = (
            KernelTerm(ALL_INPUTS, shared_sd=(LEVEL_LOG_SD, 0.3)),
            KernelTerm(CLASS, shared_sd=_CLASS_SD),
            KernelTerm(KIND, shared_sd=_KIND_SD),
            KernelTerm(ALL_INPUTS, POWER_AXES[:3], _CLASS_SD, None, _POWER_LENGTH_SCALE),
        )
        coefficients = (*self._after.powers, _SHARE)
        return replace(self._source.power.process, coefficients=coefficients, terms=terms)


def _find_network_factor(process: FittedLogSums) -> float:
    """Return the log of observed networks over the sums of their leaves.

    Residuals of leaves do not contain what networks have in common beyond them.
    """
    posterior = condition_logsums(process)
    log_operators = predict_log_means(posterior, process.inputs)
    observations = process.observations
    sums = observations.sums.counts.total(np.exp(log_operators))
    return float(np.median(observations.log_values - np.log(sums)))


def _take_medians(coefficients: Sequence[Prior]) -> Floats:
    return np.array([median for median, _ in coefficients])
