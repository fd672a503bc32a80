"""A random forest for each kind of fused kernel, as in DeepEn2023 and nn-Meter.

log cost = log(a·FLOPs + b·bytes + c·depth + d) + forest over the features

A tree cannot extrapolate, so the forest is around the same mean as ``kernel-gp``: a forest of the
energies themselves has several times the error (benchmarks/kernels).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.estimators.kernels import (
    REGRESSIONS,
    KernelProcessEstimator,
    KernelRegression,
    WorkMean,
    fit_kind_mean,
    list_features,
    name_features,
)
from joulecast.onnx_nets.fusion import FusedKernel
from joulecast.records.codec import Record

# nn-Meter's forests have about as many trees.
TREES = 100
MIN_LOG_SD = 0.02


@dataclass(frozen=True)
class ForestRegression(Record):
    """A random forest around a linear function of work, stored as the data that it is grown from.

    Attributes:
        names: Names of the features.
        mean: The mean.
        points: Features of the kernels, n x d.
        residuals: Logarithms of their costs minus the mean, n.
        log_sd: Standard deviation of the error on kernels that a tree did not see.
    """

    names: tuple[str, ...]
    mean: WorkMean
    points: Floats
    residuals: Floats
    log_sd: float

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""
        return len(self.residuals)

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance.

        Half of the variance of an error is common to the kind.
        """
        residuals = self._forest.predict(list_features(kernels, self.names))
        cov = self.log_sd**2 * (0.5 + 0.5 * np.eye(len(kernels)))
        return np.asarray(self.mean.log_costs(kernels) + residuals), cov

    @cached_property
    def _forest(self) -> Any:
        return grow_forest(self.points, self.residuals)


REGRESSIONS["log_sd"] = ForestRegression


def fit_forest(
    kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool = True
) -> ForestRegression:
    """Grow a random forest on the costs of kernels of one kind."""
    names, mean = name_features(kernels), fit_kind_mean(kernels, costs, by_work)
    points, residuals = list_features(kernels, names), np.log(costs) - mean.log_costs(kernels)
    errors = grow_forest(points, residuals).oob_prediction_ - residuals
    log_sd = max(MIN_LOG_SD, float(np.sqrt(np.mean(errors**2))))
    return ForestRegression(names, mean, points, residuals, log_sd)


def grow_forest(points: Floats, residuals: Floats) -> Any:
    """Return a forest, always the same for the same points."""
    from sklearn.ensemble import RandomForestRegressor

    with warnings.catch_warnings():
        # Of few points, some are in every tree's sample.
        warnings.simplefilter("ignore", UserWarning)
        forest = RandomForestRegressor(TREES, random_state=0, oob_score=True)
        return forest.fit(points, residuals)


class KernelForestEstimator(KernelProcessEstimator):
    """A random forest per kind of kernel, fitted to the campaign of ``kernel-gp``."""

    name = "kernel-forest"
    campaign = KernelProcessEstimator.name

    @staticmethod
    def fit_kind(
        kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool
    ) -> KernelRegression:
        """Grow the forest of one kind of kernel."""
        return fit_forest(kernels, costs, sd_shares, by_work)
