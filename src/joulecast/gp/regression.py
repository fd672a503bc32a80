"""Exact Gaussian process regression of curves and of residuals; numpy predicts, scipy fits.

    x         a point: scaled inputs                y  its value            v  known variance of y
    k(x, x')  β² + σ_f²·M(|(x - x') / ℓ|)           M(d) = (1 + √5·d + 5/3·d²)·exp(-√5·d)
    y ~ GP(0, k) + N(0, v) + N(0, nugget)

The nugget is what k cannot follow: jumps of the value at single points. It is part of the variance
of a new point, but it belongs to that point: two networks with the same layer share it. Two records
hold a fitted process as plain numbers, so that stored fits are JSON:

    GaussianProcess   a curve over positive inputs w (the paper's method): x = (√w - offset) / span,
                      values standardised, β = 0; ``ProcessOptions`` turns each choice off
    ResidualProcess   residuals of a logarithm over several features, x standardised; β is how far
                      the whole mean may be off

Hyper-parameters are MAP estimates under log-normal priors, or have the largest likelihood
(Rasmussen and Williams, chapters 2 and 5). A second kernel, ``rbf``, M(d) = exp(-d²/2), exists for
comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from joulecast.gp.kernels import matern52
from joulecast.gp.linalg import Floats, cholesky_with_inverse, invert_covariance
from joulecast.gp.lognormal import Prior
from joulecast.records.codec import Record, omit_default
from joulecast.system.errors import InputError

KERNELS = ("matern", "rbf")

# Priors of curves, in units of scaled values and points. A handful of points says little about how
# smooth their curve is: without priors, the likelihood of two points finds nothing but noise, and
# that of seven that one of two axes does not matter, so that it is never measured again. Chosen on
# simulated devices that are in no benchmark.
SIGNAL_PRIOR: Prior = (3.0, 1.0)
LENGTH_SCALE_PRIOR: Prior = (0.7, 0.7)
NUGGET_PRIOR: Prior = (1e-3, 1.5)
# The search stays within this many standard deviations of the priors.
_SEARCH_SDS = 4.0
# Bounds without priors: of length scales in units of the range of the points, and of the nugget.
# Shorter ones would leave the variance between two points flat, without a largest value.
_LENGTH_SCALE_BOUNDS, _NUGGET_BOUNDS = (0.1, 10.0), (1e-6, 1.0)
# The likelihood of few points has several maxima.
_LENGTH_SCALE_STARTS = (0.15, 0.5, 2.0)
_JITTER = 1e-10

# Priors of residuals. Those of a roofline are tens of percent; a cost changes smoothly over the
# whole range of most features, but not of all. Chosen on kernels of two phones
# (benchmarks/kernels).
_RESIDUAL_SIGNAL_PRIOR: Prior = (0.1, 1.5)
_RESIDUAL_LENGTH_SCALE_PRIOR: Prior = (3.0, 1.0)
_RESIDUAL_NUGGET_PRIOR: Prior = (1e-2, 1.5)
BIAS_VARIANCE = 1.0
_RESIDUAL_SEARCH_SDS, _RESIDUAL_STEPS = 5.0, 200
_RESIDUAL_JITTER = 1e-9
# A feature whose standard deviation is this small is constant: it explains nothing.
_LEAST_SPAN = 1e-9
# Of fewer points each one counts. An outlier is off by so many standard deviations.
_FEWEST_FOR_OUTLIERS, _OUTLIER_SDS = 30, 3.5


@dataclass(frozen=True)
class ProcessOptions:
    """How the process of a curve is fitted.

    Attributes:
        kernel: ``matern``, or ``rbf`` for comparison.
        roots: Points are square roots of inputs, each axis scaled by its range; else the inputs.
        lengths: One length scale per axis; else one for all.
        priors: Hyper-parameters have priors; else the likelihood alone decides.
        signal: The signal variance is fitted; else it is 1 for standardised values.
        noise: The known variance of each value counts; else one noise variance is fitted.
    """

    kernel: str = "matern"
    roots: bool = True
    lengths: bool = True
    priors: bool = True
    signal: bool = True
    noise: bool = True

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise InputError(f"unknown kernel {self.kernel!r}; choose one of {', '.join(KERNELS)}")


_DEFAULTS = ProcessOptions()


@dataclass(frozen=True)
class GaussianProcess(Record):
    """The fitted process of a curve, and its training points.

    Attributes:
        inputs: Training points, n x d, positive.
        offset: Smallest √input of each axis, d.
        span: Range of √input of each axis, d.
        signal_variance: σ_f², in units of scaled values.
        length_scales: ℓ, in units of scaled points, d.
        nugget: Variance of single points, in units of scaled values.
        is_warped: Whether points are square roots; if not, they are the inputs themselves.
    """

    inputs: Floats = field(metadata={"json_name": "widths"})
    values: Floats
    variances: Floats
    offset: Floats
    span: Floats
    mean: float
    scale: float
    signal_variance: float = field(metadata={"json_name": "signal"})
    length_scales: Floats = field(metadata={"json_name": "lengths"})
    nugget: float = field(metadata={"json_name": "white"})
    kernel: str = "matern"
    is_warped: bool = omit_default(True, json_name="warped")

    def predict(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Return mean and joint covariance of the curve at some points, without the nugget."""
        points, training, inverse_factor = self._scale_points(inputs), *self._conditioned
        explained = inverse_factor @ self._covary(training, points)
        whitened = inverse_factor @ ((self.values - self.mean) / self.scale)
        cov = self._covary(points, points) - explained.T @ explained
        return self.mean + self.scale * (explained.T @ whitened), self.scale**2 * cov

    def standard_deviations(self, inputs: Floats) -> Floats:
        """Return the standard deviation of the curve at each of many points."""
        training, inverse_factor = self._conditioned
        explained = inverse_factor @ self._covary(training, self._scale_points(inputs))
        variance = self.signal_variance - np.sum(explained**2, axis=0)
        return np.asarray(self.scale * np.sqrt(np.maximum(variance, 0.0)))

    @property
    def nugget_variance(self) -> float:
        """Variance of single points around the curve, in squared units of the values."""
        return float(self.nugget * self.scale**2)

    @cached_property
    def _conditioned(self) -> tuple[Floats, Floats]:
        """The scaled training points, and L⁻¹ of their covariance LLᵀ."""
        training = self._scale_points(self.inputs)
        noise = self.variances / self.scale**2 + self.nugget + _JITTER
        cov = self._covary(training, training) + np.diag(noise)
        return training, cholesky_with_inverse(cov)[1]

    def _scale_points(self, inputs: Floats) -> Floats:
        return np.asarray((_warp(inputs, self.is_warped) - self.offset) / self.span)

    def _covary(self, left: Floats, right: Floats) -> Floats:
        return self.signal_variance * _correlate(left, right, self.length_scales, self.kernel)


@dataclass(frozen=True)
class ResidualProcess(Record):
    """The fitted process of residuals, and its training points.

    Attributes:
        offset: Mean of each feature, d.
        span: Standard deviation of each feature, d; 1 where it is constant.
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
        """Variance of a new point that no feature explains, besides noise; it may be an outlier."""
        return self.nugget_variance + self.outlier_variance

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the joint covariance at some points, without the nugget."""
        inverse_factor, weights = self._conditioned
        cross = self._covary(self.points, points)
        explained = inverse_factor @ cross
        cov = self._covary(points, points) - explained.T @ explained
        return np.asarray(cross.T @ weights), np.asarray((cov + cov.T) / 2.0)

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """Return the error of predicting each training point from the others, and its variance."""
        inverse_factor, weights = self._conditioned
        precisions = (inverse_factor**2).sum(axis=0)
        return weights / precisions, 1.0 / precisions

    @cached_property
    def _conditioned(self) -> tuple[Floats, Floats]:
        """L⁻¹ of the training covariance LLᵀ, and LLᵀ⁻¹·r."""
        noise = self.variances + self.nugget_variance + _RESIDUAL_JITTER
        cov = self._covary(self.points, self.points) + np.diag(noise)
        inverse_factor = cholesky_with_inverse(cov)[1]
        return inverse_factor, inverse_factor.T @ (inverse_factor @ self.residuals)

    def _covary(self, left: Floats, right: Floats) -> Floats:
        one, two = ((points - self.offset) / self.span for points in (left, right))
        return BIAS_VARIANCE + self.signal_variance * _correlate(one, two, self.length_scales)


def fit_gaussian_process(
    inputs: Sequence[Sequence[int]],
    values: Sequence[float],
    variances: Sequence[float],
    options: ProcessOptions = _DEFAULTS,
) -> GaussianProcess:
    """Fit a process to the points of a curve."""
    w = np.array([list(point) or [1] for point in inputs], dtype=float)
    y, v = np.array(values, dtype=float), np.array(variances, dtype=float)
    if not options.noise:
        v = np.zeros(len(y))
    warped = _warp(w, options.roots)
    offset, span = warped.min(axis=0), np.ptp(warped, axis=0)
    if not options.roots:
        # One unit for all axes, so that distances are Euclidean.
        span = np.full(len(span), span.max())
    span = np.where(span > 0, span, 1.0)
    mean, scale = float(y.mean()), _find_scale(y, options.signal)
    points, scaled = (warped - offset) / span, (y - mean) / scale
    likelihood = _NegativeLogLikelihood(points, scaled, v / scale**2 + _JITTER, options)
    priors = [SIGNAL_PRIOR] * options.signal + [LENGTH_SCALE_PRIOR] * likelihood.scale_count
    fitted = _find_mode(likelihood, [*priors, NUGGET_PRIOR], options.priors)
    signal, length_scales, nugget = likelihood.unpack(fitted)
    length_scales = np.broadcast_to(length_scales, (w.shape[1],)).copy()
    data = w, y, v, offset, span, mean, scale
    return GaussianProcess(*data, signal, length_scales, nugget, options.kernel, options.roots)


def fit_residual_process(points: Floats, residuals: Floats, variances: Floats) -> ResidualProcess:
    """Fit a process to residuals.

    Outliers, points that all others contradict, are given the variance of their own leave-one-out
    residual (Rasmussen and Williams, eq. 5.12), so that they say next to nothing about their
    neighbours. Any new point may be one too: their mean square is part of its variance.
    """
    process = _fit_residuals(points, residuals, variances)
    if len(residuals) < _FEWEST_FOR_OUTLIERS:
        return process
    errors, error_variances = process.leave_one_out()
    is_outlier = np.abs(errors) > _OUTLIER_SDS * np.sqrt(error_variances)
    if not is_outlier.any():
        return process
    added = np.where(is_outlier, errors**2, 0.0)
    process = _fit_residuals(points, residuals, variances + added)
    return replace(process, outlier_variance=float(added.mean()))


def _fit_residuals(points: Floats, residuals: Floats, variances: Floats) -> ResidualProcess:
    offset, span = points.mean(axis=0), points.std(axis=0)
    span = np.where(span > _LEAST_SPAN, span, 1.0)
    scaled, noise = (points - offset) / span, variances + _RESIDUAL_JITTER
    likelihood = _NegativeLogLikelihood(scaled, residuals, noise, bias=BIAS_VARIANCE)
    scales = [_RESIDUAL_LENGTH_SCALE_PRIOR] * points.shape[1]
    priors = [_RESIDUAL_SIGNAL_PRIOR, *scales, _RESIDUAL_NUGGET_PRIOR]
    theta = _find_mode(likelihood, priors, True, _RESIDUAL_SEARCH_SDS, _RESIDUAL_STEPS)
    signal, length_scales, nugget = likelihood.unpack(theta)
    return ResidualProcess(
        points, residuals, variances, offset, span, signal, nugget, length_scales
    )


class _NegativeLogLikelihood:
    """-ln p(y | θ) of scaled points with its gradient, θ = ln (σ_f², ℓ_1 … ℓ_d, nugget)."""

    def __init__(
        self,
        points: Floats,
        values: Floats,
        variances: Floats,
        options: ProcessOptions = _DEFAULTS,
        bias: float = 0.0,
    ) -> None:
        squares = [(axis[:, None] - axis[None, :]) ** 2 for axis in points.T]
        self._squares = squares if options.lengths else [np.sum(squares, axis=0)]
        self._values, self._variances, self._bias = values, variances, bias
        self._is_rbf, self._fits_signal = options.kernel == "rbf", options.signal
        self.scale_count = len(self._squares)

    def unpack(self, theta: Floats) -> tuple[float, Floats, float]:
        """Return signal variance, length scales and nugget."""
        values = np.exp(theta)
        signal = float(values[0]) if self._fits_signal else 1.0
        return signal, values[-1 - self.scale_count : -1], float(values[-1])

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        signal, length_scales, nugget = self.unpack(theta)
        pairs = list(zip(self._squares, length_scales.tolist(), strict=True))
        squares = np.zeros((len(self._values),) * 2)
        for axis, scale in pairs:
            squares += axis / scale**2
        if self._is_rbf:
            shape = slope = np.exp(-squares / 2.0)
        else:
            distance = np.sqrt(5.0 * squares)
            decay = np.exp(-distance)
            shape = (1.0 + distance + distance**2 / 3.0) * decay
            slope = 5.0 / 3.0 * (1.0 + distance) * decay
        cov = self._bias + signal * shape + np.diag(self._variances + nugget)
        inverse, half_log_det = invert_covariance(cov)
        weights = inverse @ self._values
        spread = np.outer(weights, weights) - inverse
        constant = 0.5 * len(self._values) * math.log(2.0 * math.pi)
        value = 0.5 * float(self._values @ weights) + half_log_det + constant
        pulls = spread * slope * signal
        gradient = [float((spread * shape).sum()) * signal] if self._fits_signal else []
        gradient += [float((pulls * axis).sum()) / scale**2 for axis, scale in pairs]
        gradient += [float(np.trace(spread)) * nugget]
        return value, -0.5 * np.array(gradient)


def _find_mode(
    likelihood: _NegativeLogLikelihood,
    priors: Sequence[Prior],
    has_priors: bool,
    search_sds: float = _SEARCH_SDS,
    steps: int = 15_000,
) -> Floats:
    """Return the MAP estimate of θ, searched from the medians; or the largest likelihood."""
    from scipy.optimize import minimize

    medians, log_sds = np.log([median for median, _ in priors]), np.array([sd for _, sd in priors])
    bounds = np.column_stack([medians - search_sds * log_sds, medians + search_sds * log_sds])
    search = partial(minimize, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    if has_priors:

        def negative_log_posterior(theta: Floats) -> tuple[float, Floats]:
            value, gradient = likelihood(theta)
            deviation = (theta - medians) / log_sds
            return value + 0.5 * float(deviation @ deviation), gradient + deviation / log_sds

        return np.asarray(search(negative_log_posterior, medians, bounds=bounds).x)
    bounds[-1 - likelihood.scale_count : -1] = np.log(_LENGTH_SCALE_BOUNDS)
    bounds[-1] = np.log(_NUGGET_BOUNDS)
    results = []
    for scale in _LENGTH_SCALE_STARTS:
        start = np.clip(medians + math.log(scale / LENGTH_SCALE_PRIOR[0]), *bounds.T)
        start[-1] = medians[-1]
        results.append(search(likelihood, start, bounds=bounds))
    return np.asarray(min(results, key=lambda one: float(one.fun)).x)


def _correlate(
    left: Floats, right: Floats, length_scales: Floats, kernel: str = "matern"
) -> Floats:
    """Return M between two sets of scaled points."""
    differences = (left[:, None, :] - right[None, :, :]) / length_scales
    squares = np.einsum("ijk,ijk->ij", differences, differences)
    return np.asarray(np.exp(-squares / 2.0) if kernel == "rbf" else matern52(5.0 * squares))


def _warp(inputs: Floats, is_warped: bool) -> Floats:
    """Return square roots: small inputs, where costs bend, are spread out."""
    return np.asarray(np.sqrt(inputs) if is_warped else inputs)


def _find_scale(values: Floats, fits_signal: bool) -> float:
    """Return the standard deviation, at least a tenth of the values' size however few they are.

    If the signal variance is not fitted, the values are standardised, unless they are all equal.
    """
    sd, least = float(values.std()), 0.1 * float(np.abs(values).mean())
    if not fits_signal:
        return sd or least or 1.0
    return max(sd, least) or 1.0
