"""One exact Gaussian process over everything that was observed; nothing is subtracted.

    y_i  = Σ_p A_ip·g_p·(1 + ε)          a row: an isolated piece, a variant or a whole net
    g_p  = m_p·(1 + δ_p)                 a piece: joules, or seconds
    m_p  = Σ_k c_k·C_pk                  physics: columns of work, coefficients c > 0
    δ_p  = u_label + f_label(x) + r(q) + j
           u ~ N(0, s_u²)      a kind's own level
           f ~ Matern 5/2      over its place x, a length scale for each axis
           r ~ Matern 5/2      over the rates q that a piece reaches, shared by all kinds
           j ~ N(0, s_j²)      of every distinct piece: what stays jagged
    a whole net is off besides, by Σ_k √share_k·a_k, a ~ N(0, s_a²) of every kind: inside a net
    layers are fed other numbers, share caches and reach other clocks than alone

Each row is divided by y_i, so that everything is relative: with B = A·diag(m)/y the residual is
1 - B·1 and its covariance B·K·Bᵀ + diag(noise² + known). The hyper-parameters are the logarithms of
c, s_f, s_r, s_j, noise and the length scales, each with a normal prior. ``Evidence.weigh`` gives
minus the log posterior and its gradient in closed form, group by group (groups.py); nothing here
imports more than numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.gp.kernel_groups import Group, Kernel, Lean, Made
from joulecast.gp.kernels import Floats as Floats
from joulecast.gp.kernels import Ints, add_matern, combine, invert, stretch

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

    def mean(self, parts: Parts) -> Floats:
        """What each piece costs by its work alone: m."""
        return combine(self.columns, parts.coefficients)

    def take(self, index: Ints) -> Field:
        """Some of the pieces."""
        return Field(
            self.columns[index],
            self.labels[index],
            self.places[index],
            self.rates[index],
        )


@dataclass(frozen=True)
class Rows:
    """What was observed: how often each row runs each piece, N x P, and its value.

    Attributes:
        known: Relative variance of each row that is known beforehand, N.
        above: How whole nets are off together, N x L: the deviation that each kind lends a row.
        units: How rows of another unit of the device are off together, N x U: by a share of what
            their pieces cost. A share of their values would leave a way out: nothing costs
            anything, and all units take more than that.
    """

    counts: Floats
    values: Floats
    known: Floats
    above: Floats
    units: Floats

    def relate(self, reach: Floats) -> Floats:
        """Relative covariance of rows that no piece brings about, N x N.

        Args:
            reach: What each row's pieces cost in the mean, as a share of its value.
        """
        units = self.units * reach[:, None]
        return np.asarray(self.above @ self.above.T + units @ units.T)


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


def relate(one: Field, two: Field, parts: Parts, level: float) -> Floats:
    """Prior covariance of δ between two sets of pieces, without what is each one's own."""
    cov = np.zeros((len(one.labels), len(two.labels)))
    for label in np.intersect1d(one.labels, two.labels):
        mine, theirs = _find(one.labels, label), _find(two.labels, label)
        points = one.places[mine], two.places[theirs]
        near, far = (stretch(found, parts.place_scales) for found in points)
        # Where kinds stand together, their block of the covariance is written to in place.
        whole = isinstance(mine, slice) and isinstance(theirs, slice)
        block = cov[mine, theirs] if whole else np.zeros((len(near), len(far)))
        add_matern(block, near, far, parts.shape**2, level**2)
        if not whole:
            cov[np.ix_(one.labels == label, two.labels == label)] = block
    if one.rates.shape[1]:
        near, far = (stretch(field.rates, parts.rate_scales) for field in (one, two))
        add_matern(cov, near, far, parts.rates**2)
    return cov


def _find(labels: Ints, label: int) -> slice | Ints:
    """Where a kind's pieces are; a slice where they stand together."""
    found = np.flatnonzero(labels == label)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


# ---------------------------------------------------------------------------------------------
# Learning


class Evidence:
    """Rows and their pieces, ready to be weighed at many hyper-parameters."""

    def __init__(self, field: Field, rows: Rows, prior: Prior) -> None:
        self.field, self.rows, self.prior = field, rows, prior
        self.sizes = field.columns.shape[1], field.places.shape[1]
        self._row, self._piece = np.nonzero(rows.counts)
        self._shares = rows.counts[self._row, self._piece] / rows.values[self._row]
        self._above, self._units = rows.above @ rows.above.T, rows.units @ rows.units.T
        kinds = [np.flatnonzero(field.labels == label) for label in np.unique(field.labels)]
        self._kinds = [self._group(members, field.places) for members in kinds]
        everything = np.arange(len(field.labels))
        self._rates = [self._group(everything, field.rates)] if field.rates.shape[1] else []

    def _group(self, members: Ints, points: Floats) -> Group:
        pieces = len(self.field.labels)
        return Group(members, pieces, points[members], self._row, self._piece)

    def weigh(self, theta: Floats) -> tuple[float, Floats]:
        """Minus the log posterior of hyper-parameters, and its gradient."""
        parts = split(theta, *self.sizes)
        mean = self.field.mean(parts)
        weights = self._shares * mean[self._piece]
        by_place, by_rate = self._make_kernels(parts)
        kinds = [Made(group, by_place, weights) for group in self._kinds]
        rates = [Made(group, by_rate, weights) for group in self._rates]
        reach = np.asarray(np.bincount(self._row, weights, len(self.rows.values)), float)
        value, alpha, by_rows = self._explain([*kinds, *rates], reach, parts.noise)
        prior, gradient = self.prior.draw_to(theta)
        place = self._lean(kinds, by_rows, parts.place_scales)
        rate = self._lean(rates, by_rows, parts.rate_scales)
        pull = alpha - (by_rows * self._units) @ reach
        drawn = np.bincount(self._piece, weights * pull[self._row], len(mean))
        by_mean = (place.means + rate.means - drawn) / np.where(mean > 0, mean, 1.0)
        noise = parts.noise**2 * float(np.trace(by_rows))
        gradient += np.concatenate(
            [
                (by_mean @ self.field.columns) * parts.coefficients,
                [place.variance, rate.variance, place.own, noise],
                place.scales,
                rate.scales,
            ]
        )
        return value + prior, gradient

    def _make_kernels(self, parts: Parts) -> tuple[Kernel, Kernel]:
        """Of every kind by its pieces' places, and of all pieces by their rates."""
        level, own = self.prior.level**2, parts.jagged**2
        return (
            Kernel(level, parts.shape**2, own, parts.place_scales),
            Kernel(0.0, parts.rates**2, 0.0, parts.rate_scales),
        )

    def _explain(
        self, made: Sequence[Made], reach: Floats, noise: float
    ) -> tuple[float, Floats, Floats]:
        """Minus the log likelihood; by residuals, and by the rows' covariance, twice."""
        total = np.diag(noise**2 + self.rows.known) + self._above
        total += self._units * np.outer(reach, reach)
        for one in made:
            total[one.group.window] += one.cov
        inverse, half_log = invert(total)
        residual = 1.0 - reach
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + half_log
        return value, alpha, inverse - np.outer(alpha, alpha)

    def _lean(self, made: Sequence[Made], by_rows: Floats, scales: Floats) -> Lean:
        nothing = Lean(np.zeros(len(self.field.labels)), 0.0, 0.0, np.zeros(len(scales)))
        return sum((one.lean(by_rows) for one in made), nothing)
