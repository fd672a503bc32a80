"""Gaussian process regression of one curve: scikit-learn fits it, numpy predicts.

    w         a measured point, positive            x = (√w - offset) / span
    y         its value, energy or duration         z = (y - mean) / scale
    v         known variance of y                   measurement noise and what was subtracted
    k(x, x')  σ_f²·M(|x - x'| / ℓ)                  M(d) = (1 + √5·d + 5/3·d²)·exp(-√5·d)
    z ~ GP(0, k) + N(0, v / scale²) + N(0, nugget)

The nugget is what k cannot follow: jumps of the value at single points. It is part of the variance
of a new point, but it belongs to that point: two networks with the same layer share it.
A fitted process is plain numbers, stored as JSON, so that predicting never loads scikit-learn. A
second kernel, ``rbf``, M(d) = exp(-d²/2), exists for comparison. ``ProcessOptions`` turns each of
these choices off: square roots, one length scale per axis, priors, σ_f², known variances.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from joulecast.errors import InputError
from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record, omit_default

# Log-normal priors (median, standard deviation of the logarithm) in units of scaled values and
# points. A handful of points says little about how smooth their curve is: without priors, the
# likelihood of two points finds nothing but noise, and that of seven that one of two axes does
# not matter, so that it is never measured again. Chosen on simulated devices that are in no
# benchmark.
SIGNAL_PRIOR = (3.0, 1.0)
LENGTH_SCALE_PRIOR = (0.7, 0.7)
NUGGET_PRIOR = (1e-3, 1.5)
KERNELS = ("matern", "rbf")
# Bounds of the search, in prior standard deviations.
_SEARCH_SDS = 4.0
# Bounds without priors: of length scales in units of the range of the points, and of the nugget.
# Shorter ones would leave the variance between two points flat, without a largest value.
_LENGTH_SCALE_BOUNDS = (0.1, 10.0)
_NUGGET_BOUNDS = (1e-6, 1.0)
# The likelihood of few points has several maxima.
_LENGTH_SCALE_STARTS = (0.15, 0.5, 2.0)
_JITTER = 1e-10


@dataclass(frozen=True)
class ProcessOptions:
    """How a process is fitted.

    Attributes:
        kernel: One of KERNELS.
        warps_inputs: Whether points are square roots, scaled by the range of each axis; if not,
            all axes keep their common unit.
        separates_axes: Whether every axis has its own length scale.
        has_priors: Whether hyper-parameters are MAP estimates; if not, the likelihood is largest.
        fits_signal: Whether σ_f² is fitted; if not, it is 1 and values are standardised.
        knows_noise: Whether the known variance of each value counts; if not, the nugget is all
            noise.
    """

    kernel: str = "matern"
    warps_inputs: bool = True
    separates_axes: bool = True
    has_priors: bool = True
    fits_signal: bool = True
    knows_noise: bool = True


@dataclass(frozen=True)
class GaussianProcess(Record):
    """A fitted process and its training points.

    Attributes:
        inputs: Training points, n x d, positive.
        values: Their values, n.
        variances: Their noise variances, n.
        offset: Smallest √input of each axis, d.
        span: Range of √input of each axis, d.
        mean: Mean of the values.
        scale: Scale of the values.
        signal_variance: σ_f², in units of scaled values.
        length_scales: ℓ, in units of scaled points, d.
        nugget: Variance of single points, in units of scaled values.
        kernel: One of KERNELS.
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
        points = self._scale_points(inputs)
        factor, explained = self._condition(points)
        whitened = np.linalg.solve(factor, (self.values - self.mean) / self.scale)
        cov = self._evaluate_kernel(points, points) - explained.T @ explained
        return self.mean + self.scale * (explained.T @ whitened), self.scale**2 * cov

    def standard_deviations(self, inputs: Floats) -> Floats:
        """Return the standard deviation of the curve at each of many points."""
        _, explained = self._condition(self._scale_points(inputs))
        variance = self.signal_variance - np.sum(explained**2, axis=0)
        return np.asarray(self.scale * np.sqrt(np.maximum(variance, 0.0)))

    @property
    def nugget_variance(self) -> float:
        """Variance of single points around the curve, in squared units of the values."""
        return float(self.nugget * self.scale**2)

    def _scale_points(self, inputs: Floats) -> Floats:
        return np.asarray((_warp(inputs, self.is_warped) - self.offset) / self.span)

    def _condition(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the Cholesky factor L of the training covariance, and L⁻¹·k at some points."""
        training = self._scale_points(self.inputs)
        noise = self.variances / self.scale**2 + self.nugget + _JITTER
        factor = np.linalg.cholesky(self._evaluate_kernel(training, training) + np.diag(noise))
        explained = np.linalg.solve(factor, self._evaluate_kernel(training, points))
        return np.asarray(factor, np.float64), np.asarray(explained, np.float64)

    def _evaluate_kernel(self, left: Floats, right: Floats) -> Floats:
        differences = (left[:, None, :] - right[None, :, :]) / self.length_scales
        squares = np.sum(differences**2, axis=2)
        if self.kernel == "rbf":
            return np.asarray(self.signal_variance * np.exp(-squares / 2.0))
        d = np.sqrt(5.0 * squares)
        return np.asarray(self.signal_variance * (1.0 + d + d**2 / 3.0) * np.exp(-d))


def fit_gaussian_process(
    inputs: Sequence[Sequence[int]],
    values: Sequence[float],
    variances: Sequence[float],
    kernel: str = "matern",
    options: ProcessOptions | None = None,
) -> GaussianProcess:
    """Fit a process to the points of a curve.

    Args:
        inputs: Points; those without any axis all coincide.
        values: Value at each point.
        variances: Noise variance of each value.
        kernel: One of KERNELS.
        options: How to fit it, kernel included.
    """
    options = options or ProcessOptions(kernel)
    if options.kernel not in KERNELS:
        known = ", ".join(KERNELS)
        raise InputError(f"unknown kernel {options.kernel!r}; choose one of {known}")
    w = np.array([list(point) or [1] for point in inputs], dtype=float)
    y, v = np.array(values, dtype=float), np.array(variances, dtype=float)
    if not options.knows_noise:
        v = np.zeros(len(y))
    warped = _warp(w, options.warps_inputs)
    offset, span = warped.min(axis=0), np.ptp(warped, axis=0)
    if not options.warps_inputs:
        # One unit for all axes, so that distances are Euclidean.
        span = np.full(len(span), span.max())
    span = np.where(span > 0, span, 1.0)
    mean, scale = float(y.mean()), _find_scale(y, options.fits_signal)
    x, z = (warped - offset) / span, (y - mean) / scale
    fitted = _fit_kernel(x, z, v / scale**2, options)
    return GaussianProcess(
        w, y, v, offset, span, mean, scale, *fitted, options.kernel, options.warps_inputs
    )


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


def _fit_kernel(
    x: Floats, z: Floats, noise: Floats, options: ProcessOptions
) -> tuple[float, Floats, float]:
    """Return signal variance, length scales and nugget: MAP or maximum likelihood estimates."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    has_priors = options.has_priors
    lengths: float | Floats = LENGTH_SCALE_PRIOR[0]
    if options.separates_axes:
        lengths = np.full(x.shape[1], lengths)
    bounds = _find_bounds(LENGTH_SCALE_PRIOR) if has_priors else _LENGTH_SCALE_BOUNDS
    is_rbf = options.kernel == "rbf"
    shape = RBF(lengths, bounds) if is_rbf else Matern(lengths, bounds, nu=2.5)
    signal = ConstantKernel(1.0, "fixed")
    if options.fits_signal:
        signal = ConstantKernel(SIGNAL_PRIOR[0], _find_bounds(SIGNAL_PRIOR))
    nugget_bounds = _find_bounds(NUGGET_PRIOR) if has_priors else _NUGGET_BOUNDS
    kernel = signal * shape + WhiteKernel(NUGGET_PRIOR[0], nugget_bounds)
    maximise = _maximise_likelihood
    if has_priors:
        maximise = partial(_maximise_posterior, has_signal=options.fits_signal)
    process = GaussianProcessRegressor(kernel, alpha=noise + _JITTER, optimizer=maximise)
    with warnings.catch_warnings():
        # The bounds belong to the priors, so that reaching one needs no warning.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = process.fit(x, z).kernel_
    length_scales = np.atleast_1d(np.asarray(fitted.k1.k2.length_scale, dtype=float))
    length_scales = np.broadcast_to(length_scales, (x.shape[1],)).copy()
    return float(fitted.k1.k1.constant_value), length_scales, float(fitted.k2.noise_level)


def _find_bounds(prior: tuple[float, float]) -> tuple[float, float]:
    reach = float(np.exp(_SEARCH_SDS * prior[1]))
    return (prior[0] / reach, prior[0] * reach)


def _maximise_posterior(
    negative_log_likelihood: Callable[[Floats], tuple[float, Floats]],
    medians: Floats,
    bounds: Floats,
    has_signal: bool = True,
) -> tuple[Floats, float]:
    """Search as scikit-learn's optimizer, with the priors added; it starts at their medians.

    A signal variance that is fixed is not among the parameters.
    """
    from scipy.optimize import minimize

    length_scale_sds = [LENGTH_SCALE_PRIOR[1]] * (len(medians) - 1 - has_signal)
    log_sds = np.array([SIGNAL_PRIOR[1]] * has_signal + [*length_scale_sds, NUGGET_PRIOR[1]])

    def negative_log_posterior(theta: Floats) -> tuple[float, Floats]:
        value, gradient = negative_log_likelihood(theta)
        deviation = (theta - medians) / log_sds
        return value + 0.5 * float(deviation @ deviation), gradient + deviation / log_sds

    found = minimize(negative_log_posterior, medians, jac=True, bounds=bounds, method="L-BFGS-B")
    return found.x, float(found.fun)


def _maximise_likelihood(
    negative_log_likelihood: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    bounds: Floats,
) -> tuple[Floats, float]:
    """Search as scikit-learn's optimizer, from several length scales; keep the best."""
    from scipy.optimize import minimize

    found = []
    for factor in _LENGTH_SCALE_STARTS:
        theta = np.clip(start + np.log(factor / LENGTH_SCALE_PRIOR[0]), *bounds.T)
        # The nugget is the last parameter.
        theta[-1] = start[-1]
        one = minimize(negative_log_likelihood, theta, jac=True, bounds=bounds, method="L-BFGS-B")
        found.append((float(one.fun), one.x))
    best, theta = min(found, key=lambda pair: pair[0])
    return theta, best
