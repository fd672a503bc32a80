"""Fit the cost of one stage type over its sizes: a polynomial for runtime, one for power.

    T̂   up to degree 3 in the sizes, with FLOPs and bytes
    P̂   up to degree 2 in the sizes and their logarithms, with FLOPs and bytes
    Ê = P̂ · T̂

A predicted runtime is never below the shortest one observed for the type, a predicted power never
outside the observed range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.baselines.polynomials import MIN_POINTS, Polynomial, fit_polynomial
from joulecast.estimators.baselines.stages import LayerStage, ObservedStage, list_sizes
from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record, always_stored
from joulecast.variants import describe_part

TIME_DEGREE = 3
POWER_DEGREE = 2
SPECIAL_COLUMNS = 2
"""The last columns: FLOPs and bytes."""

# Standard deviations of fits to few points, which cross-validation cannot estimate: of different
# sizes, and of one size alone.
_FEW_SD_SHARE = 0.3
_ONE_SIZE_SD_SHARE = 0.05


@dataclass(frozen=True)
class StageRegression(Record):
    """Runtime and power of one stage type over its columns: all sizes, then FLOPs and bytes.

    Attributes:
        varying: Indices of the sizes that differ between points, without repetitions.
        lows: Smallest observed value of each column.
        highs: Largest observed value of each column.
        sd_share: Cross-validated relative error of the energies.
        count: Number of points.
    """

    label: str
    varying: tuple[int, ...] = always_stored(json_name="moving")
    lows: Floats = always_stored()
    highs: Floats = always_stored()
    min_duration_s: float = always_stored(json_name="least_s")
    min_power_w: float = always_stored(json_name="least_w")
    max_power_w: float = always_stored(json_name="most_w")
    duration: Polynomial = always_stored(json_name="time")
    power: Polynomial = always_stored()
    sd_share: float = always_stored(json_name="spread")
    count: int = always_stored(json_name="n")

    def predict(self, columns: Floats) -> tuple[Floats, Floats]:
        """Return durations and powers of points within the observed sizes."""
        durations_s = self.duration.predict(_scale(columns, self.highs, self.varying))
        powers_w = self.power.predict(_scale(columns, self.highs, self.varying, with_logs=True))
        return (
            np.maximum(durations_s, self.min_duration_s),
            np.clip(powers_w, self.min_power_w, self.max_power_w),
        )


def fit_regression(points: Iterable[ObservedStage]) -> StageRegression:
    """Fit runtime and power of one stage type."""
    # Sorted, so that the fit does not depend on the order of the observations.
    points = sorted(points, key=lambda p: (list_sizes(p.stage.part), p.duration_s, p.energy_j))
    stages = [point.stage for point in points]
    durations_s, energies_j = list_costs(points)
    powers_w = energies_j / durations_s
    columns = list_columns(stages)
    highs, varying = columns.max(axis=0), _find_varying(columns[:, :-SPECIAL_COLUMNS])
    duration, predicted_s = fit_polynomial(
        _scale(columns, highs, varying), durations_s, SPECIAL_COLUMNS, TIME_DEGREE
    )
    power, predicted_w = fit_polynomial(
        _scale(columns, highs, varying, with_logs=True), powers_w, SPECIAL_COLUMNS, POWER_DEGREE
    )
    predicted_j = np.maximum(predicted_s, durations_s.min())
    predicted_j = predicted_j * np.clip(predicted_w, powers_w.min(), powers_w.max())
    sd_share = float(np.sqrt(np.mean((predicted_j / energies_j - 1.0) ** 2)))
    if len(points) < MIN_POINTS:
        sd_share = _FEW_SD_SHARE if varying else _ONE_SIZE_SD_SHARE
    return StageRegression(
        label=f"{stages[0].name} of {describe_part(stages[0].part)}",
        varying=varying,
        lows=columns.min(axis=0),
        highs=highs,
        min_duration_s=float(durations_s.min()),
        min_power_w=float(powers_w.min()),
        max_power_w=float(powers_w.max()),
        duration=duration,
        power=power,
        sd_share=sd_share,
        count=len(points),
    )


def list_columns(stages: Sequence[LayerStage]) -> Floats:
    """Return the sizes, FLOPs and bytes of stages of one type, one row each."""
    rows = [
        [*(size for _, size in list_sizes(stage.part)), stage.work.flops, stage.work.size_bytes]
        for stage in stages
    ]
    return np.array(rows, dtype=float)


def list_costs(points: Sequence[ObservedStage]) -> tuple[Floats, Floats]:
    """Return durations and energies."""
    durations_s = np.array([point.duration_s for point in points], dtype=float)
    return durations_s, np.array([point.energy_j for point in points], dtype=float)


def _find_varying(sizes: Floats) -> tuple[int, ...]:
    """Return the sizes that differ between points, without those proportional to another."""
    shares = sizes / np.maximum(sizes.max(axis=0), 1.0)
    _, first = np.unique(shares.round(9), axis=1, return_index=True)
    return tuple(sorted(int(at) for at in first if np.ptp(sizes[:, at]) > 0))


def _scale(
    columns: Floats, highs: Floats, varying: Sequence[int], with_logs: bool = False
) -> Floats:
    """Return varying sizes, their logarithms on request, FLOPs and bytes, relative to highs."""
    sizes, largest = columns[:, varying], highs[list(varying)]
    special = columns[:, -SPECIAL_COLUMNS:] / np.maximum(highs[-SPECIAL_COLUMNS:], 1.0)
    logs = [np.log2(1.0 + sizes) / np.log2(1.0 + largest)] if with_logs else []
    return np.hstack([sizes / largest, *logs, special])
