"""One Gaussian process per curve: Matern 5/2 with noise. scikit-learn fits it, numpy predicts.

    w         widths of a profiled point            u = (t(w) - offset) / span, t the square root
    y         its joules (or seconds)               z = (y - mean) / scale
    v         variance of y known beforehand        measurement noise and what was subtracted
    k         signal · M(|u - u'| / lengths)        M(d) = (1 + √5·d + 5/3·d²)·exp(-√5·d)
    z ~ GP(0, k) + N(0, v / scale²) + N(0, white)

``white`` is what k cannot follow: cliffs of the cost at single widths. It stands in the variance of
a new point, but it belongs to the point: two networks with the same layer share it.
A Gp is plain numbers, kept as JSON, so that predicting never loads scikit-learn. Another kernel,
``rbf``, M(d) = exp(-d²/2), is there to be compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import InputError

Json = dict[str, Any]
Floats = NDArray[np.float64]

# In units of the scaled values and widths. A handful of points says little about how smooth their
# curve is: left alone, the likelihood of two points finds nothing but noise, and that of seven that
# one of two widths does not matter, where the guide then never looks again. So each number has a
# log-normal prior (median, deviation of the logarithm), chosen in simulated worlds that are in no
# benchmark.
SIGNAL_PRIOR = (3.0, 1.0)
LENGTH_PRIOR = (0.7, 0.7)
WHITE_PRIOR = (1e-3, 1.5)
_WITHIN = 4.0  # deviations that the search may go
_JITTER = 1e-10
KERNELS = ("matern", "rbf")


@dataclass(frozen=True)
class Gp:
    """A fitted process and the points it rests on."""

    widths: Floats
    values: Floats
    variances: Floats
    offset: Floats
    span: Floats
    mean: float
    scale: float
    signal: float
    lengths: Floats
    white: float
    kernel: str = "matern"

    def predict(self, widths: Floats) -> tuple[Floats, Floats]:
        """Mean and joint covariance of the curve at some widths, ``white`` not included."""
        u = self._place(widths)
        lower, across = self._condition(u)
        z = np.linalg.solve(lower, (self.values - self.mean) / self.scale)
        cov = self._kernel(u, u) - across.T @ across
        return self.mean + self.scale * (across.T @ z), self.scale**2 * cov

    def deviations(self, widths: Floats) -> Floats:
        """Standard deviation of the curve at each of many widths."""
        _, across = self._condition(self._place(widths))
        variance = self.signal - np.sum(across**2, axis=0)
        deviations: Floats = self.scale * np.sqrt(np.maximum(variance, 0.0))
        return deviations

    @property
    def white_variance(self) -> float:
        """Variance of single widths around the curve."""
        return float(self.white * self.scale**2)

    def to_dict(self) -> Json:
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self.__dict__.items()
        }

    @classmethod
    def from_dict(cls, data: Json) -> Gp:
        numbers: Json = {
            name: np.array(value, dtype=float) if isinstance(value, list) else value
            for name, value in data.items()
        }
        return cls(**numbers)

    def _place(self, widths: Floats) -> Floats:
        places: Floats = (_stretch(widths) - self.offset) / self.span
        return places

    def _condition(self, u: Floats) -> tuple[Floats, Floats]:
        """Root of the covariance of what is known, and what it says about some places."""
        known = self._place(self.widths)
        noise = self.variances / self.scale**2 + self.white + _JITTER
        lower = np.linalg.cholesky(self._kernel(known, known) + np.diag(noise))
        across = np.linalg.solve(lower, self._kernel(known, u))
        return np.asarray(lower, np.float64), np.asarray(across, np.float64)

    def _kernel(self, one: Floats, two: Floats) -> Floats:
        steps = (one[:, None, :] - two[None, :, :]) / self.lengths
        squares = np.sum(steps**2, axis=2)
        d = np.sqrt(5.0 * squares)
        kernel: Floats = self.signal * (1.0 + d + d**2 / 3.0) * np.exp(-d)
        if self.kernel == "rbf":
            kernel = self.signal * np.exp(-squares / 2.0)
        return kernel


def fit_gp(
    widths: Sequence[Sequence[int]],
    values: Sequence[float],
    variances: Sequence[float],
    kernel: str = "matern",
) -> Gp:
    """Fit a process to the points of a curve. Points without any width lie on one spot."""
    if kernel not in KERNELS:
        raise InputError(f"there is no kernel {kernel!r}; known are {', '.join(KERNELS)}")
    w = np.array([list(point) or [1] for point in widths], dtype=float)
    y, v = np.array(values, dtype=float), np.array(variances, dtype=float)
    t = _stretch(w)
    offset, span = t.min(axis=0), np.ptp(t, axis=0)
    span = np.where(span > 0, span, 1.0)
    mean, scale = float(y.mean()), _scale_of(y)
    u, z = (t - offset) / span, (y - mean) / scale
    signal, lengths, white = _fit_kernel(u, z, v / scale**2, kernel)
    return Gp(w, y, v, offset, span, mean, scale, signal, lengths, white, kernel)


def _stretch(widths: Floats) -> Floats:
    """Widths as the kernel sees them: small ones, where the cost bends, are spread out."""
    stretched: Floats = np.sqrt(widths)
    return stretched


def _scale_of(values: Floats) -> float:
    """How far values spread; never much less than their size, however few they are."""
    return max(float(values.std()), 0.1 * float(np.abs(values).mean())) or 1.0


def _fit_kernel(u: Floats, z: Floats, noise: Floats, name: str) -> tuple[float, Floats, float]:
    """Signal, lengths and white of largest likelihood times prior."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    lengths = np.full(u.shape[1], LENGTH_PRIOR[0])
    reach = _bounds(LENGTH_PRIOR)
    shape = RBF(lengths, reach) if name == "rbf" else Matern(lengths, reach, nu=2.5)
    signal = ConstantKernel(SIGNAL_PRIOR[0], _bounds(SIGNAL_PRIOR))
    kernel = signal * shape + WhiteKernel(WHITE_PRIOR[0], _bounds(WHITE_PRIOR))
    process = GaussianProcessRegressor(kernel, alpha=noise + _JITTER, optimizer=_climb)
    with warnings.catch_warnings():
        # Reaching a bound is no accident here: that is what the priors' bounds are for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = process.fit(u, z).kernel_
    lengths = np.atleast_1d(np.asarray(fitted.k1.k2.length_scale, dtype=float))
    return float(fitted.k1.k1.constant_value), lengths, float(fitted.k2.noise_level)


def _bounds(prior: tuple[float, float]) -> tuple[float, float]:
    reach = float(np.exp(_WITHIN * prior[1]))
    return (prior[0] / reach, prior[0] * reach)


def _climb(
    negative: Callable[[Floats], tuple[float, Floats]], start: Floats, bounds: Floats
) -> tuple[Floats, float]:
    """scikit-learn's search with the priors added: the start lies at their medians."""
    from scipy.optimize import minimize

    lengths = [LENGTH_PRIOR[1]] * (len(start) - 2)
    deviations = np.array([SIGNAL_PRIOR[1], *lengths, WHITE_PRIOR[1]])

    def penalised(theta: Floats) -> tuple[float, Floats]:
        value, slope = negative(theta)
        off = (theta - start) / deviations
        return value + 0.5 * float(off @ off), slope + off / deviations

    found = minimize(penalised, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return found.x, float(found.fun)
