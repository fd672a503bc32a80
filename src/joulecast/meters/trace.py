"""Compute the energy of a window from samples of power, or from counts of energy.

        ·   ·  │·   ·   ·   ·│  ·         only samples inside the window count: those outside
               t0            t1           belong to another load

Power is interpolated linearly between samples, and constant from each end of the window to the
nearest sample inside. Counts are those of an energy counter at both ends, or more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from joulecast.meters.base import Reading

MIN_SAMPLES = 3
# An instrument without a sample for this many of its intervals has missed some.
GAP_PERIODS = 5.0
# A device counts something in this time, however idle it is.
_STUCK_S = 0.5


class Sample(NamedTuple):
    """The power at a moment."""

    time_s: float
    power_w: float


def integrate(samples: Sequence[Sample], start_s: float, end_s: float) -> Reading:
    """Return the energy of a window from the samples inside it, with their faults."""
    inside = [sample for sample in samples if start_s <= sample.time_s <= end_s]
    faults = tuple(_find_faults(inside, start_s, end_s))
    duration_s = end_s - start_s
    if not inside or duration_s <= 0 or any(fault.startswith("reset") for fault in faults):
        return Reading(0.0, max(duration_s, 0.0), faults)
    first, last = inside[0], inside[-1]
    held = [Sample(start_s, first.power_w), *inside, Sample(end_s, last.power_w)]
    energy_j = sum(
        (after.time_s - before.time_s) * (after.power_w + before.power_w) / 2
        for before, after in pairwise(held)
    )
    return Reading(max(energy_j, 0.0), duration_s, faults)


def subtract_counts(counts_j: Sequence[float], duration_s: float) -> Reading:
    """Return the energy of a window from the counts at its start, within it, and at its end."""
    faults = []
    if any(after < before for before, after in pairwise(counts_j)):
        faults.append("reset: the energy counter fell")
    elif counts_j[-1] == counts_j[0]:
        kind = "stuck" if duration_s >= _STUCK_S else "too short"
        faults.append(f"{kind}: the energy counter did not change in {duration_s:.3g} s")
    return Reading(max(counts_j[-1] - counts_j[0], 0.0), duration_s, tuple(faults))


def median_interval_s(samples: Sequence[Sample]) -> float:
    """Return the median time between two samples; 0 for fewer than two."""
    steps = [after.time_s - before.time_s for before, after in pairwise(samples)]
    return max(median(steps), 0.0) if steps else 0.0


def _find_faults(inside: list[Sample], start_s: float, end_s: float) -> list[str]:
    faults = []
    if len(inside) < MIN_SAMPLES:
        window = f"{max(end_s - start_s, 0.0):.3g} s"
        faults.append(f"too short: {len(inside)} power samples in {window}")
    else:
        faults.extend(_find_gap(inside, start_s, end_s))
    if any(after.time_s < before.time_s for before, after in pairwise(inside)):
        faults.append("reset: the instrument's clock went back")
    lowest_w = min((sample.power_w for sample in inside), default=0.0)
    if lowest_w < 0:
        faults.append(f"negative: a sample of {lowest_w:.3g} W")
    return faults


def _find_gap(inside: list[Sample], start_s: float, end_s: float) -> tuple[str, ...]:
    times = [start_s, *(sample.time_s for sample in inside), end_s]
    widest_s = max(after - before for before, after in pairwise(times))
    if widest_s > GAP_PERIODS * median_interval_s(inside):
        return (f"gap: {widest_s:.3g} s without a sample",)
    return ()
