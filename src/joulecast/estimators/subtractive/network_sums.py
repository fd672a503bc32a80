"""Evaluate equation 4 for many networks at once: sums over curves, with their joint covariance.

    E = A·m,  Cov(E) = A·(Σ + nugget·I)·Aᵀ + Σ_r d_r·d_rᵀ

A       how often each network runs each distinct point of a curve
m, Σ    the curve's joint posterior there, so that networks with the same layer share its error
d_r     standard deviations of the blocks estimated by the rates of group r, which share that error

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
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from joulecast.estimators.base import Floats, Json, count_work, fit_work_rates, setup_key
from joulecast.estimators.subtractive.curves import width_rows
from joulecast.estimators.subtractive.options import OURS, SubtractiveOptions
from joulecast.gp.regression import GaussianProcess
from joulecast.operators import Work, layer_work
from joulecast.records import Setup
from joulecast.records.codec import Record, always_stored
from joulecast.variants import (
    REPEATED,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    curve_key,
    resize_block,
)


@dataclass(frozen=True)
class PartCost:
    """The cost of a block in one step, all its calls together.

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
    """Totals of n networks, their covariance, and the costs of their blocks."""

    totals: Floats
    cov: Floats
    costs: tuple[tuple[PartCost, ...], ...]


def sum_networks(
    curves: Mapping[str, Json],
    rates: Rates,
    quantity: str,
    networks: Sequence[Sequence[PlacedBlock]],
    setup: Setup,
    options: SubtractiveOptions = OURS,
) -> NetworkSums:
    """Sum the blocks of each network.

    Curves are JSON, and ``quantity`` is one of QUANTITIES.
    """
    evaluated: dict[str, _EvaluatedCurve] = {}
    for block in dict.fromkeys(placed.block for blocks in networks for placed in blocks):
        key = curve_key(block, setup)
        if data := curves.get(key, {}).get(quantity):
            if key not in evaluated:
                evaluated[key] = _EvaluatedCurve(GaussianProcess.from_dict(data), options)
            evaluated[key].add(block)
    costs = tuple(
        tuple(_find_cost(placed, evaluated, rates, setup, options) for placed in blocks)
        for blocks in networks
    )
    size = len(networks)
    counts = {key: np.zeros((size, len(curve.index))) for key, curve in evaluated.items()}
    rate_sds: dict[str, Floats] = {}
    for network, row in enumerate(costs):
        for cost in row:
            if cost.curve:
                counts[cost.curve][network, cost.point_index] += cost.weight
            if cost.rate_sd:
                rate_sds.setdefault(cost.rate_group, np.zeros(size))[network] += cost.rate_sd
    cov = np.zeros((size, size))
    for key, count in counts.items():
        cov += count @ evaluated[key].posterior[1] @ count.T
    for sds in rate_sds.values():
        cov += np.outer(sds, sds)
    totals = np.array([sum(cost.value for cost in row) for row in costs], dtype=float)
    return NetworkSums(totals, cov, costs)


class _EvaluatedCurve:
    """A curve at the points that some networks run; ``index`` numbers these by their widths."""

    def __init__(self, process: GaussianProcess, options: SubtractiveOptions) -> None:
        self._process, self._options = process, options
        self._lows, self._highs = process.inputs.min(axis=0), process.inputs.max(axis=0)
        self.index: dict[Widths, int] = {}

    def clip(self, block: Block) -> Widths:
        """Return a block's widths, or the nearest profiled ones."""
        # A block without widths has a curve with one column.
        bounds = zip(block_widths(block), self._lows, self._highs, strict=False)
        return tuple(int(min(max(width, low), high)) for width, low, high in bounds)

    def add(self, block: Block) -> Widths:
        """Return the widths at which the curve is evaluated for a block, and number them."""
        widths = self.clip(block) if self._options.extrapolation else block_widths(block)
        self.index.setdefault(widths, len(self.index))
        return widths

    @cached_property
    def posterior(self) -> tuple[Floats, Floats]:
        """Means and covariance at all points that were added."""
        means, cov = self._process.predict(width_rows(self.index))
        return means, cov + self._process.nugget_variance * np.eye(len(means))

    def combine(self, index: int, value: float, sd_share: float) -> tuple[float, float, float]:
        """Return the cost at a point, the curve's weight in it, and the deviation of the rates.

        The rates' ``value`` only counts where the curve is mostly noise.
        """
        means, cov = self.posterior
        mean, variance = float(means[index]), float(cov[index, index])
        if not self._options.blend:
            return mean, 1.0, 0.0
        if value <= 0 or mean >= variance**0.5:
            return max(mean, 0.0), 1.0, 0.0
        rate_sd = value * sd_share
        weight = rate_sd**2 / (variance + rate_sd**2)
        combined = weight * mean + (1.0 - weight) * value
        return max(combined, 0.0), weight, (1.0 - weight) * rate_sd


def _find_cost(
    placed: PlacedBlock,
    evaluated: Mapping[str, _EvaluatedCurve],
    rates: Rates,
    setup: Setup,
    options: SubtractiveOptions,
) -> PartCost:
    """Return the cost of all calls of a block."""
    block, key, calls = placed.block, curve_key(placed.block, setup), float(placed.calls)
    # Further calls and tied weights skip the update.
    repeats = placed.calls - 1 + any(layer.tied for layer in placed.layers)
    if repeats and options.updates:
        calls -= repeats * estimate_update_share(rates, block, setup)
    value, sd_share, group = estimate_block(rates, block, setup)
    if key not in evaluated:
        rate_sd = value * calls * sd_share
        return PartCost(value * calls, seen=False, rate_sd=rate_sd, rate_group=group)
    curve = evaluated[key]
    nearest = curve.add(block)
    at, ratio, nearest_value = curve.index[nearest], 1.0, value
    if nearest != block_widths(block):
        nearest_value = estimate_block(rates, resize_block(block, nearest), setup).value
        ratio = value / (nearest_value or value or 1.0)
    mean, weight, rate_sd = curve.combine(at, nearest_value, sd_share)
    rate_sd = ratio * rate_sd + abs(ratio - 1.0) * mean * sd_share
    seen, weight = curve.clip(block) == block_widths(block), weight * ratio
    return PartCost(mean * ratio * calls, seen, key, at, weight * calls, rate_sd * calls, group)


_MIN_POINTS = 4
_SAME_KIND_SD_SHARE = 0.3
_OTHER_KIND_SD_SHARE = 0.6
# The error of a point is relative to its value, to this many of its standard deviations, or to this
# share of the median value, whichever is largest: layers that cost nearly nothing would dominate.
_SD_FACTOR = 4.0
_MEDIAN_SHARE = 0.1

ALL = "*"


class ProfiledBlock(NamedTuple):
    """A profiled point of a curve: a block, its setup, its cost, and the deviation of that."""

    block: Block
    setup: Setup
    value: float
    sd: float


@dataclass(frozen=True)
class GroupRates(Record):
    """Rates fitted to the points of one group.

    Attributes:
        rates: Cost per FLOP, byte and launch.
        sd_share: Standard deviation of a block's cost, as a share of it.
    """

    rates: tuple[float, ...] = always_stored(json_name="per")
    sd_share: float = always_stored(json_name="spread")
    count: int = always_stored(json_name="n")


class RateEstimate(NamedTuple):
    """A block's cost from rates, its standard deviation as a share of it, and the group."""

    value: float
    sd_share: float
    group: str


Rates = Mapping[str, GroupRates]


def fit_rates(points: Iterable[ProfiledBlock]) -> dict[str, GroupRates]:
    """Fit the rates of every group, by its name."""
    groups: dict[str, list[ProfiledBlock]] = {}
    for point in points:
        for name in _group_names(point.block, point.setup):
            groups.setdefault(name, []).append(point)
    return {
        name: _fit_group(name, group)
        for name, group in groups.items()
        if len(group) >= (1 if name == ALL else _MIN_POINTS)
        and any(point.value > 0 for point in group)
    }


def estimate_block(rates: Rates, block: Block, setup: Setup) -> RateEstimate:
    """Estimate a block's cost from the rates of its most specific group."""
    for name in _group_names(block, setup):
        if name in rates:
            group = rates[name]
            value = float(count_work(_block_work(block, setup)) @ np.array(group.rates))
            return RateEstimate(value, group.sd_share, name)
    return RateEstimate(0.0, _OTHER_KIND_SD_SHARE, "")


def estimate_update_share(rates: Rates, block: Block, setup: Setup) -> float:
    """Return the share of a block's cost that updates its weights, once per step."""
    whole = estimate_block(rates, block, setup)
    if whole.value <= 0:
        return 0.0
    updates = [layer_work(layer, setup).update for layer in block.layers]
    update = count_work(sum(updates[1:], updates[0]))
    return float(update @ np.array(rates[whole.group].rates)) / whole.value


@lru_cache(maxsize=8192)
def _block_work(block: Block, setup: Setup) -> Work:
    works = [layer_work(layer, setup).total for layer in block.layers]
    return sum(works[1:], works[0])


def _group_names(block: Block, setup: Setup) -> tuple[str, ...]:
    """Return the names of the groups that a block belongs to, the most specific first."""
    name = REPEATED if block.role == REPEATED else block.layers[0].kind
    kind, of_setup = f"kind:{name}", f"setup:{setup_key(setup)}"
    return (f"{of_setup} {kind}", of_setup, kind, ALL)


def _fit_group(name: str, points: Sequence[ProfiledBlock]) -> GroupRates:
    values: Floats = np.array([point.value for point in points])
    sds = np.array([point.sd for point in points])
    floor = _MEDIAN_SHARE * float(np.median(np.abs(values)))
    scales = np.maximum(np.hypot(values, _SD_FACTOR * sds), floor)
    work = np.array([count_work(_block_work(point.block, point.setup)) for point in points])
    rates, error_share = fit_work_rates(work, values, scales)
    least = _SAME_KIND_SD_SHARE if "kind:" in name else _OTHER_KIND_SD_SHARE
    return GroupRates(tuple(rates.tolist()), max(error_share, least), len(points))
