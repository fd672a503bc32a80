"""Score an estimator: errors and intervals over all test networks, in percent.

error      e = 100·(estimate / measured - 1)      noise   100·|a - b| / mean(a, b)
coverage   low ≤ measured ≤ high                  width   100·(high - low) / estimate
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from joulecast.uses.evaluate.evaluation import EstimatorScore, Interval, NetResult


def score_estimator(
    name: str, nets: Sequence[NetResult], *, device_seconds: float, points: int
) -> EstimatorScore:
    """Return the score of an estimator.

    Args:
        name: Name of the estimator in the networks' ``estimates``.
        nets: Test networks, at least one, each with an estimate.
        device_seconds: Device time of the estimator's campaign and probes.
        points: Observations that it was fitted to.
    """
    errors = list_errors(name, nets)
    sizes = [abs(error) for error in errors]
    estimates = [net.estimates[name] for net in nets]
    intervals50_j = [estimate.interval50_j for estimate in estimates]
    intervals95_j = [estimate.interval95_j for estimate in estimates]
    time_errors = [
        abs(estimate.duration_s / net.measured_s - 1)
        for estimate, net in zip(estimates, nets, strict=True)
    ]
    return EstimatorScore(
        estimator=name,
        nets=len(nets),
        mape_percent=fmean(sizes),
        bias_percent=fmean(errors),
        median_percent=median(sizes),
        p90_percent=float(np.percentile(sizes, 90)),
        max_percent=max(sizes),
        within5_percent=_percent_true(size <= 5.0 for size in sizes),
        within10_percent=_percent_true(size <= 10.0 for size in sizes),
        coverage50_percent=_compute_coverage(nets, intervals50_j),
        coverage95_percent=_compute_coverage(nets, intervals95_j),
        width50_percent=_compute_width(name, nets, intervals50_j),
        width95_percent=_compute_width(name, nets, intervals95_j),
        noise_percent=compute_noise_percent(nets),
        time_mape_percent=100 * fmean(time_errors),
        device_seconds=device_seconds,
        points=points,
    )


def compute_noise_percent(nets: Iterable[NetResult]) -> float | None:
    """Return the median difference between the passes; None if no network has two."""
    shares = [
        (max(net.passes_j) - min(net.passes_j)) / fmean(net.passes_j)
        for net in nets
        if len(net.passes_j) > 1
    ]
    return 100 * median(shares) if shares else None


def list_errors(name: str, nets: Iterable[NetResult]) -> list[float]:
    """Return an estimator's signed error of each network in percent."""
    return [100 * (net.estimates[name].energy_j / net.measured_j - 1) for net in nets]


def _percent_true(values: Iterable[bool]) -> float:
    return 100 * fmean(values)


def _compute_coverage(nets: Sequence[NetResult], intervals: Sequence[Interval]) -> float:
    pairs = zip(nets, intervals, strict=True)
    return _percent_true(low <= net.measured_j <= high for net, (low, high) in pairs)


def _compute_width(name: str, nets: Sequence[NetResult], intervals: Sequence[Interval]) -> float:
    """Return the median width; relative to the measured energy if the estimate is zero."""
    levels_j = [net.estimates[name].energy_j or net.measured_j for net in nets]
    return 100 * median(
        (high - low) / level_j for level_j, (low, high) in zip(levels_j, intervals, strict=True)
    )
