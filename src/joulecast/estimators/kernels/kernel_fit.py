"""Fit regressions of kernels to what was observed under each setup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.estimators.kernels.fitted_kernels import (
    CostModel,
    KernelSums,
    SetupModel,
    SumFactor,
    name_main,
    predict_sums,
)
from joulecast.estimators.kernels.kernel_points import CostPoint, SetupPoints
from joulecast.estimators.kernels.kernel_regressions import FEWEST_POINTS, KernelRegression
from joulecast.estimators.kernels.work_means import WorkMean, fit_work_mean
from joulecast.fusion import FusedKernel

FitRegression = Callable[[Sequence[FusedKernel], Floats, Floats, bool], KernelRegression]

# Priors of the factor of whole networks over the sum of their kernels: what is in a cache when a
# kernel starts is different, and so is the clock. Standard deviations of logarithms.
_FACTOR_LOG_SD = 0.1
_SCATTER_LOG_SD = 0.03
# Observations that the scatter's prior counts for.
_SCATTER_WEIGHT = 4.0
NO_FACTOR = SumFactor(0.0, _FACTOR_LOG_SD**2, _SCATTER_LOG_SD**2)


@dataclass(frozen=True)
class _CostColumn:
    """One cost of each point that has it: durations, or powers."""

    points: tuple[CostPoint, ...]
    costs: Floats
    sd_shares: Floats
    by_work: bool


def fit_setup(points: SetupPoints, fit: FitRegression) -> SetupModel:
    """Return the model of a setup."""
    durations = _CostColumn(
        points.points,
        np.array([one.duration_s for one in points.points]),
        np.array([one.duration_sd_share for one in points.points]),
        by_work=True,
    )
    metered = tuple(one for one in points.points if one.power_w)
    powers = _CostColumn(
        metered,
        np.array([one.power_w for one in metered], float),
        np.array([one.power_sd_share for one in metered]),
        by_work=False,
    )
    model = SetupModel(points.overhead, _fit_cost(durations, fit), _fit_cost(powers, fit))
    return _add_factors(model, points.points)


def _fit_cost(column: _CostColumn, fit: FitRegression) -> CostModel:
    """Return regressions of the kernels that ran alone, and a mean by work for the others."""
    single = [at for at, point in enumerate(column.points) if point.is_single]
    groups: dict[str, list[int]] = {}
    for at in single:
        (kernel,) = column.points[at].kernels
        groups.setdefault(kernel.kind, []).append(at)
        groups.setdefault(name_main(kernel.kind), []).append(at)
    regressions = {
        kind: _fit_group(column, places, fit)
        for kind, places in sorted(groups.items())
        if _count_distinct(column, places) >= FEWEST_POINTS
    }
    return CostModel(regressions, _fit_mean(column, single), NO_FACTOR)


def _fit_group(column: _CostColumn, places: Sequence[int], fit: FitRegression) -> KernelRegression:
    kernels = tuple(column.points[at].kernels[0] for at in places)
    costs = column.costs[list(places)]
    if column.by_work:
        costs = costs / np.array([kernel.count for kernel in kernels])
    sd_shares = column.sd_shares[list(places)]
    return _fit_cached(fit, kernels, tuple(costs), tuple(sd_shares), column.by_work)


# One more observation changes the regressions of one kind; the others are the same as before.
@lru_cache(maxsize=512)
def _fit_cached(
    fit: FitRegression,
    kernels: tuple[FusedKernel, ...],
    costs: tuple[float, ...],
    sd_shares: tuple[float, ...],
    by_work: bool,
) -> KernelRegression:
    return fit(kernels, np.array(costs), np.array(sd_shares), by_work)


def _count_distinct(column: _CostColumn, places: Sequence[int]) -> int:
    return len({column.points[at].kernels[0].features for at in places})


def _fit_mean(column: _CostColumn, single: Sequence[int]) -> WorkMean:
    """Return the mean by work of kernels that ran alone; of whole networks if none did."""
    if not len(column.costs):
        return WorkMean((0.0, 0.0, 0.0, 1.0), 0.5, 0)
    places = list(single) or list(range(len(column.costs)))
    costs = column.costs[places]
    if column.by_work:
        return fit_work_mean([column.points[at].kernels for at in places], costs)
    logs = np.log(costs)
    level, log_sd = float(np.exp(logs.mean())), float(max(0.1, logs.std()))
    return WorkMean((0.0, 0.0, 0.0, level), log_sd, len(costs))


def _add_factors(model: SetupModel, points: Sequence[CostPoint]) -> SetupModel:
    """Return the model with the factors that whole networks show."""
    networks = [point for point in points if not point.is_single]
    if not networks:
        return model
    bare = replace(model, overhead=type(model.overhead)())
    costs = predict_sums(bare, KernelSums.of_networks([point.kernels for point in networks]))
    durations = np.array([point.duration_s for point in networks])
    own_variance = costs.duration_variance / costs.duration_s**2
    common = model.duration.factor.log_variance + model.duration.factor.scatter_variance
    variance = np.maximum(own_variance - common, 0.0)
    duration = _fit_factor(np.log(durations / costs.duration_s), variance)
    powers = np.array([point.power_w or np.nan for point in networks])
    ratios = np.log(powers / (costs.energy_j / costs.duration_s))
    has_power = np.isfinite(ratios)
    power = model.power.factor
    if has_power.any():
        spread = np.maximum(costs.power_log_variance - common, 0.0)
        power = _fit_factor(ratios[has_power], spread[has_power])
    return replace(
        model,
        duration=replace(model.duration, factor=duration),
        power=replace(model.power, factor=power),
    )


def _fit_factor(log_ratios: Floats, variances: Floats) -> SumFactor:
    """Return the posterior of the factor: networks vary around it, and their kernels are unsure."""
    scatter = _SCATTER_LOG_SD**2
    for _ in range(3):
        precisions = 1.0 / (variances + scatter)
        variance = 1.0 / (1.0 / _FACTOR_LOG_SD**2 + precisions.sum())
        mean = variance * (precisions * log_ratios).sum()
        squares = np.maximum((log_ratios - mean) ** 2 - variances, 0.0)
        weight = _SCATTER_WEIGHT + len(log_ratios)
        scatter = (_SCATTER_WEIGHT * _SCATTER_LOG_SD**2 + squares.sum()) / weight
    return SumFactor(float(mean), float(variance), float(scatter), len(log_ratios))
