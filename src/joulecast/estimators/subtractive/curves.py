"""Fit the paper's curves by subtraction, and add them up for many networks at once.

    observation ──read──▶ VariantPoint(block, others, value, variance)
    output curves first ─▶ input curves: value - Ê_output ─▶ hidden: value - Ê_input - Ê_output

The variance of what is subtracted is added to the point's own. An observation whose other blocks
have no curve yet is left out. Energies and durations are treated alike. Only networks that
Joulecast built itself are used: a user's module may do work that its layers do not show.

Totals follow equation 4, with their joint covariance:

    E = A·m,  Cov(E) = A·(Σ + nugget·I)·Aᵀ + Σ_r d_r·d_rᵀ

    A       how often each network runs each distinct point of a curve
    m, Σ    the curve's joint posterior there, so that networks with the same layer share its error
    d_r     standard deviations of the blocks estimated by rates of group r, which share that error

Beyond the profiled widths a curve is not evaluated: its value at the nearest profiled widths is
extrapolated in proportion to the rates. Where a curve's mean is below its standard deviation,
subtraction has left little but noise: the sum then uses the mean of curve and rates, weighted by
their variances, and both variances remain. Weights are updated once per step, however often their
layer is called and whichever layers share them: a further call counts without the update's share of
the cost. The paper has none of these three; ``options.py`` turns each off.

Layers that were never profiled are estimated by rates per FLOP, byte and launch:

    y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0, least squares of (y - ŷ) / s
    s   the size of y or of its error: subtraction operators mostly noise of a light layer

Rates are fitted for each kind in each setup, for all kinds of a setup, for each kind, and for
everything. The most specific group with enough points is used. Its uncertainty is the error on its
own points, but never below a floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from joulecast.estimators.base import Floats, Json, count_work, fit_work_rates, setup_key
from joulecast.estimators.subtractive.options import OURS, SubtractiveOptions
from joulecast.gp.regression import GaussianProcess
from joulecast.operators import layer_work
from joulecast.records import MEDIAN_SD_FACTOR, Observation, Setup
from joulecast.records.codec import Record, always_stored
from joulecast.variants import (
    REPEATED,
    ROLES,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    curve_key,
    resize_block,
)
from joulecast.variants.curves import LAYERS, Partition

FitProcess = Callable[[tuple[Widths, ...], tuple[float, ...], tuple[float, ...]], GaussianProcess]
"""Fits a process to widths, values and variances."""

QUANTITIES = ("energy", "time")
# Standard deviation of a single observation, which shows no spread, and the smallest of any.
_SINGLE_SD_SHARE = 0.02
_MIN_SD_SHARE = 0.005
# Work of a network that belongs to no layer: subtraction would attribute it to the wrong curve.
_MAX_UNATTRIBUTED_SHARE = 0.01


class VariantPoint(NamedTuple):
    """The cost of a block, or of a variant, as long as its other blocks are not subtracted."""

    block: Block
    others: tuple[Block, ...]
    setup: Setup
    value: float
    variance: float


@dataclass(frozen=True)
class Curve:
    """The cost of one layer over its widths, and the points that it was fitted to."""

    points: tuple[VariantPoint, ...]
    process: GaussianProcess


def fit_curves(
    observations: Iterable[Observation],
    quantity: str,
    fit: FitProcess,
    partition: Partition = LAYERS,
    carries_variance: bool = True,
) -> dict[str, Curve]:
    """Fit all curves that the observations show, by key."""
    read = (read_point(observation, quantity, partition) for observation in observations)
    points = [point for point in read if point]
    curves: dict[str, Curve] = {}
    for role in (*ROLES, REPEATED):
        own = [point for point in points if point.block.role == role]
        groups: dict[str, list[VariantPoint]] = {}
        for point in subtract_others(own, curves, carries_variance):
            groups.setdefault(curve_key(point.block, point.setup), []).append(point)
        for key, group in sorted(groups.items()):
            # Sorted, so that the fit does not depend on the order of the observations.
            group.sort(key=lambda one: (block_widths(one.block), one.value, one.variance))
            widths = tuple(block_widths(point.block) for point in group)
            values, variances = zip(*((one.value, one.variance) for one in group), strict=True)
            process = fit(widths, values, variances)
            # Rates weigh points as the process does, which may ignore that they are noisy.
            rows = zip(group, process.variances.tolist(), strict=True)
            curves[key] = Curve(tuple(one._replace(variance=own) for one, own in rows), process)
    return curves


def read_point(
    observation: Observation, quantity: str, partition: Partition = LAYERS
) -> VariantPoint | None:
    """Return the point that an observation shows; None if it does not show a variant."""
    value, variance = _per_step(observation, quantity)
    if value is None or not observation.trial.execution.is_user_step:
        return None
    blocks = read_variant_blocks(observation, partition)
    if blocks is None:
        return None
    return VariantPoint(blocks[0], blocks[1:], observation.trial.setup, value, variance)


def read_variant_blocks(
    observation: Observation, partition: Partition = LAYERS
) -> tuple[Block, ...] | None:
    """Return the block that a variant shows, then those to subtract; None if it is no variant."""
    network, setup = observation.trial.network, observation.trial.setup
    if observation.source or setup.loss == "own" or not network.buildable:
        return None
    # A graph without weights shows the overhead of a run (``kernels``): every variant has a head.
    if not any(layer_work(layer, setup).params for layer in network.layers):
        return None
    totals = network.totals
    if totals is not None:
        unattributed_share = max(
            totals.unattributed_flops_share,
            totals.unattributed_bytes_share,
            totals.unattributed_params_share,
        )
        if unattributed_share > _MAX_UNATTRIBUTED_SHARE:
            return None
    return partition.read_variant(network)


def subtract_others(
    points: Sequence[VariantPoint], curves: Mapping[str, Curve], carries_variance: bool = True
) -> list[VariantPoint]:
    """Return points less what curves say of their other blocks, if all of these have one."""
    wanted: dict[str, dict[Widths, None]] = {}
    for point in points:
        for block in point.others:
            wanted.setdefault(curve_key(block, point.setup), {})[block_widths(block)] = None
    costs: dict[tuple[str, Widths], tuple[float, float]] = {}
    for key, own in wanted.items():
        if key in curves:
            process = curves[key].process
            means, cov = process.predict(width_rows(own))
            variances = np.maximum(np.diag(cov) + process.nugget_variance, 0.0)
            rows = zip(own, means.tolist(), variances.tolist(), strict=True)
            costs |= {(key, widths): (mean, variance) for widths, mean, variance in rows}
    found = []
    for point in points:
        places = [(curve_key(one, point.setup), block_widths(one)) for one in point.others]
        if all(place in costs for place in places):
            value = point.value - sum(costs[place][0] for place in places)
            added = sum(costs[place][1] for place in places) if carries_variance else 0.0
            found.append(VariantPoint(point.block, (), point.setup, value, point.variance + added))
    return found


def width_rows(widths: Iterable[Sequence[int]]) -> Floats:
    """Return widths as rows of numbers; a curve without widths has one column of 1."""
    return np.array([list(point) or [1] for point in widths], dtype=float)


def _per_step(seen: Observation, quantity: str) -> tuple[float | None, float]:
    """Return the energy or duration of one step, and the variance of its median."""
    value, sd = seen.energy_j, seen.energy_sd_j
    if quantity == "time":
        value, sd = seen.duration_s, seen.duration_sd_s
    if value is None:
        return None, 0.0
    sd_share = _SINGLE_SD_SHARE
    if sd is not None and seen.count > 1 and value > 0:
        sd_share = max(_MIN_SD_SHARE, MEDIAN_SD_FACTOR * sd / value / seen.count**0.5)
    per_step = value / seen.trial.execution.steps
    return per_step, (sd_share * per_step) ** 2


class BlockCost(NamedTuple):
    """The cost of a block.

    Attributes:
        seen: Whether a curve shows it within the profiled widths.
        errors: What it rests on, each with the number of times that it counts: a point of a curve,
            or a standard deviation of the rates of a group.
    """

    value: float
    seen: bool
    errors: tuple[tuple[str, int, float], ...]

    def times(self, calls: float) -> BlockCost:
        """Return the cost of so many calls."""
        errors = tuple((source, at, calls * weight) for source, at, weight in self.errors)
        return BlockCost(calls * self.value, self.seen, errors)


class NetworkSums(NamedTuple):
    """Totals of n networks, their covariance, and the costs of their blocks."""

    totals: Floats
    cov: Floats
    costs: tuple[tuple[BlockCost, ...], ...]


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
    keys = {one.block: curve_key(one.block, setup) for blocks in networks for one in blocks}
    evaluated: dict[str, _EvaluatedCurve] = {}
    for block, key in keys.items():
        if data := curves.get(key, {}).get(quantity):
            if key not in evaluated:
                process = GaussianProcess.from_dict(data)
                evaluated[key] = _EvaluatedCurve(key, process, options.extrapolation)
            evaluated[key].add(block_widths(block))
    known = {
        block: _find_cost(block, evaluated.get(key), rates, setup, options)
        for block, key in keys.items()
    }
    costs = tuple(
        tuple(known[one.block].times(_count_calls(one, rates, setup, options)) for one in blocks)
        for blocks in networks
    )
    # The rates of a group are one source of errors, of variance 1.
    covs = {key: curve.posterior[1] for key, curve in evaluated.items()}
    weights: dict[str, Floats] = {}
    for row, blocks in enumerate(costs):
        for source, at, weight in (error for cost in blocks for error in cost.errors):
            cov = covs.setdefault(source, np.ones((1, 1)))
            weights.setdefault(source, np.zeros((len(costs), len(cov))))[row, at] += weight
    total_cov = np.zeros((len(costs), len(costs)))
    for source, counts in weights.items():
        total_cov += counts @ covs[source] @ counts.T
    totals = np.array([sum(cost.value for cost in blocks) for blocks in costs], dtype=float)
    return NetworkSums(totals, total_cov, costs)


class _EvaluatedCurve:
    """A curve at the points that some networks run; ``index`` numbers these by their widths."""

    def __init__(self, key: str, process: GaussianProcess, is_clipped: bool) -> None:
        self.key, self.index = key, dict[Widths, int]()
        self._process, self._is_clipped = process, is_clipped
        self._lows, self._highs = process.inputs.min(axis=0), process.inputs.max(axis=0)

    def clip(self, widths: Widths) -> Widths:
        """Return widths, or the nearest profiled ones."""
        # A block without widths has a curve with one column.
        bounds = zip(widths, self._lows, self._highs, strict=False)
        return tuple(int(min(max(width, low), high)) for width, low, high in bounds)

    def add(self, widths: Widths) -> Widths:
        """Return the widths at which the curve is evaluated for some widths, and number them."""
        widths = self.clip(widths) if self._is_clipped else widths
        self.index.setdefault(widths, len(self.index))
        return widths

    @cached_property
    def posterior(self) -> tuple[Floats, Floats]:
        """Means and covariance at all points that were added."""
        means, cov = self._process.predict(width_rows(self.index))
        return means, cov + self._process.nugget_variance * np.eye(len(means))


def _find_cost(
    block: Block,
    curve: _EvaluatedCurve | None,
    rates: Rates,
    setup: Setup,
    options: SubtractiveOptions,
) -> BlockCost:
    """Return the cost of one call of a block."""
    own = estimate_block(rates, block, setup)
    if curve is None:
        return BlockCost(own.value, False, ((own.group, 0, own.value * own.sd_share),))
    widths = block_widths(block)
    nearest, ratio, nearest_value = curve.add(widths), 1.0, own.value
    if nearest != widths:
        nearest_value = estimate_block(rates, resize_block(block, nearest), setup).value
        ratio = own.value / (nearest_value or own.value or 1.0)
    at, (means, cov) = curve.index[nearest], curve.posterior
    mean, variance = float(means[at]), float(cov[at, at])
    weight, rate_sd = 1.0, 0.0
    if options.blend and nearest_value > 0 and mean < variance**0.5:
        rate_sd = nearest_value * own.sd_share
        weight = rate_sd**2 / (variance + rate_sd**2)
        mean = weight * mean + (1.0 - weight) * nearest_value
        rate_sd *= 1.0 - weight
    if options.blend:
        mean = max(mean, 0.0)
    rate_sd = ratio * rate_sd + abs(ratio - 1.0) * mean * own.sd_share
    errors = (curve.key, at, weight * ratio), (own.group, 0, rate_sd)
    return BlockCost(mean * ratio, curve.clip(widths) == widths, errors)


def _count_calls(
    placed: PlacedBlock, rates: Rates, setup: Setup, options: SubtractiveOptions
) -> float:
    """Return how often a block counts: further calls and tied weights skip the update."""
    repeats = placed.calls - 1 + any(layer.tied for layer in placed.layers)
    if not repeats or not options.updates:
        return float(placed.calls)
    return placed.calls - repeats * estimate_block(rates, placed.block, setup).update_share


_MIN_POINTS = 4
_SAME_KIND_SD_SHARE = 0.3
_OTHER_KIND_SD_SHARE = 0.6
# The error of a point is relative to its value, to this many of its standard deviations, or to this
# share of the median value, whichever is largest: layers that cost nearly nothing would dominate.
_SD_FACTOR = 4.0
_MEDIAN_SHARE = 0.1

ALL = "*"


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


Rates = Mapping[str, GroupRates]


class RateEstimate(NamedTuple):
    """A block's cost from rates, its standard deviation as a share of it, and the group.

    ``update_share`` is the share of the cost that updates its weights, once per step.
    """

    value: float
    sd_share: float
    group: str
    update_share: float


def fit_rates(points: Iterable[VariantPoint]) -> dict[str, GroupRates]:
    """Fit the rates of every group, by its name."""
    groups: dict[str, list[VariantPoint]] = {}
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
            value, update = (_count_block(block, setup) @ np.array(group.rates)).tolist()
            return RateEstimate(value, group.sd_share, name, update / value if value > 0 else 0.0)
    return RateEstimate(0.0, _OTHER_KIND_SD_SHARE, "", 0.0)


@lru_cache(maxsize=8192)
def _count_block(block: Block, setup: Setup) -> Floats:
    """Return FLOPs, bytes and launches of a block, and those of its update."""
    works = [layer_work(layer, setup) for layer in block.layers]
    rows = [[count_work(one.total), count_work(one.update)] for one in works]
    return np.asarray(np.sum(rows, axis=0))


def _group_names(block: Block, setup: Setup) -> tuple[str, ...]:
    """Return the names of the groups that a block belongs to, the most specific first."""
    name = REPEATED if block.role == REPEATED else block.layers[0].kind
    kind, of_setup = f"kind:{name}", f"setup:{setup_key(setup)}"
    return (f"{of_setup} {kind}", of_setup, kind, ALL)


def _fit_group(name: str, points: Sequence[VariantPoint]) -> GroupRates:
    values: Floats = np.array([point.value for point in points])
    sds = np.sqrt([point.variance for point in points])
    floor = _MEDIAN_SHARE * float(np.median(np.abs(values)))
    scales = np.maximum(np.hypot(values, _SD_FACTOR * sds), floor)
    work = np.array([_count_block(point.block, point.setup)[0] for point in points])
    rates, error_share = fit_work_rates(work, values, scales)
    least = _SAME_KIND_SD_SHARE if "kind:" in name else _OTHER_KIND_SD_SHARE
    return GroupRates(tuple(rates.tolist()), max(error_share, least), len(points))
