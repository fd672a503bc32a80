"""The processes of durations and of powers: their terms and the priors of their hyper-parameters.

Groups of inputs are classes of operators and kinds, regimes are precisions (with phase and
threads). Efficiency saturates with size and differs by class of operators: most of the variance is
that of a class's kernel over sizes, which all its kinds and precisions share in part.
"""

from __future__ import annotations

from joulecast.estimators.additive.encode import (
    CLASS,
    DEVICE,
    DEVICE_CLASS,
    DURATION_AXES,
    HARDWARE_AXES,
    KIND,
    NEW_DEVICE_CLASS,
    NEW_DEVICE_KIND,
    POWER_AXES,
    RELATIVE_AXES,
    VENDOR_CLASS,
    OperatorEncoder,
)
from joulecast.estimators.additive.roofline import LEVEL_LOG_SD
from joulecast.gp.logsums.inputs import ALL_INPUTS
from joulecast.gp.logsums.prior import KernelTerm, LogSumProcess, Prior
from joulecast.records import FLOAT_PRECISIONS

# The discrepancy of a block or network is one of its structures: sums have no other.
_SUM_SD: Prior = (1e-3, 0.1)
# On 1,658 observations of an H200, five-fold: MAPE 13.3 % with this length scale, 14.6 % with 2.
_LENGTH_SCALE = (4.0, 0.7)
# What a precision changes for all operators: of one that was not observed, the rate is a guess. On
# eight simulated devices, intervals in such a precision held 43 % without this and 96 % with it.
_REGIME_SD: Prior = (0.6, 0.5)
# Durations of imported runs: nothing is known of how they were timed.
_IMPORTED_NOISE: Prior = (0.02, 1.0)
# Repeated timings of 526 trials on H200s, most on two units, differ by 0.6 % (median) and 1.9 %
# (95th percentile), repeated powers of one unit by 1.5 %. Fitted freely, two odd trials made the
# noise of timings 5 %.
_TIMING_NOISE: Prior = (0.01, 0.05)
_POWER_NOISE: Prior = (0.015, 0.1)
# Share of the power limit that each of compute and memory draws at its peak, that of a busy device
# doing nothing, and the log standard deviations of these.
_PEAK_SHARE, _PEAK_LOG_SD = 0.5, 0.5
_STATIC_SHARE, _STATIC_FACTOR, _STATIC_LOG_SD = 0.2, 1.1, 0.3
# Power that a busy device adds to that, whatever it does.
_BUSY_FACTOR, _BUSY_LOG_SD = 1.3, 0.6
# What powers depend on, on one device as on several: kinds, achieved rates, and sizes by class.
_POWER_TERMS = (
    KernelTerm(CLASS, shared_sd=(0.1, 0.5), regime_sd=(0.05, 0.5)),
    KernelTerm(KIND, shared_sd=(0.1, 0.5), regime_sd=(0.05, 0.5)),
    KernelTerm(ALL_INPUTS, POWER_AXES[:3], (0.15, 0.5), (0.1, 0.5), (1.5, 0.7)),
    KernelTerm(CLASS, POWER_AXES, (0.1, 0.5), (0.1, 0.5), (3.0, 0.7)),
)
# Overheads: a tenth of a run, within a factor of ten.
_OVERHEAD_LOG_SD = 1.5
# Shares of the residuals of other devices that this one has too. Powers are learnt from noisier
# values: with a median of 0.7, ten networks made some shares 4. Log standard deviations of 0.7 gain
# nothing from like sources on simulated devices, and keep too much of unlike ones.
_DURATION_SHARE: Prior = (0.7, 1.5)
_POWER_SHARE: Prior = (0.25, 1.5)


def define_durations(
    encoder: OperatorEncoder, overhead_s: float, is_imported: bool = False
) -> LogSumProcess:
    """Return the process of durations."""
    roofline = encoder.roofline
    coefficients = tuple(zip(roofline.costs, roofline.log_sds, strict=True))
    coefficients += ((overhead_s, _OVERHEAD_LOG_SD),) * len(encoder.overheads)
    coefficients += _divide_share(_DURATION_SHARE, len(encoder.sources))
    axes = DURATION_AXES
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.3, 0.5), regime_sd=_REGIME_SD),
        KernelTerm(CLASS, regime_sd=(0.3, 0.5)),
        KernelTerm(KIND, shared_sd=(0.2, 0.5), regime_sd=(0.2, 0.5)),
        KernelTerm(CLASS, axes, (0.35, 0.5), (0.35, 0.5), _LENGTH_SCALE),
        KernelTerm(KIND, axes, (0.18, 0.5), (0.18, 0.5), _LENGTH_SCALE),
    )
    noise = _IMPORTED_NOISE if is_imported else _TIMING_NOISE
    return LogSumProcess(coefficients, terms, sum_sd=_SUM_SD, noise_sd=noise)


def define_powers(
    encoder: OperatorEncoder, idle_w: float, overhead_w: float, is_imported: bool = False
) -> LogSumProcess:
    """Return the process of powers.

    Idle power is 0 if unknown.
    """
    limit_w = encoder.power_limit_w
    static_w = min(_STATIC_FACTOR * idle_w, 0.5 * limit_w) or _STATIC_SHARE * limit_w
    peak: Prior = (_PEAK_SHARE * limit_w, _PEAK_LOG_SD)
    rates = len(encoder.roofline.costs) - 1
    busy: Prior = (_BUSY_FACTOR * static_w, _BUSY_LOG_SD)
    coefficients = ((static_w, _STATIC_LOG_SD), busy) + (peak,) * rates
    coefficients += ((overhead_w, _PEAK_LOG_SD),) * len(encoder.overheads)
    coefficients += _divide_share(_POWER_SHARE, len(encoder.sources))
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.1, 0.5)),
        *_POWER_TERMS,
    )
    return _make_power_process(coefficients, terms, (0.05, 0.5) if is_imported else _POWER_NOISE)


def define_shared_durations() -> LogSumProcess:
    """Return the process of durations that several devices share.

    Basis functions are seconds at the rates of the data sheet. Residuals are shared by all devices
    and by those of a maker, and in part belong to one device. A device that the process was not
    fitted to has three more terms, so that it may differ from the others by more than they do from
    each other, and what is measured on it soon outweighs them.

    A kind of operator that no device of the fit ran may take several times what the roofline says,
    which the large standard deviation of kinds stands for.
    """
    # Launches, FLOPs in fp32, FLOPs of matrix units, whose peaks are farther off, and bytes.
    coefficients: tuple[Prior, ...] = (1.0, 0.3), (1.15, 0.15), (1.3, 0.2), (1.2, 0.15)
    axes = DURATION_AXES + HARDWARE_AXES
    terms = (
        KernelTerm(DEVICE, shared_sd=(0.12, 0.3), regime_sd=(0.08, 0.5)),
        KernelTerm(DEVICE_CLASS, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.5)),
        KernelTerm(VENDOR_CLASS, shared_sd=(0.1, 0.5), regime_sd=(0.25, 0.3)),
        KernelTerm(KIND, shared_sd=(0.5, 0.1), regime_sd=(0.25, 0.3)),
        KernelTerm(CLASS, RELATIVE_AXES, (0.2, 0.5), (0.25, 0.5), _LENGTH_SCALE),
        KernelTerm(KIND, RELATIVE_AXES, (0.15, 0.5), (0.15, 0.5), _LENGTH_SCALE),
        KernelTerm(DEVICE_CLASS, axes, (0.15, 0.3), None, _LENGTH_SCALE),
        # No device of the fit has these: they stay at the medians of their priors.
        KernelTerm(NEW_DEVICE_CLASS, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.3)),
        KernelTerm(NEW_DEVICE_KIND, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.3)),
        KernelTerm(NEW_DEVICE_CLASS, axes, (0.2, 0.3), (0.1, 0.3), _LENGTH_SCALE),
    )
    return LogSumProcess(coefficients, terms, sum_sd=_SUM_SD, noise_sd=(0.03, 0.3))


def define_shared_powers() -> LogSumProcess:
    """Return the process of powers that several devices share.

    Basis functions are watts that the data sheet suggests (``roofline``).
    """
    coefficients: tuple[Prior, ...] = ((1.0, 0.1),) * (len(FLOAT_PRECISIONS) + 3)
    terms = (
        KernelTerm(DEVICE, shared_sd=(LEVEL_LOG_SD, 0.3), regime_sd=(0.05, 0.5)),
        KernelTerm(DEVICE_CLASS, shared_sd=(0.1, 0.5)),
        *_POWER_TERMS,
    )
    return _make_power_process(coefficients, terms, _POWER_NOISE)


def _make_power_process(
    coefficients: tuple[Prior, ...], terms: tuple[KernelTerm, ...], noise_sd: Prior
) -> LogSumProcess:
    return LogSumProcess(
        coefficients,
        terms,
        nugget_sd=(0.05, 0.5),
        structure_sd=(0.04, 0.5),
        sum_sd=_SUM_SD,
        noise_sd=noise_sd,
    )


def _divide_share(share: Prior, sources: int) -> tuple[Prior, ...]:
    """Return the prior of each source's share, where they have one share together."""
    median, log_sd = share
    return ((median / max(sources, 1), log_sd),) * sources
