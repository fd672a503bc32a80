"""Define a process over log values; mean and covariance of its prior.

θ = ln (c_1 … c_K, then for each term a_t, b_t, ℓ_t1 … ℓ_tD, then σ_j, σ_s, σ_t, σ_n)

A term without a prior for a_t or b_t has none, and θ leaves it out. The package has the notation.

    m_p   = Σ_k B_pk·c_k
    l_p   = ln m_p, or with a cap the soft minimum  -ln(m_p^-q + cap_p^-q) / q
    μ_p   = l_p + Σ_s H_ps·c_(K+s)    H basis functions of the logarithm, if there are any
    s_pk  = B_pk·c_k / m_p            share of a basis function in the mean

Basis functions of the logarithm are residuals of other devices, beyond means that had their cap.
Inputs of equal groups and regime form a cell. Levels are constant between two cells, so that only
Matern kernels depend on single inputs; each is evaluated within the groups of its term alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.kernels import factor_squared_distances, matern52, scale_points
from joulecast.gp.linalg import Floats, Ints, WeightedSums, expand_ranges, iterate_strips, matvec
from joulecast.gp.lognormal import Prior
from joulecast.gp.logsums.inputs import ALL_INPUTS, NO_GROUP, LogInputs, LogSums
from joulecast.records.codec import Record

# Exponent q of the soft minimum: it takes 3 % off a mean that is 15 % below its cap.
_CAP_EXPONENT = 8.0


@dataclass(frozen=True)
class KernelTerm(Record):
    """One term of the covariance, shared by the inputs of a group.

    Attributes:
        group: Column of ``LogInputs.groups``; ALL_INPUTS if all inputs are one group.
        axes: Columns of ``LogInputs.points`` that its kernel depends on; none for a level.
        shared_sd: Prior of a_t, the standard deviation that all regimes share.
        regime_sd: Prior of b_t, the standard deviation of each regime.
    """

    group: int
    axes: tuple[int, ...] = ()
    shared_sd: Prior | None = None
    regime_sd: Prior | None = None
    length_scale: Prior = (2.0, 0.7)


@dataclass(frozen=True)
class LogSumProcess(Record):
    """Definition of a process: priors of coefficients, terms and standard deviations.

    Attributes:
        coefficients: Prior of the coefficient of each basis function, then of each basis function
            of the logarithm.
        terms: Terms of the covariance.
        nugget_sd: Prior of σ_j, the deviation of each distinct input.
        structure_sd: Prior of σ_s, the discrepancy of a structure.
        sum_sd: Prior of σ_t, the discrepancy of each distinct sum.
        noise_sd: Prior of σ_n, the noise of an observation.
    """

    coefficients: tuple[Prior, ...]
    terms: tuple[KernelTerm, ...]
    nugget_sd: Prior = (0.1, 0.5)
    structure_sd: Prior = (0.08, 0.5)
    sum_sd: Prior = (0.04, 0.5)
    noise_sd: Prior = (0.02, 0.5)

    @property
    def medians(self) -> Floats:
        """Medians of the priors of the coefficients."""
        return np.array([median for median, _ in self.coefficients])

    @cached_property
    def theta_prior(self) -> tuple[Floats, Floats]:
        """Means and standard deviations of the independent normal priors of θ."""
        found = list(self.coefficients)
        for term in self.terms:
            found += [one for one in (term.shared_sd, term.regime_sd) if one is not None]
            found += [term.length_scale] * len(term.axes)
        found += [self.nugget_sd, self.structure_sd, self.sum_sd, self.noise_sd]
        medians, log_sds = np.array(found, float).T
        return np.log(medians), log_sds

    def unpack(self, theta: Floats) -> LogSumPrior:
        """Return the prior of log values under the hyper-parameters θ."""
        values = iter(np.exp(theta).tolist())
        coefficients = np.array([next(values) for _ in self.coefficients])
        terms = []
        for term in self.terms:
            shared_sd = 0.0 if term.shared_sd is None else next(values)
            regime_sd = 0.0 if term.regime_sd is None else next(values)
            scales = np.array([next(values) for _ in term.axes])
            terms.append(FittedTerm(term.group, term.axes, shared_sd, regime_sd, scales))
        return LogSumPrior(coefficients, tuple(terms), *values)


@dataclass(frozen=True)
class FittedTerm:
    """A term with its hyper-parameters."""

    group: int
    axes: tuple[int, ...]
    shared_sd: float
    regime_sd: float
    length_scales: Floats

    def scale(self, inputs: LogInputs) -> Floats:
        """Return the scaled points of inputs on the axes of the term."""
        return scale_points(inputs.points[:, list(self.axes)], self.length_scales)


@dataclass(frozen=True)
class LogSumPrior:
    """The prior of log values under given hyper-parameters."""

    coefficients: Floats
    terms: tuple[FittedTerm, ...]
    nugget_sd: float
    structure_sd: float
    sum_sd: float
    noise_sd: float

    def mean(self, inputs: LogInputs) -> Floats:
        """Return the prior mean μ of each input."""
        return prior_log_mean(inputs, self.coefficients)

    def covariance(self, left: LogInputs, right: LogInputs) -> Floats:
        """Return the prior covariance of log values between two sets of inputs, with nuggets."""
        cov = self._find_levels(left, right)
        cov = cov.take(right.cells[1], axis=1).take(left.cells[1], axis=0)
        for term in self.terms:
            for rows, columns, kernel in _iterate_kernel(term, left, right):
                if isinstance(rows, slice) or isinstance(columns, slice):
                    cov[rows, columns] += kernel
                else:
                    cov[np.ix_(rows, columns)] += kernel
        rows, columns = _match_identities(left.identities, right.identities)
        cov[rows, columns] += self.nugget_sd**2
        return cov

    def multiply_covariance(self, left: LogInputs, right: LogInputs, vector: Floats) -> Floats:
        """Return the prior covariance times a vector, without all of it at once.

        With 1,200 and 10,000 inputs this takes a third of the time.
        """
        by_cell = np.asarray(np.bincount(right.cells[1], vector, len(right.cells[0])), float)
        product = matvec(self._find_levels(left, right), by_cell)[left.cells[1]]
        for term in self.terms:
            for rows, columns, kernel in _iterate_kernel(term, left, right):
                product[rows] += matvec(kernel, vector[columns])
        rows, columns = _match_identities(left.identities, right.identities)
        nuggets = np.bincount(rows, vector[columns], left.size)
        return np.asarray(product + self.nugget_sd**2 * nuggets)

    def variance(self, inputs: LogInputs) -> Floats:
        """Return the prior variance of the log value of each input, with nuggets."""
        variances = np.full(inputs.size, self.nugget_sd**2)
        for term in self.terms:
            is_member = inputs.group_column(term.group) != NO_GROUP
            variances += (term.shared_sd**2 + term.regime_sd**2) * is_member
        return variances

    def sum_variance(self, inputs: LogInputs, weights: WeightedSums) -> Floats:
        """Return the prior variance of weighted sums of log values, from the pairs within each."""
        own = weights.sum_entries(weights.weight**2 * self.variance(inputs)[weights.column])
        # All pairs of entries of the same row, the earlier entry first.
        next_entry = np.arange(len(weights.row)) + 1
        row_end = np.searchsorted(weights.row, weights.row, side="right")
        first, second = expand_ranges(next_entry, row_end - next_entry)
        left, right = weights.column[first], weights.column[second]
        same_regime = inputs.regimes[left] == inputs.regimes[right]
        cov = np.zeros(len(first))
        for term in self.terms:
            column = inputs.group_column(term.group)
            same = np.flatnonzero((column[left] == column[right]) & (column[left] != NO_GROUP))
            variance = term.shared_sd**2 + term.regime_sd**2 * same_regime[same]
            if term.axes:
                points = term.scale(inputs)
                differences = points[left[same]] - points[right[same]]
                variance *= matern52(np.einsum("ij,ij->i", differences, differences))
            cov[same] += variance
        cov *= weights.weight[first] * weights.weight[second]
        return np.asarray(own + 2.0 * np.bincount(weights.row[first], cov, weights.size))

    def discrepancy_covariance(self, left: LogSums, right: LogSums) -> Floats:
        """Return the covariance of discrepancies between two sets of sums."""
        cov = np.zeros((left.size, right.size))
        place, products, is_same = multiply_structures(left, right)
        cov[place] = products * (self.structure_sd**2 + self.sum_sd**2 * is_same)
        return cov

    def discrepancy_variance(self, sums: LogSums) -> Floats:
        """Return the variance of the discrepancy of each sum."""
        squares = sums.structures.sum_entries(sums.structures.weight**2)
        return np.asarray((self.structure_sd**2 + self.sum_sd**2) * squares)

    def _find_levels(self, left: LogInputs, right: LogInputs) -> Floats:
        """Return the covariance of the terms without axes between two sets of cells."""
        left_table, right_table = left.cells[0], right.cells[0]
        levels = np.zeros((len(left_table), len(right_table)))
        for term in self.terms:
            if not term.axes:
                same_group, same_regime = compare_cells(term.group, left_table, right_table)
                levels += term.shared_sd**2 * same_group + term.regime_sd**2 * same_regime
        return levels


def prior_log_mean(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the prior mean μ of each input."""
    log_mean = np.log(matvec(inputs.basis, coefficients[: inputs.basis.shape[1]]))
    if inputs.log_caps is not None:
        scaled = -_CAP_EXPONENT * np.array([log_mean, inputs.log_caps])
        log_mean = np.asarray(-np.logaddexp(scaled[0], scaled[1]) / _CAP_EXPONENT)
    if inputs.log_basis is not None:
        log_mean = log_mean + matvec(inputs.log_basis, coefficients[inputs.basis.shape[1] :])
    return log_mean


def coefficient_gradient(inputs: LogInputs, coefficients: Floats) -> Floats:
    """Return the derivative of μ by the logarithm of each coefficient, P x K."""
    size = inputs.basis.shape[1]
    terms = inputs.basis * coefficients[:size]
    shares = terms / terms.sum(axis=1, keepdims=True)
    if inputs.log_caps is not None:
        # The derivative of l by ln m.
        uncapped = np.log(matvec(inputs.basis, coefficients[:size]))
        margin = _CAP_EXPONENT * (uncapped - inputs.log_caps)
        shares = shares * (1.0 / (1.0 + np.exp(np.minimum(margin, 500.0))))[:, None]
    if inputs.log_basis is not None:
        shares = np.column_stack([shares, inputs.log_basis * coefficients[size:]])
    return np.asarray(shares)


def compare_cells(group: int, left: Ints, right: Ints) -> tuple[Floats, Floats]:
    """Return which cells share the group of a term, and which of those share their regime too."""
    same_regime = left[:, None, -1] == right[None, :, -1]
    if group == ALL_INPUTS:
        return np.ones(same_regime.shape), same_regime.astype(float)
    own = left[:, None, group]
    same_group = (own == right[None, :, group]) & (own != NO_GROUP)
    return same_group.astype(float), (same_group & same_regime).astype(float)


def multiply_structures(left: LogSums, right: LogSums) -> tuple[tuple[Ints, ...], Floats, Floats]:
    """Return where sums have structures, F·Fᵀ there, and which sums are the same there."""
    one, two = left.structures, right.structures
    rows, columns = np.unique(one.row), np.unique(two.row)
    labels = np.intersect1d(one.column, two.column)
    shares = []
    for own, present in ((one, rows), (two, columns)):
        dense = np.zeros((len(present), len(labels)))
        known = np.flatnonzero(np.isin(own.column, labels))
        place = np.searchsorted(present, own.row[known]), np.searchsorted(labels, own.column[known])
        dense[place] = own.weight[known]
        shares.append(dense)
    is_same = left.identities[rows][:, None] == right.identities[columns][None, :]
    # One array twice: BLAS then computes one triangle, and the product is symmetric.
    product = shares[0] @ shares[0 if left is right else 1].T
    return np.ix_(rows, columns), np.asarray(product), is_same.astype(float)


def _iterate_kernel(
    term: FittedTerm, left: LogInputs, right: LogInputs
) -> Iterator[tuple[slice | Ints, slice | Ints, Floats]]:
    """Yield rows, columns, and Matern 5/2 times the variance of a term, group by group."""
    if not term.axes:
        return
    one, two = factor_squared_distances(term.scale(left), term.scale(right))
    groups = left.group_column(term.group), right.group_column(term.group)
    shared = np.setdiff1d(np.intersect1d(*groups), [NO_GROUP])
    members = []
    for own in groups:
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own, shared, sorter=order)
        stops = np.searchsorted(own, shared, side="right", sorter=order)
        members.append([order[start:stop] for start, stop in zip(starts, stops, strict=True)])
    for rows, columns in zip(*members, strict=True):
        target = as_slice(columns)
        factor, regimes = two[:, target], right.regimes[target]
        for strip in iterate_strips(len(rows), len(columns)):
            some = as_slice(rows[strip])
            kernel = matern52(one[some] @ factor)
            variance: float | Floats = term.shared_sd**2
            if term.regime_sd:
                same = left.regimes[some][:, None] == regimes[None, :]
                variance = variance + term.regime_sd**2 * same
            kernel *= variance
            yield some, target, kernel


def as_slice(index: Ints) -> slice | Ints:
    """Return an ascending index as a slice where it is contiguous."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if last - first + 1 == len(index) else index


def _match_identities(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of equal inputs, by their rows and columns."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    starts = np.searchsorted(ordered, left)
    lengths = np.searchsorted(ordered, left, side="right") - starts
    rows, places = expand_ranges(starts, lengths)
    return rows, order[places]
