"""The numbers that an estimator's errors and intervals come down to. All in percent.

error     e = 100·(estimate / measured - 1)            noise   100·|a - b| / mean(a, b)
inside    low ≤ measured ≤ high                        width   100·(high - low) / estimate
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from joulecast.uses.evaluate.evaluation import EstimatorScore, Interval, NetResult


def compute_noise_percent(nets: Iterable[NetResult]) -> float | None:
    """The median of what the passes of a net differ by; None where no net has two."""
    shares = [
        (max(net.passes_j) - min(net.passes_j)) / fmean(net.passes_j)
        for net in nets
        if len(net.passes_j) > 1
    ]
    return 100 * median(shares) if shares else None


def score_estimator(
    name: str, nets: Sequence[NetResult], *, device_seconds: float, points: int
) -> EstimatorScore:
    """How good an estimator's answers are.

    Args:
        name: The estimator, as the nets' answers know it.
        nets: At least one, all of them answered.
        device_seconds: What learning took of the device.
        points: Observations that were learnt from.
    """
    errors = list_errors(name, nets)
    sizes = [abs(error) for error in errors]
    answers = [net.answers[name] for net in nets]
    half = [answer.interval50_j for answer in answers]
    most = [answer.interval95_j for answer in answers]
    return EstimatorScore(
        estimator=name,
        nets=len(nets),
        mape_percent=fmean(sizes),
        bias_percent=fmean(errors),
        median_percent=median(sizes),
        p90_percent=float(np.percentile(sizes, 90)),
        max_percent=max(sizes),
        within5_percent=_share(size <= 5.0 for size in sizes),
        within10_percent=_share(size <= 10.0 for size in sizes),
        coverage50_percent=_cover(nets, half),
        coverage95_percent=_cover(nets, most),
        width50_percent=_size_up(name, nets, half),
        width95_percent=_size_up(name, nets, most),
        noise_percent=compute_noise_percent(nets),
        time_mape_percent=100
        * fmean(
            abs(answer.duration_s / net.measured_s - 1)
            for answer, net in zip(answers, nets, strict=True)
        ),
        device_seconds=device_seconds,
        points=points,
    )


def list_errors(name: str, nets: Iterable[NetResult]) -> list[float]:
    """By how many percent an estimator is off, with sign, net by net."""
    return [100 * (net.answers[name].energy_j / net.measured_j - 1) for net in nets]


def _share(hits: Iterable[bool]) -> float:
    return 100 * fmean(hits)


def _cover(nets: Sequence[NetResult], intervals: Sequence[Interval]) -> float:
    pairs = zip(nets, intervals, strict=True)
    return _share(low <= net.measured_j <= high for net, (low, high) in pairs)


def _size_up(name: str, nets: Sequence[NetResult], intervals: Sequence[Interval]) -> float:
    """The median width; of an estimate of nothing, as a share of what was measured."""
    levels_j = [net.answers[name].energy_j or net.measured_j for net in nets]
    return 100 * median(
        (high - low) / level_j for level_j, (low, high) in zip(levels_j, intervals, strict=True)
    )
