"""Predict the energy and duration of any stage, from its type's regression or from rates.

    rates:  y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0      for each setup, and for all

Polynomials are unreliable outside the observed sizes. There the value at the nearest observed sizes
is extrapolated in proportion to the rates, and the stage counts as unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulecast.estimators.base import ALL_SETUPS, count_work, fit_work_rates, setup_key
from joulecast.estimators.baselines.regressions import (
    SPECIAL_COLUMNS,
    StageRegression,
    list_columns,
    list_costs,
)
from joulecast.estimators.baselines.stages import LayerStage, ObservedStage
from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record, always_stored

# Rates may fit their own points and still be far off elsewhere.
_MIN_RATE_SD_SHARE = 0.6
# Errors are relative to a cost, or to this share of the median cost if that is larger.
_MEDIAN_SHARE = 0.1


class StageCost(NamedTuple):
    """The predicted cost of a stage.

    Attributes:
        sd_share: Standard deviation of the energy, as a share of it.
        has_regression: Whether its type has a regression.
        seen: Whether it lies within the observed sizes.
    """

    energy_j: float
    duration_s: float
    sd_share: float
    has_regression: bool
    seen: bool


@dataclass(frozen=True)
class StageRates(Record):
    """Energy and duration per FLOP, byte and launch.

    Attributes:
        sd_share: Standard deviation of an energy, as a share of it.
    """

    energy: tuple[float, ...]
    duration: tuple[float, ...] = always_stored(json_name="time")
    sd_share: float = always_stored(json_name="spread")


def fit_stage_rates(points: Sequence[ObservedStage]) -> dict[str, StageRates]:
    """Fit rates by setup, and for all setups together."""
    groups: dict[str, list[ObservedStage]] = {ALL_SETUPS: list(points)}
    for point in points:
        groups.setdefault(setup_key(point.stage.setup), []).append(point)
    return {key: _fit_rates(group) for key, group in sorted(groups.items())}


def predict_stages(
    regressions: Mapping[str, StageRegression],
    rates: Mapping[str, StageRates],
    stages: Iterable[LayerStage],
) -> dict[LayerStage, StageCost]:
    """Predict the cost of each of many stages, those of one type together."""
    groups: dict[str, list[LayerStage]] = {}
    for stage in dict.fromkeys(stages):
        groups.setdefault(stage.type_key, []).append(stage)
    costs: dict[LayerStage, StageCost] = {}
    for type_key, group in groups.items():
        own_rates = rates.get(setup_key(group[0].setup), rates[ALL_SETUPS])
        regression = regressions.get(type_key)
        if regression:
            found = _predict_by_regression(regression, own_rates, group)
        else:
            found = _predict_by_rates(own_rates, group)
        costs.update(zip(group, found, strict=True))
    return costs


def _predict_by_rates(rates: StageRates, stages: Sequence[LayerStage]) -> list[StageCost]:
    work = _list_work(stages)
    pairs = zip(work @ np.array(rates.energy), work @ np.array(rates.duration), strict=True)
    return [StageCost(float(j), float(s), rates.sd_share, False, False) for j, s in pairs]


def _predict_by_regression(
    regression: StageRegression, rates: StageRates, stages: Sequence[LayerStage]
) -> list[StageCost]:
    columns = list_columns(stages)
    nearest = np.clip(columns, regression.lows, regression.highs)
    durations_s, powers_w = regression.predict(nearest)
    work = _list_work(stages)
    nearest_work = np.hstack([nearest[:, -SPECIAL_COLUMNS:], work[:, SPECIAL_COLUMNS:]])
    per_work = np.array(rates.duration)
    factors = (work @ per_work) / np.maximum(nearest_work @ per_work, 1e-300)
    inside = (nearest == columns).all(axis=1)
    factors = np.where(inside | (nearest_work @ per_work <= 0), 1.0, factors)
    costs = []
    for time_s, power_w, factor, seen in zip(durations_s, powers_w, factors, inside, strict=True):
        # The extrapolated part is as uncertain as the rates.
        extrapolated_share = abs(factor - 1.0) / max(factor, 1.0)
        sd_share = regression.sd_share + float(extrapolated_share) * rates.sd_share
        duration_s = float(time_s * factor)
        energy_j = float(power_w) * duration_s
        costs.append(StageCost(energy_j, duration_s, sd_share, True, bool(seen)))
    return costs


def _fit_rates(points: Sequence[ObservedStage]) -> StageRates:
    work = _list_work([point.stage for point in points])
    durations_s, energies_j = list_costs(points)
    per_j, error_share = _fit_sorted(work, energies_j)
    per_s, _ = _fit_sorted(work, durations_s)
    return StageRates(per_j, per_s, max(error_share, _MIN_RATE_SD_SHARE))


def _fit_sorted(work: Floats, costs: Floats) -> tuple[tuple[float, ...], float]:
    """Fit rates to points in an order that does not depend on that of the observations."""
    order = np.lexsort((costs, *work.T))
    scales = np.maximum(costs, _MEDIAN_SHARE * np.median(costs))[order]
    rates, error_share = fit_work_rates(work[order], costs[order], scales)
    return tuple(rates.tolist()), error_share


def _list_work(stages: Sequence[LayerStage]) -> Floats:
    return np.array([count_work(stage.work) for stage in stages])
