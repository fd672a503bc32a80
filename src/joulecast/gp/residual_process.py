"""Gaussian process regression of the residuals of a given mean, over several features.

    x         features of a point, scaled to zero mean and unit standard deviation over the data
    r         residual of a point: a logarithm minus its mean
    v         known variance of r: the noise of its measurement
    k(x, x')  β² + σ²·M(√Σ((x_a - x'_a) / ℓ_a)²)        M Matern 5/2
    r ~ GP(0, k) + N(0, v) + N(0, τ²)

β is how far the whole mean may be off. τ², the nugget, is what no feature explains: it belongs to a
point, so equal points share it. σ², τ² and ℓ have log-normal priors; their values are MAP
estimates. Fitting needs scipy, predicting numpy alone.

Outliers, points that all others contradict, are given the variance of their own leave-one-out
residual (R&W, eq. 5.12), so that they say next to nothing about their neighbours. Any new point may
be one too: their mean square is part of its variance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from joulecast.gp.kernels import matern52, scale_points
from joulecast.gp.linalg import Floats, cholesky_with_inverse, invert_covariance
from joulecast.records.codec import Record

# Medians and standard deviations of logarithms. Residuals of a roofline are tens of percent; a cost
# changes smoothly over the whole range of most features, but not of all. Chosen on kernels of two
# phones; benchmarks/kernels says how.
SIGNAL_VARIANCE_PRIOR = (0.1, 1.5)
NUGGET_VARIANCE_PRIOR = (1e-2, 1.5)
LENGTH_SCALE_PRIOR = (3.0, 1.0)
BIAS_VARIANCE = 1.0
# The search stays within this many standard deviations of the priors.
_SEARCH_SDS = 5.0
_MOST_STEPS = 200
# Two standard deviations this small apart, a feature is constant: it explains nothing.
_LEAST_SPAN = 1e-9
_JITTER = 1e-9
# Of fewer points each one counts. An outlier is off by so many standard deviations.
_FEWEST_FOR_OUTLIERS, _OUTLIER_SDS = 30, 3.5


@dataclass(frozen=True)
class ResidualProcess(Record):
    """A fitted process and its training points.

    Attributes:
        points: Features of the training points, n x d.
        residuals: n.
        variances: Noise variances of the residuals, n.
        offset: Mean of each feature, d.
        span: Standard deviation of each feature, d; 1 where it is constant.
        signal_variance: σ².
        nugget_variance: τ².
        length_scales: ℓ, d.
        outlier_variance: Mean over all points of the squares of the outliers' residuals.
    """

    points: Floats
    residuals: Floats
    variances: Floats
    offset: Floats
    span: Floats
    signal_variance: float
    nugget_variance: float
    length_scales: Floats = field(metadata={"json_name": "lengths"})
    outlier_variance: float = 0.0

    @property
    def point_variance(self) -> float:
        """Variance of a new point that no feature explains, besides noise."""
        return self.nugget_variance + self.outlier_variance

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the joint covariance at some points, without the nugget."""
        factor_inverse, weights = self._conditioned
        cross = self._evaluate(self.points, points)
        explained = factor_inverse @ cross
        cov = self._evaluate(points, points) - explained.T @ explained
        return np.asarray(cross.T @ weights), np.asarray((cov + cov.T) / 2.0)

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """Return the error of predicting each training point from the others, and its variance."""
        factor_inverse, weights = self._conditioned
        precisions = (factor_inverse**2).sum(axis=0)
        return weights / precisions, 1.0 / precisions

    @cached_property
    def _conditioned(self) -> tuple[Floats, Floats]:
        """L⁻¹ of the training covariance LLᵀ, and LLᵀ⁻¹·r."""
        noise = self.variances + self.nugget_variance + _JITTER
        cov = self._evaluate(self.points, self.points) + np.diag(noise)
        inverse = cholesky_with_inverse(cov)[1]
        return inverse, inverse.T @ (inverse @ self.residuals)

    def _evaluate(self, left: Floats, right: Floats) -> Floats:
        one, two = (
            scale_points((points - self.offset) / self.span, self.length_scales)
            for points in (left, right)
        )
        squares = ((one[:, None, :] - two[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(BIAS_VARIANCE + self.signal_variance * matern52(squares))


def fit_residual_process(points: Floats, residuals: Floats, variances: Floats) -> ResidualProcess:
    """Fit a process.

    Args:
        points: Features, n x d.
        residuals: n.
        variances: Noise variances of the residuals, n.
    """
    process = _fit_process(points, residuals, variances)
    if len(residuals) < _FEWEST_FOR_OUTLIERS:
        return process
    added = _find_outliers(process)
    if not added.any():
        return process
    process = _fit_process(points, residuals, variances + added)
    return replace(process, outlier_variance=float(added.mean()))


def _fit_process(points: Floats, residuals: Floats, variances: Floats) -> ResidualProcess:
    from scipy.optimize import minimize

    offset, span = points.mean(axis=0), points.std(axis=0)
    span = np.where(span > _LEAST_SPAN, span, 1.0)
    objective = _NegativeLogPosterior((points - offset) / span, residuals, variances)
    bounds = np.stack([objective.medians, objective.medians], axis=1)
    bounds += np.outer(objective.log_sds, [-_SEARCH_SDS, _SEARCH_SDS])
    found = minimize(
        objective,
        objective.medians,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": _MOST_STEPS},
    )
    values = np.exp(found.x)
    return ResidualProcess(
        points, residuals, variances, offset, span, float(values[0]), float(values[1]), values[2:]
    )


def _find_outliers(process: ResidualProcess) -> Floats:
    """Return the variance to add to each point: 0, or the squared error of an outlier."""
    errors, variances = process.leave_one_out()
    return np.where(np.abs(errors) > _OUTLIER_SDS * np.sqrt(variances), errors**2, 0.0)


class _NegativeLogPosterior:
    """The function that MAP estimates minimise, of log σ², log τ² and log ℓ, with its gradient."""

    def __init__(self, points: Floats, residuals: Floats, variances: Floats) -> None:
        self._residuals, self._variances = residuals, variances
        self._squares = [(axis[:, None] - axis[None, :]) ** 2 for axis in points.T]
        scales = [LENGTH_SCALE_PRIOR] * points.shape[1]
        priors = np.array([SIGNAL_VARIANCE_PRIOR, NUGGET_VARIANCE_PRIOR, *scales])
        self.medians, self.log_sds = np.log(priors[:, 0]), priors[:, 1]

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        signal, nugget, *lengths = np.exp(theta)
        squares = np.zeros((len(self._residuals),) * 2)
        for axis, length in zip(self._squares, lengths, strict=True):
            squares += axis / length**2
        distance = np.sqrt(5.0 * squares)
        decay = np.exp(-distance)
        matern = (1.0 + distance + distance**2 / 3.0) * decay
        slope = 5.0 / 3.0 * (1.0 + distance) * decay
        noise = self._variances + nugget + _JITTER
        inverse, half_log_det = invert_covariance(BIAS_VARIANCE + signal * matern + np.diag(noise))
        weights = inverse @ self._residuals
        spread = np.outer(weights, weights) - inverse
        deviation = (theta - self.medians) / self.log_sds
        value = 0.5 * self._residuals @ weights + half_log_det + 0.5 * deviation @ deviation
        pulls = spread * slope * signal
        gradient = [(spread * matern).sum() * signal, np.trace(spread) * nugget]
        gradient += [
            float((pulls * axis).sum()) / length**2
            for axis, length in zip(self._squares, lengths, strict=True)
        ]
        return float(value), -0.5 * np.array(gradient) + deviation / self.log_sds
