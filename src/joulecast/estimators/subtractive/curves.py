"""Fit curves to observations of variants: subtract the other blocks, then fit, role by role.

    observation ──read──▶ VariantPoint(block, others, value, variance)
    output curves first ─▶ input curves: value - Ê_output ─▶ hidden: value - Ê_input - Ê_output

The variance of what is subtracted is added to the point's own. An observation whose other blocks
have no curve yet is left out. Energies and durations are treated alike. Only networks that
Joulecast built itself are used: a user's module may do work that its layers do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.gp.regression import GaussianProcess
from joulecast.operators import layer_work
from joulecast.records import Observation, Setup
from joulecast.variants import REPEATED, ROLES, Block, Widths, block_widths, curve_key
from joulecast.variants.curves import LAYERS, Partition

Location = tuple[str, Widths]
"""A point of a curve: the curve's key and the widths."""

FitProcess = Callable[[tuple[Widths, ...], tuple[float, ...], tuple[float, ...]], GaussianProcess]
"""Fits a process to widths, values and variances."""

QUANTITIES = ("energy", "time")
# Standard deviation of a single observation, which shows no spread, and the smallest of any.
_SINGLE_SD_SHARE = 0.02
_MIN_SD_SHARE = 0.005
# The median of n readings has 1.25 times the standard deviation of their mean.
_MEDIAN_FACTOR = 1.25
# Work of a network that belongs to no layer: subtraction would attribute it to the wrong curve.
_MAX_UNATTRIBUTED_SHARE = 0.01


@dataclass(frozen=True)
class Curve:
    """The cost of one layer over its widths; ``block`` is one of its points."""

    block: Block
    setup: Setup
    process: GaussianProcess

    @property
    def mean_abs_value(self) -> float:
        """Mean absolute value of the profiled points, which uncertainty is relative to."""
        return float(np.abs(self.process.values).mean())


@dataclass(frozen=True)
class VariantPoint:
    """An observed variant as a point of its block's curve, before subtraction."""

    block: Block
    others: tuple[Block, ...]
    setup: Setup
    value: float
    variance: float

    @property
    def other_locations(self) -> tuple[Location, ...]:
        """Locations of the other blocks on their curves."""
        return tuple((curve_key(block, self.setup), block_widths(block)) for block in self.others)


def fit_curves(
    observations: Iterable[Observation],
    quantity: str,
    fit: FitProcess,
    partition: Partition = LAYERS,
    carries_variance: bool = True,
) -> dict[str, Curve]:
    """Fit all curves that the observations show, by key."""
    groups: dict[str, list[VariantPoint]] = {}
    for observation in observations:
        point = read_point(observation, quantity, partition)
        if point:
            groups.setdefault(curve_key(point.block, point.setup), []).append(point)
    curves: dict[str, Curve] = {}
    for role in (*ROLES, REPEATED):
        own = {key: group for key, group in groups.items() if group[0].block.role == role}
        locations = (at for group in own.values() for one in group for at in one.other_locations)
        costs = predict_locations(curves, locations)
        for key in sorted(own):
            curve = _fit_curve(own[key], costs, fit, carries_variance)
            if curve:
                curves[key] = curve
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


def predict_locations(
    curves: Mapping[str, Curve], locations: Iterable[Location]
) -> dict[Location, tuple[float, float]]:
    """Return the mean and variance at each location whose curve is known."""
    by_key: dict[str, dict[Widths, None]] = {}
    for key, widths in locations:
        if key in curves:
            by_key.setdefault(key, {})[widths] = None
    costs = {}
    for key, wanted in by_key.items():
        process = curves[key].process
        means, cov = process.predict(width_rows(wanted))
        variances = np.diag(cov) + process.nugget_variance
        for widths, mean, variance in zip(wanted, means, variances, strict=True):
            costs[key, widths] = (float(mean), max(0.0, float(variance)))
    return costs


def width_rows(widths: Iterable[Sequence[int]]) -> Floats:
    """Return widths as rows of numbers; a curve without widths has one column of 1."""
    return np.array([list(point) or [1] for point in widths], dtype=float)


def _fit_curve(
    group: Sequence[VariantPoint],
    costs: Mapping[Location, tuple[float, float]],
    fit: FitProcess,
    carries_variance: bool,
) -> Curve | None:
    points = []
    for point in group:
        if all(location in costs for location in point.other_locations):
            others = [costs[location] for location in point.other_locations]
            value = point.value - sum(mean for mean, _ in others)
            variance = point.variance
            if carries_variance:
                variance += sum(variance for _, variance in others)
            points.append((block_widths(point.block), value, variance))
    if not points:
        return None
    # Sorted, so that the fit does not depend on the order of the observations.
    widths, values, variances = zip(*sorted(points), strict=True)
    return Curve(group[0].block, group[0].setup, fit(widths, values, variances))


def _per_step(seen: Observation, quantity: str) -> tuple[float | None, float]:
    """Return the energy or duration of one step, and the variance of its median."""
    value, sd = seen.energy_j, seen.energy_sd_j
    if quantity == "time":
        value, sd = seen.duration_s, seen.duration_sd_s
    if value is None:
        return None, 0.0
    sd_share = _SINGLE_SD_SHARE
    if sd is not None and seen.count > 1 and value > 0:
        sd_share = max(_MIN_SD_SHARE, _MEDIAN_FACTOR * sd / value / seen.count**0.5)
    per_step = value / seen.trial.execution.steps
    return per_step, (sd_share * per_step) ** 2
