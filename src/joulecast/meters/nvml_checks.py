"""Check whether the edges of a GPU's counter can be true.

    power of the window          at most 1.25 times the power limit
    rise between two edges       at most what twice the limit would give
    power of the window          within a factor of two of what the power sensor shows

The margins are wide, because a wrong alarm costs a valid measurement. On H200s at their limit of
700 W, windows of up to 761 W were measured. From Ampere on the sensor averages over a second, and
on some GPUs it samples only a quarter of the time, so it may be far off where the load varies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from joulecast.meters.base import OTHER_LOAD, POWER_LIMIT, SECOND_SENSOR

if TYPE_CHECKING:
    from joulecast.meters.nvml_edges import Edge

LIMIT_FACTOR = 1.25
RISE_FACTOR = 2.0
SENSOR_FACTOR = 2.0
# In a short window, beyond what the average over a longer time explains.
LAG_FACTOR = 1.5
# Over which time the sensor may average.
SENSOR_S = 1.0
# A limit that changed by less is the same one.
SAME_LIMIT_SHARE = 0.05
_MIN_SAMPLES = 3
# Below, the sensor shows more of what was before the window than of the window.
_MIN_SHARE = 0.3


def find_implausible(edges: Sequence[Edge], start_s: float, power_w: float) -> Iterator[str]:
    """Yield what contradicts the power of a window that began at ``start_s``."""
    limit_w = find_limit(edges)
    if limit_w is not None:
        yield from _check_limit(edges, power_w, limit_w)
    if power_w > 0:
        yield from _check_sensor(edges, start_s, power_w, limit_w)


def find_limit(edges: Sequence[Edge]) -> float | None:
    """Return the highest power limit that was in force; None if it is unknown."""
    return max((edge.limit_w for edge in edges if edge.limit_w is not None), default=None)


def find_changed_limit(edges: Sequence[Edge], before_w: float) -> list[str]:
    """Report a power limit that is no longer what it was when the device was detected."""
    limits_w = [edge.limit_w for edge in edges if edge.limit_w is not None]
    changed = [now for now in limits_w if abs(now - before_w) > SAME_LIMIT_SHARE * before_w]
    return [f"limit changed: {before_w:.0f} W before, {now:.0f} W now" for now in changed[-1:]]


def list_unchecked(edges: Sequence[Edge]) -> tuple[str, ...]:
    """Return the checks that edges without some values do not allow."""
    known = {
        OTHER_LOAD: any(edge.busy_share is not None for edge in edges),
        POWER_LIMIT: any(edge.limit_w is not None for edge in edges),
        SECOND_SENSOR: any(edge.sensor_w is not None for edge in edges),
    }
    return tuple(check for check, is_known in known.items() if not is_known)


def _check_limit(edges: Sequence[Edge], power_w: float, limit_w: float) -> Iterator[str]:
    above = f"although the power limit is {limit_w:.0f} W"
    if power_w > LIMIT_FACTOR * limit_w:
        yield f"implausible: {power_w:.0f} W, {above}"
        return
    for before, after in pairwise(edges):
        # The longest that it can have taken: an edge may have happened before it was seen.
        passed_s = after.time_s - before.time_s + before.late_s
        rise_j = after.energy_j - before.energy_j
        if rise_j > RISE_FACTOR * limit_w * passed_s:
            yield f"implausible: the counter rose by {rise_j:.3g} J in {passed_s:.2g} s, {above}"
            return


def _check_sensor(
    edges: Sequence[Edge], start_s: float, power_w: float, limit_w: float | None
) -> Iterator[str]:
    """Compare with the sensor, whose first samples also average over what was before the window."""
    samples = [
        (min((edge.time_s - start_s) / SENSOR_S, 1.0), edge.sensor_w)
        for edge in edges
        if edge.sensor_w is not None
    ]
    settled = [sample for sample in samples if sample[0] == 1.0]
    used = settled if len(settled) >= _MIN_SAMPLES else samples[-_MIN_SAMPLES:]
    if len(used) < _MIN_SAMPLES:
        return
    share, sensor_w = (fmean(values) for values in zip(*used, strict=True))
    if share < _MIN_SHARE:
        return
    # The rest averages over a time before the window, with any power from none to the limit.
    before_w = float("inf") if limit_w is None else LIMIT_FACTOR * limit_w
    lowest_w = sensor_w if share == 1.0 else (sensor_w - (1 - share) * before_w) / share
    highest_w = sensor_w / share
    above = max(SENSOR_FACTOR * sensor_w, LAG_FACTOR * highest_w)
    below = min(sensor_w / SENSOR_FACTOR, lowest_w / LAG_FACTOR)
    if not below <= power_w <= above:
        yield f"implausible: {power_w:.0f} W by the counter, {sensor_w:.0f} W by the power sensor"
