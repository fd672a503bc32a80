"""Evaluate equation 4 for many networks at once: sums over curves, with their joint covariance.

    E = A·m,  Cov(E) = A·(Σ + nugget·I)·Aᵀ + Σ_r d_r·d_rᵀ

A       how often each network runs each distinct point of a curve
m, Σ    the curve's joint posterior there, so that networks with the same layer share its error
d_r     standard deviations of the parts estimated by the rates of group r, which share that error

Beyond the profiled widths a curve is not evaluated: its value at the nearest profiled widths is
extrapolated in proportion to the rates.

Where a curve's mean is below its standard deviation, subtraction has left little but noise. The sum
then uses the mean of curve and rates, weighted by their variances, and both variances remain.
Weights are updated once per step, however often their layer is called and whichever layers share
them: a further call counts without the update's share of the cost. The paper has none of these
three; ``options.py`` turns each off.

Layers that were never profiled are estimated by rates per FLOP, byte and launch:

    y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0, least squares of (y - ŷ) / s
    s   the size of y or of its error: subtraction operators mostly noise of a light layer

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

from joulecast.estimators.base import Floats, Json, count_work, fit_work_rates, setup_key
from joulecast.estimators.subtractive.curves import width_rows
from joulecast.estimators.subtractive.options import OURS, SubtractiveOptions
from joulecast.gp.regression import GaussianProcess
from joulecast.operators import Work, layer_work
from joulecast.records import Setup
from joulecast.records.codec import Record, always_stored
from joulecast.variants import BLOCK, Part, PlacedPart, Widths, curve_key, part_widths, resize_part


@dataclass(frozen=True)
class PartCost:
    """The cost of a part in one step, all its calls together.

    Attributes:
        seen: Whether a curve shows it within the profiled widths.
        weight: How often the point counts.
        rate_sd: Standard deviation of what the rates contribute.
    """

    value: float
    seen: bool = True
    curve: str = ""
    point_index: int = 0
    weight: float = 0.0
    rate_sd: float = 0.0
    rate_group: str = ""


@dataclass(frozen=True)
class NetworkSums:
    """Totals of n networks, their covariance, and the costs of their parts."""

    totals: Floats
    cov: Floats
    costs: tuple[tuple[PartCost, ...], ...]


def sum_networks(
    curves: Mapping[str, Json],
    rates: Rates,
    quantity: str,
    networks: Sequence[Sequence[PlacedPart]],
    setup: Setup,
    options: SubtractiveOptions = OURS,
) -> NetworkSums:
    """Sum the parts of each network.

    Curves are JSON, and ``quantity`` is one of QUANTITIES.
    """
    keys = {curve_key(placed.part, setup) for parts in networks for placed in parts}
    stored = {key: curves.get(key, {}).get(quantity) for key in sorted(keys)}
    processes = {key: GaussianProcess.from_dict(data) for key, data in stored.items() if data}
    evaluated = _evaluate_curves(
        processes, (placed.part for parts in networks for placed in parts), setup, options
    )
    counter = _PartCounter(setup, evaluated, rates, options)
    costs = tuple(tuple(map(counter.find_cost, parts)) for parts in networks)
    totals = np.array([sum(cost.value for cost in row) for row in costs], dtype=float)
    return NetworkSums(totals, _curve_cov(costs, evaluated) + _rate_cov(costs), costs)


@dataclass(frozen=True)
class _EvaluatedCurve:
    """A curve's posterior at the points that some networks run."""

    index: dict[Widths, int]
    means: Floats
    cov: Floats
    lows: Floats
    highs: Floats
    blends: bool = True
    extrapolates: bool = True

    def find_point(self, part: Part) -> Widths:
        """Return the widths at which the curve is evaluated for a part."""
        return _clip(part, self.lows, self.highs) if self.extrapolates else part_widths(part)

    def is_inside(self, part: Part) -> bool:
        """Return whether the widths of a part are within the profiled ones."""
        return _clip(part, self.lows, self.highs) == part_widths(part)

    def combine(self, index: int, value: float, sd_share: float) -> tuple[float, float, float]:
        """Return the cost at a point, the curve's weight in it, and the deviation of the rates.

        The rates' ``value`` only counts where the curve is mostly noise.
        """
        mean, variance = float(self.means[index]), float(self.cov[index, index])
        if not self.blends:
            return mean, 1.0, 0.0
        if value <= 0 or mean >= variance**0.5:
            return max(mean, 0.0), 1.0, 0.0
        rate_sd = value * sd_share
        weight = rate_sd**2 / (variance + rate_sd**2)
        combined = weight * mean + (1.0 - weight) * value
        return max(combined, 0.0), weight, (1.0 - weight) * rate_sd


def _evaluate_curves(
    processes: Mapping[str, GaussianProcess],
    parts: Iterable[Part],
    setup: Setup,
    options: SubtractiveOptions,
) -> dict[str, _EvaluatedCurve]:
    bounds = {
        key: (one.inputs.min(axis=0), one.inputs.max(axis=0)) for key, one in processes.items()
    }
    index: dict[str, dict[Widths, int]] = {}
    for part in parts:
        key = curve_key(part, setup)
        if key in processes:
            points = index.setdefault(key, {})
            widths = _clip(part, *bounds[key]) if options.extrapolation else part_widths(part)
            points.setdefault(widths, len(points))
    evaluated = {}
    for key, points in index.items():
        means, cov = processes[key].predict(width_rows(points))
        cov += processes[key].nugget_variance * np.eye(len(points))
        evaluated[key] = _EvaluatedCurve(
            points, means, cov, *bounds[key], options.blend, options.extrapolation
        )
    return evaluated


def _clip(part: Part, lows: Floats, highs: Floats) -> Widths:
    """Return a part's widths, or the nearest profiled ones."""
    # A part without widths has a curve with one column.
    bounds = zip(part_widths(part), lows, highs, strict=False)
    return tuple(int(min(max(width, low), high)) for width, low, high in bounds)


@dataclass(frozen=True)
class _PartCounter:
    """What the costs of parts follow from."""

    setup: Setup
    evaluated: Mapping[str, _EvaluatedCurve]
    rates: Rates
    options: SubtractiveOptions

    def find_cost(self, placed: PlacedPart) -> PartCost:
        """Return the cost of all calls of a part."""
        part, key = placed.part, curve_key(placed.part, self.setup)
        calls = self._count_calls(placed)
        value, sd_share, group = estimate_part(self.rates, part, self.setup)
        if key not in self.evaluated:
            return PartCost(
                value * calls, seen=False, rate_sd=value * calls * sd_share, rate_group=group
            )
        curve = self.evaluated[key]
        nearest = curve.find_point(part)
        at = curve.index[nearest]
        if nearest == part_widths(part):
            mean, weight, rate_sd = curve.combine(at, value, sd_share)
            seen = curve.is_inside(part)
            return PartCost(mean * calls, seen, key, at, weight * calls, rate_sd * calls, group)
        nearest_value = estimate_part(self.rates, resize_part(part, nearest), self.setup).value
        ratio = value / (nearest_value or value or 1.0)
        mean, weight, rate_sd = curve.combine(at, nearest_value, sd_share)
        rate_sd = ratio * rate_sd + abs(ratio - 1.0) * mean * sd_share
        weight *= ratio
        return PartCost(
            mean * ratio * calls, False, key, at, weight * calls, rate_sd * calls, group
        )

    def _count_calls(self, placed: PlacedPart) -> float:
        """Return how often a part's cost counts; further calls and tied weights skip the update."""
        repeats = placed.calls - 1 + any(layer.tied for layer in placed.layers)
        if not repeats or not self.options.updates:
            return placed.calls
        return placed.calls - repeats * estimate_update_share(self.rates, placed.part, self.setup)


def _curve_cov(
    costs: Sequence[Sequence[PartCost]], evaluated: Mapping[str, _EvaluatedCurve]
) -> Floats:
    counts = {key: np.zeros((len(costs), len(curve.means))) for key, curve in evaluated.items()}
    for network, row in enumerate(costs):
        for cost in row:
            if cost.curve:
                counts[cost.curve][network, cost.point_index] += cost.weight
    total = np.zeros((len(costs), len(costs)))
    for key, curve in evaluated.items():
        total += counts[key] @ curve.cov @ counts[key].T
    return total


def _rate_cov(costs: Sequence[Sequence[PartCost]]) -> Floats:
    """Return the covariance of what the rates contribute: errors of one group are common."""
    sds: dict[str, Floats] = {}
    for network, row in enumerate(costs):
        for cost in row:
            if cost.rate_sd:
                sds.setdefault(cost.rate_group, np.zeros(len(costs)))[network] += cost.rate_sd
    total = np.zeros((len(costs), len(costs)))
    for sd in sds.values():
        total += np.outer(sd, sd)
    return total


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
