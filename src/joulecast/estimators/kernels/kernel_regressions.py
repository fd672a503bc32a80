"""Regress the cost of the kernels of one kind on their features.

    y    logarithm of a duration, a power or an energy
    y = log(a·FLOPs + b·bytes + c·depth + d) + Gaussian process over log features

The joint covariance of errors gives sums of kernels honest intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from joulecast.estimators.base import Floats, Json
from joulecast.estimators.kernels.work_means import WorkMean, fit_work_mean
from joulecast.fusion import FusedKernel
from joulecast.gp.regression import ResidualProcess, fit_residual_process
from joulecast.kinds import output_shape
from joulecast.records.codec import Record

FEWEST_POINTS = 3
"""Kernels of a kind that its regression needs."""
_LARGEST_ALIGNMENT = 8


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
        cov = cov + np.eye(len(kernels)) * self.process.point_variance
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
    names, mean = name_features(kernels), fit_mean(kernels, costs, by_work)
    residuals = np.log(costs) - mean.log_costs(kernels)
    points = list_log_features(kernels, names)
    return ProcessRegression(names, mean, fit_residual_process(points, residuals, sd_shares**2))


def name_features(kernels: Sequence[FusedKernel]) -> tuple[str, ...]:
    """Return the names of all features of some kernels."""
    return tuple(sorted({name for kernel in kernels for name in kernel.features}))


def list_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return the features of kernels, n x d; 0 for those that a kernel does not have."""
    return np.array([[float(one.features.get(name, 0.0)) for name in names] for one in kernels])


def list_log_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return logarithms of the features of kernels, of the bytes they move and of their alignment.

    The alignment is the power of two, up to 8, that divides the last axis of the output: kernels
    compute tiles, and the tiles of an image of 13 x 13 are not full.
    """
    moved = [[one.size_bytes] for one in kernels]
    aligned = [[math.log2(_find_alignment(one))] for one in kernels]
    logs = np.log1p(np.hstack([list_features(kernels, names), moved]))
    return np.asarray(np.hstack([logs, aligned]))


def _find_alignment(kernel: FusedKernel) -> int:
    *_, last = (1, *output_shape(kernel.network.layers[-1]))
    return math.gcd(last, _LARGEST_ALIGNMENT)


def fit_mean(kernels: Sequence[FusedKernel], costs: Floats, by_work: bool) -> WorkMean:
    """Return the cost of the kernels' work; without ``by_work`` their geometric mean."""
    if by_work:
        return fit_work_mean([(replace(kernel, count=1),) for kernel in kernels], costs)
    level = math.exp(float(np.log(costs).mean()))
    return WorkMean((0.0, 0.0, 0.0, level), 0.0, len(costs))
