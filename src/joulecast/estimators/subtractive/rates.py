"""Estimate parts that were never profiled, by rates per FLOP, byte and launch.

    y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0, least squares of (y - ŷ) / s
    s   the size of y or of its error: subtraction leaves mostly noise of a light layer

Rates are fitted for each kind in each setup, for all kinds of a setup, for each kind, and for
everything. The most specific group with enough points is used. Its uncertainty is the error on its
own points, but never below a floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from joulecast.estimators.base import Floats, setup_key
from joulecast.estimators.work_rates import count_work, fit_work_rates
from joulecast.kinds import Work, layer_work
from joulecast.records import Setup
from joulecast.records.codec import Record, always_stored
from joulecast.variants import BLOCK, Part

_MIN_POINTS = 4
_SAME_KIND_SD_SHARE = 0.3
_OTHER_KIND_SD_SHARE = 0.6
# The error of a point is relative to its value, to this many of its standard deviations, or to this
# share of the median value, whichever is largest: layers that cost nearly nothing would dominate.
_SD_FACTOR = 4.0
_MEDIAN_SHARE = 0.1

ALL = "*"


class ProfiledPart(NamedTuple):
    """A profiled point of a curve: a part, its setup, its energy or duration, and its deviation."""

    part: Part
    setup: Setup
    value: float
    sd: float


@dataclass(frozen=True)
class GroupRates(Record):
    """Rates fitted to the points of one group.

    Attributes:
        rates: Cost per FLOP, byte and launch.
        sd_share: Standard deviation of a part's cost, as a share of it.
        count: Number of points.
    """

    rates: tuple[float, ...] = always_stored(json_name="per")
    sd_share: float = always_stored(json_name="spread")
    count: int = always_stored(json_name="n")


class RateEstimate(NamedTuple):
    """A part's cost from rates, its standard deviation as a share of it, and the group."""

    value: float
    sd_share: float
    group: str


Rates = Mapping[str, GroupRates]


def fit_rates(points: Iterable[ProfiledPart]) -> dict[str, GroupRates]:
    """Fit the rates of every group, by its name."""
    groups: dict[str, list[ProfiledPart]] = {}
    for point in points:
        for name in _group_names(point.part, point.setup):
            groups.setdefault(name, []).append(point)
    return {
        name: _fit_group(name, group)
        for name, group in groups.items()
        if len(group) >= (1 if name == ALL else _MIN_POINTS)
        and any(point.value > 0 for point in group)
    }


def estimate_part(rates: Rates, part: Part, setup: Setup) -> RateEstimate:
    """Estimate a part's cost from the rates of its most specific group."""
    for name in _group_names(part, setup):
        if name in rates:
            group = rates[name]
            value = float(count_work(_part_work(part, setup)) @ np.array(group.rates))
            return RateEstimate(value, group.sd_share, name)
    return RateEstimate(0.0, _OTHER_KIND_SD_SHARE, "")


def estimate_update_share(rates: Rates, part: Part, setup: Setup) -> float:
    """Return the share of a part's cost that updates its weights, once per step."""
    whole = estimate_part(rates, part, setup)
    if whole.value <= 0:
        return 0.0
    updates = [layer_work(layer, setup).update for layer in part.layers]
    update = count_work(sum(updates[1:], updates[0]))
    return float(update @ np.array(rates[whole.group].rates)) / whole.value


@lru_cache(maxsize=8192)
def _part_work(part: Part, setup: Setup) -> Work:
    works = [layer_work(layer, setup).total for layer in part.layers]
    return sum(works[1:], works[0])


def _group_names(part: Part, setup: Setup) -> tuple[str, ...]:
    """Return the names of the groups that a part belongs to, the most specific first."""
    name = BLOCK if part.role == BLOCK else part.layers[0].kind
    kind, of_setup = f"kind:{name}", f"setup:{setup_key(setup)}"
    return (f"{of_setup} {kind}", of_setup, kind, ALL)


def _fit_group(name: str, points: Sequence[ProfiledPart]) -> GroupRates:
    values: Floats = np.array([point.value for point in points])
    sds = np.array([point.sd for point in points])
    floor = _MEDIAN_SHARE * float(np.median(np.abs(values)))
    scales = np.maximum(np.hypot(values, _SD_FACTOR * sds), floor)
    work = np.array([count_work(_part_work(point.part, point.setup)) for point in points])
    rates, error_share = fit_work_rates(work, values, scales)
    least = _SAME_KIND_SD_SHARE if "kind:" in name else _OTHER_KIND_SD_SHARE
    return GroupRates(tuple(rates.tolist()), max(error_share, least), len(points))
