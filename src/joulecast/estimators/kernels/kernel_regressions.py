"""Regress the cost of the kernels of one kind on their features.

    y        logarithm of a duration, a power or an energy
    kernel-gp        y = log(a·FLOPs + b·bytes + c) + Gaussian process over log features
    kernel-forest    y = random forest over features

Both return a mean and the joint covariance of errors, so that sums of kernels have honest
intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from joulecast.estimators.base import Floats, Json
from joulecast.estimators.kernels.work_means import WorkMean, fit_work_mean
from joulecast.fusion import FusedKernel
from joulecast.gp.residual_process import ResidualProcess, fit_residual_process
from joulecast.records.codec import Record

FEWEST_POINTS = 3
"""Kernels of a kind that its regression needs."""
# Trees of a forest; nn-Meter's forests have about as many.
_TREES = 100
_LEAST_FOREST_SD = 0.02


class KernelRegression(Protocol):
    """A fitted regression of one kind of kernel."""

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance."""

    def to_dict(self) -> Json:
        """Return JSON from which it is restored."""


@dataclass(frozen=True)
class ProcessRegression(Record):
    """A Gaussian process around a linear function of work.

    Attributes:
        names: Names of the features.
        mean: The mean; its rates are those of one kind.
        process: The residuals.
    """

    names: tuple[str, ...]
    mean: WorkMean
    process: ResidualProcess

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""
        return len(self.process.residuals)

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance."""
        mean, cov = self.process.predict(list_log_features(kernels, self.names))
        cov = cov + np.eye(len(kernels)) * self.process.nugget_variance
        return self.mean.log_costs(kernels) + mean, cov


def fit_process(
    kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool = True
) -> ProcessRegression:
    """Fit a Gaussian process to the costs of kernels of one kind.

    Args:
        kernels: The kernels.
        costs: Their durations, powers or energies.
        sd_shares: Standard deviations of the costs as shares of them.
        by_work: Whether costs grow with the work; powers do not.
    """
    names = name_features(kernels)
    if by_work:
        mean = fit_work_mean([(kernel,) for kernel in map(_take_once, kernels)], costs)
    else:
        level = math.exp(float(np.log(costs).mean()))
        mean = WorkMean((0.0, 0.0, level), 0.0, len(costs))
    residuals = np.log(costs) - mean.log_costs(kernels)
    points = list_log_features(kernels, names)
    return ProcessRegression(names, mean, fit_residual_process(points, residuals, sd_shares**2))


@dataclass(frozen=True)
class ForestRegression(Record):
    """A random forest, stored as the data that it is grown from.

    Attributes:
        names: Names of the features.
        points: Features of the kernels, n x d.
        log_costs: Logarithms of their costs, n.
        log_sd: Standard deviation of the error on kernels that a tree did not see.
    """

    names: tuple[str, ...]
    points: Floats
    log_costs: Floats
    log_sd: float

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""
        return len(self.log_costs)

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance.

        Half of the variance of an error is common to the kind.
        """
        means = self._forest.predict(list_features(kernels, self.names))
        cov = self.log_sd**2 * (0.5 + 0.5 * np.eye(len(kernels)))
        return np.asarray(means), cov

    @cached_property
    def _forest(self) -> Any:
        return _grow_forest(self.points, self.log_costs)


def fit_forest(
    kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool = True
) -> ForestRegression:
    """Grow a random forest on the costs of kernels of one kind; arguments as ``fit_process``."""
    names = name_features(kernels)
    points, log_costs = list_features(kernels, names), np.log(costs)
    forest = _grow_forest(points, log_costs)
    unseen = np.isfinite(forest.oob_prediction_)
    errors = (forest.oob_prediction_ - log_costs)[unseen]
    log_sd = float(np.sqrt(np.mean(errors**2))) if len(errors) else 1.0
    return ForestRegression(names, points, log_costs, max(_LEAST_FOREST_SD, log_sd))


def name_features(kernels: Sequence[FusedKernel]) -> tuple[str, ...]:
    """Return the names of all features of some kernels."""
    return tuple(sorted({name for kernel in kernels for name in kernel.features}))


def list_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return the features of kernels, n x d; 0 for those that a kernel does not have."""
    return np.array([[float(one.features.get(name, 0.0)) for name in names] for one in kernels])


def list_log_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return logarithms of the features of kernels and of the bytes they move, n x (d + 1)."""
    moved = np.array([[one.size_bytes] for one in kernels])
    return np.asarray(np.log1p(np.hstack([list_features(kernels, names), moved])))


def _take_once(kernel: FusedKernel) -> FusedKernel:
    from dataclasses import replace

    return replace(kernel, count=1)


def _grow_forest(points: Floats, log_costs: Floats) -> Any:
    import warnings

    from sklearn.ensemble import RandomForestRegressor

    with warnings.catch_warnings():
        # Of few points, some are in every tree's sample.
        warnings.simplefilter("ignore", UserWarning)
        forest = RandomForestRegressor(_TREES, random_state=0, oob_score=True)
        return forest.fit(points, log_costs)
