"""Compute what criteria of experiments need: correlations, straight lines and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def correlate(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one side does not vary."""
    x, y = np.asarray(left, float), np.asarray(right, float)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def correlate_ranks(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    return correlate(_rank(left), _rank(right))


@dataclass(frozen=True)
class StraightLine:
    """A least-squares line ``offset + slope * x`` and the share of variance that it explains."""

    offset: float
    slope: float
    r_squared: float

    def predict(self, x: float) -> float:
        """Return the value of the line."""
        return self.offset + self.slope * x


def fit_line(x: Sequence[float], y: Sequence[float]) -> StraightLine:
    """Fit a line by least squares."""
    slope, offset = np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)
    residuals = np.asarray(y, float) - (offset + slope * np.asarray(x, float))
    total = float(np.sum((np.asarray(y, float) - np.mean(y)) ** 2))
    r_squared = 1.0 - float(residuals @ residuals) / total if total else 0.0
    return StraightLine(float(offset), float(slope), r_squared)


def fit_proportional(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the factor that minimises relative squared errors of ``factor * x``."""
    ratios = np.asarray(x, float) / np.asarray(y, float)
    return float(ratios.sum() / (ratios @ ratios))


def compute_errors_percent(estimated: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return the relative error of each estimate; positive means overestimated."""
    return [100.0 * (e / m - 1.0) for e, m in zip(estimated, measured, strict=True)]


def compute_mape(errors_percent: Sequence[float]) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(errors_percent)))


def _rank(values: Sequence[float]) -> list[float]:
    found = np.asarray(values, float)
    return [float(np.mean(np.flatnonzero(np.sort(found) == value))) for value in found]
