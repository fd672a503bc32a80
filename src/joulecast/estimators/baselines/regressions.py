"""What one kind of stage costs over its sizes: a polynomial for runtime, one for power.

    T̂   up to degree 3 in the sizes, with FLOPs and bytes
    P̂   up to degree 2 in the sizes and their logarithms, with FLOPs and bytes
    Ê = P̂ · T̂

A runtime is never below the least that was seen of the kind, a power never beyond what was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.baselines.polynomials import LEAST_POINTS, Polynomial, fit_polynomial
from joulecast.estimators.baselines.stages import SeenStage, Stage, list_sizes
from joulecast.variants import describe_part

Json = dict[str, Any]
Floats = NDArray[np.float64]

TIME_DEGREE = 3
POWER_DEGREE = 2
# The last columns: FLOPs and bytes.
SPECIAL = 2
# Nobody knows how wrong a fit to a handful of points is; of one size alone, hardly at all.
_FEW_SPREAD = 0.3
_SAME_SPREAD = 0.05


@dataclass(frozen=True)
class Regression:
    """Runtime and power of one kind over its columns: all sizes, then FLOPs and bytes.

    Attributes:
        moving: Those sizes that differ between points, each once.
        lows: The least that was seen of each column; ``highs`` the most.
        spread: How far energies were off, as a share, when they were left out of the fit.
    """

    label: str
    moving: tuple[int, ...]
    lows: Floats
    highs: Floats
    least_s: float
    least_w: float
    most_w: float
    time: Polynomial
    power: Polynomial
    spread: float
    n: int

    def predict(self, columns: Floats) -> tuple[Floats, Floats]:
        """Seconds and watts of points within what was seen."""
        times = self.time.predict(_scale(columns, self.highs, self.moving))
        powers = self.power.predict(_scale(columns, self.highs, self.moving, logs=True))
        return np.maximum(times, self.least_s), np.clip(powers, self.least_w, self.most_w)

    def to_dict(self) -> Json:
        return {
            **self.__dict__,
            "moving": list(self.moving),
            "lows": self.lows.tolist(),
            "highs": self.highs.tolist(),
            "time": self.time.to_dict(),
            "power": self.power.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Regression:
        rich: Json = {
            "moving": tuple(data["moving"]),
            "lows": np.array(data["lows"], dtype=float),
            "highs": np.array(data["highs"], dtype=float),
            "time": Polynomial.from_dict(data["time"]),
            "power": Polynomial.from_dict(data["power"]),
        }
        return cls(**{**data, **rich})


def fit_regression(points: Iterable[SeenStage]) -> Regression:
    """Runtime and power of one kind from all that was seen of it."""
    # In an order of their own, so that the order in which they were seen leaves no trace.
    points = sorted(points, key=lambda p: (list_sizes(p.stage.part), p.duration_s, p.energy_j))
    stages = [point.stage for point in points]
    times, energies = list_costs(points)
    powers = energies / times
    columns = list_columns(stages)
    highs, moving = columns.max(axis=0), _find_moving(columns[:, :-SPECIAL])
    time, times_left_out = fit_polynomial(
        _scale(columns, highs, moving), times, SPECIAL, TIME_DEGREE
    )
    power, powers_left_out = fit_polynomial(
        _scale(columns, highs, moving, logs=True), powers, SPECIAL, POWER_DEGREE
    )
    guesses = np.maximum(times_left_out, times.min())
    guesses = guesses * np.clip(powers_left_out, powers.min(), powers.max())
    spread = float(np.sqrt(np.mean((guesses / energies - 1.0) ** 2)))
    if len(points) < LEAST_POINTS:
        spread = _FEW_SPREAD if moving else _SAME_SPREAD
    return Regression(
        label=f"{stages[0].name} of {describe_part(stages[0].part)}",
        moving=moving,
        lows=columns.min(axis=0),
        highs=highs,
        least_s=float(times.min()),
        least_w=float(powers.min()),
        most_w=float(powers.max()),
        time=time,
        power=power,
        spread=spread,
        n=len(points),
    )


def list_columns(stages: Sequence[Stage]) -> Floats:
    """The sizes of stages of one kind, their FLOPs and their bytes, one row each."""
    rows = [
        [*(size for _, size in list_sizes(stage.part)), stage.work.flops, stage.work.size_bytes]
        for stage in stages
    ]
    return np.array(rows, dtype=float)


def list_costs(points: Sequence[SeenStage]) -> tuple[Floats, Floats]:
    """Seconds and joules."""
    times = np.array([point.duration_s for point in points], dtype=float)
    return times, np.array([point.energy_j for point in points], dtype=float)


def _find_moving(sizes: Floats) -> tuple[int, ...]:
    """Sizes that differ between points, without those that only repeat another (height, width)."""
    shares = sizes / np.maximum(sizes.max(axis=0), 1.0)
    _, first = np.unique(shares.round(9), axis=1, return_index=True)
    return tuple(sorted(int(at) for at in first if np.ptp(sizes[:, at]) > 0))


def _scale(columns: Floats, highs: Floats, moving: Sequence[int], logs: bool = False) -> Floats:
    """Moving sizes, their logarithms where asked for, FLOPs and bytes: all as shares of highs."""
    sizes, tops = columns[:, moving], highs[list(moving)]
    special = columns[:, -SPECIAL:] / np.maximum(highs[-SPECIAL:], 1.0)
    stretched = [np.log2(1.0 + sizes) / np.log2(1.0 + tops)] if logs else []
    return np.hstack([sizes / tops, *stretched, special])
