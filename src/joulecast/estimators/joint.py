"""One exact Gaussian process over everything that was observed; nothing is subtracted.

    y_i  = Σ_p A_ip·g_p·(1 + ε)          a row: an isolated piece, a variant or a whole net
    g_p  = m_p·(1 + δ_p)                 a piece: joules, or seconds
    m_p  = Σ_k c_k·C_pk                  physics: columns of work, coefficients c > 0
    δ_p  = u_label + f_label(x) + r(q) + j
           u ~ N(0, s_u²)      a kind's own level
           f ~ Matern 5/2      over its place x, a length scale for each axis
           r ~ Matern 5/2      over the rates q that a piece reaches, shared by all kinds
           j ~ N(0, s_j²)      of every distinct piece: what stays jagged

Each row is divided by y_i, so that everything is relative: with B = A·diag(m)/y the residual is
1 - B·1 and its covariance B·K·Bᵀ + diag(noise² + known). The hyper-parameters are the logarithms of
c, s_f, s_r, s_j, noise and the length scales, each with a normal prior. ``cost_rows`` gives minus
the log posterior and its gradient in closed form; nothing here imports more than numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROOT5 = math.sqrt(5.0)
SPREADS = ("shape", "rates", "jagged", "noise")


@dataclass(frozen=True)
class Field:
    """Pieces as arrays, in one order.

    Attributes:
        columns: Work of each piece, P x K: what coefficients multiply.
        labels: Which kind each belongs to, P; pieces of one label share residuals.
        places: P x D.
        rates: P x 2; P x 0 where nothing is shared by rates.
    """

    columns: Floats
    labels: Ints
    places: Floats
    rates: Floats


@dataclass(frozen=True)
class Rows:
    """What was observed: how often each row runs each piece, N x P, and its value.

    Attributes:
        known: Relative variance of each row that is known beforehand, N.
    """

    counts: Floats
    values: Floats
    known: Floats


@dataclass(frozen=True)
class Prior:
    """Medians and log-deviations of all hyper-parameters, in the order of ``split``."""

    medians: Floats
    widths: Floats
    level: float

    def draw_to(self, theta: Floats) -> tuple[float, Floats]:
        """Minus the log prior, and its gradient."""
        off = (theta - np.log(self.medians)) / self.widths
        return 0.5 * float(off @ off), off / self.widths


@dataclass(frozen=True)
class Parts:
    """Hyper-parameters by name."""

    coefficients: Floats
    shape: float
    rates: float
    jagged: float
    noise: float
    place_scales: Floats
    rate_scales: Floats


def split(theta: Floats, columns: int, axes: int) -> Parts:
    """A vector of logarithms as named numbers."""
    numbers = np.exp(theta)
    shape, rates, jagged, noise = map(float, numbers[columns : columns + 4])
    scales = numbers[columns + 4 :]
    return Parts(numbers[:columns], shape, rates, jagged, noise, scales[:axes], scales[axes:])


def matern(squares: Floats) -> tuple[Floats, Floats]:
    """Matern 5/2 at squared distances, and minus twice its slope there."""
    r = np.sqrt(squares)
    fade = np.exp(-_ROOT5 * r)
    value = (1.0 + _ROOT5 * r + (5.0 / 3.0) * squares) * fade
    return value, (5.0 / 3.0) * (1.0 + _ROOT5 * r) * fade


def relate(one: Field, two: Field, parts: Parts, level: float) -> Floats:
    """Prior covariance of δ between two sets of pieces, without what is each one's own."""
    cov = np.zeros((len(one.labels), len(two.labels)))
    for label in np.unique(one.labels):
        mine, theirs = np.flatnonzero(one.labels == label), np.flatnonzero(two.labels == label)
        if len(theirs):
            squares = _square(one.places[mine], two.places[theirs], parts.place_scales)
            block = level**2 + parts.shape**2 * matern(squares)[0]
            cov[np.ix_(mine, theirs)] = block
    if one.rates.shape[1]:
        cov += parts.rates**2 * matern(_square(one.rates, two.rates, parts.rate_scales))[0]
    return cov


def relate_pairs(field: Field, left: Ints, right: Ints, parts: Parts, level: float) -> Floats:
    """Prior covariance of δ for a list of pairs of pieces, without what is each one's own."""
    gaps = (field.places[left] - field.places[right]) / parts.place_scales
    cov = level**2 + parts.shape**2 * matern((gaps**2).sum(axis=1))[0]
    cov = np.where(field.labels[left] == field.labels[right], cov, 0.0)
    if field.rates.shape[1]:
        gaps = (field.rates[left] - field.rates[right]) / parts.rate_scales
        cov = cov + parts.rates**2 * matern((gaps**2).sum(axis=1))[0]
    return np.asarray(cov)


def _square(one: Floats, two: Floats, scales: Floats) -> Floats:
    a, b = one / scales, two / scales
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    return np.asarray(np.maximum(squares, 0.0))


# ---------------------------------------------------------------------------------------------
# Learning


class Evidence:
    """Rows and their pieces, ready to be weighed at many hyper-parameters."""

    def __init__(self, field: Field, rows: Rows, prior: Prior) -> None:
        self.field, self.rows, self.prior = field, rows, prior
        self.sizes = field.columns.shape[1], field.places.shape[1]
        self._shares = rows.counts / rows.values[:, None]
        self._groups = [np.flatnonzero(field.labels == label) for label in np.unique(field.labels)]
        self._gaps = [list(_gap(field.places[group])) for group in self._groups]
        self._rate_gaps = list(_gap(field.rates))

    def weigh(self, theta: Floats) -> tuple[float, Floats]:
        """Minus the log posterior of hyper-parameters, and its gradient."""
        parts = split(theta, *self.sizes)
        cov, slopes = self._covary(parts)
        mean = self.field.columns @ parts.coefficients
        share = self._shares * mean
        mixed = share @ cov
        total = mixed @ share.T
        total[np.diag_indices_from(total)] += parts.noise**2 + self.rows.known
        factor = factorise(total)
        residual = 1.0 - share.sum(axis=1)
        inverse = np.linalg.inv(total)
        alpha = inverse @ residual
        prior, gradient = self.prior.draw_to(theta)
        value = 0.5 * float(residual @ alpha) + float(np.log(np.diag(factor)).sum()) + prior
        weight = inverse - np.outer(alpha, alpha)
        by_mean = ((weight @ mixed - alpha[:, None]) * self._shares).sum(axis=0)
        gradient[: self.sizes[0]] += (by_mean @ self.field.columns) * parts.coefficients
        by_cov = 0.5 * share.T @ (weight @ share)
        gradient[self.sizes[0] :] += self._lean(by_cov, slopes, weight, parts)
        return value, gradient

    def _covary(self, parts: Parts) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        """Covariance of δ, and Matern values with slopes of each group and of the rates."""
        size = len(self.field.labels)
        cov = np.zeros((size, size))
        slopes = []
        for group, gaps in zip(self._groups, self._gaps, strict=True):
            slopes.append(matern(_scale(gaps, parts.place_scales, len(group))))
            cov[np.ix_(group, group)] = self.prior.level**2 + parts.shape**2 * slopes[-1][0]
        if self._rate_gaps:
            slopes.append(matern(_scale(self._rate_gaps, parts.rate_scales, size)))
            cov += parts.rates**2 * slopes[-1][0]
        cov[np.diag_indices(size)] += parts.jagged**2
        return cov, slopes

    def _lean(
        self, by_cov: Floats, slopes: list[tuple[Floats, Floats]], weight: Floats, parts: Parts
    ) -> Floats:
        """The gradient with respect to spreads and length scales."""
        spreads, scales = np.zeros(4), np.zeros(len(parts.place_scales))
        for group, gaps, (value, slope) in zip(self._groups, self._gaps, slopes, strict=False):
            block = by_cov[np.ix_(group, group)]
            spreads[0] += 2.0 * parts.shape**2 * float((block * value).sum())
            leaning = block * slope * parts.shape**2
            scales += [float((leaning * gap).sum()) for gap in gaps] / parts.place_scales**2
        rate_scales = np.zeros(len(parts.rate_scales))
        if self._rate_gaps:
            value, slope = slopes[-1]
            spreads[1] = 2.0 * parts.rates**2 * float((by_cov * value).sum())
            leaning = by_cov * slope * parts.rates**2
            rate_scales += [float((leaning * gap).sum()) for gap in self._rate_gaps]
            rate_scales /= parts.rate_scales**2
        spreads[2] = 2.0 * parts.jagged**2 * float(np.trace(by_cov))
        spreads[3] = parts.noise**2 * float(np.trace(weight))
        return np.concatenate([spreads, scales, rate_scales])


def _gap(points: Floats) -> Iterator[Floats]:
    for axis in points.T:
        yield (axis[:, None] - axis[None, :]) ** 2


def _scale(gaps: Sequence[Floats], scales: Floats, size: int) -> Floats:
    squares = np.zeros((size, size))
    for gap, scale in zip(gaps, scales, strict=True):
        squares += gap / scale**2
    return squares


def factorise(matrix: Floats) -> Floats:
    """The lower Cholesky factor; a matrix that rounding has spoilt gets a little more diagonal."""
    jitter = 0.0
    scale = float(np.diag(matrix).mean())
    while True:
        try:
            return np.asarray(np.linalg.cholesky(matrix + jitter * np.eye(len(matrix))))
        except np.linalg.LinAlgError:
            jitter = max(10.0 * jitter, 1e-10 * scale)
