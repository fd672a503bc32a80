"""Condition a process over log values on observed sums.

    f_i(z) = ln Σ_p A_ip·exp(z_p)             an observed sum
    w_ip   = A_ip·exp(z̄_p) / Σ_q A_iq·exp(z̄_q)
    f(z)   ≈ f(z̄) + w·(z - z̄)                 linearised around z̄
    E f    ≈ f(z̄) + b,  b = ½·(Σ_p w_p·v_p - s²)
    C      = W·K·Wᵀ + U + diag(σ_n² + v) = L·Lᵀ       covariance of the linearised observations
    r      = y - E f - W·(μ - z̄)              their residuals, U their discrepancies
    z | y  ~ N(μ + k·C⁻¹·r, K - |L⁻¹·kᵀ|²)    k the prior covariance of z with the observations

with v the variances of z and s² that of w·z: a sum of many uncertain inputs is above the sum of
their medians, by what of their variance averages out. z̄ is the posterior mean, found once when a
fit is made, by Gauss-Newton steps from the prior mean: z̄ ← μ + K·Wᵀ·C⁻¹·(y - E f - W·(μ - z̄)).
Later steps are damped, and b is taken from the first of them, so that observed sums and predicted
ones mean the same. These steps need scipy and as many threads as the caller allows (2,859
observations of 7,118 inputs: half a minute on one core); conditioning under a linearisation that
was kept needs numpy alone.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import (
    Floats,
    Ints,
    WeightedSums,
    cholesky_with_inverse,
    factorise_covariance,
    matmul,
    matvec,
)
from joulecast.gp.logsums.inputs import (
    LogInputs,
    LogObservations,
    LogSums,
    sort_by_cell,
    take_rows,
)
from joulecast.gp.logsums.prior import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
    log_prior_variance,
    multiply_prior_covariance,
    prior_log_mean,
)
from joulecast.gp.logsums.process import LogSumParameters, LogSumProcess

# Rows of a triangular product made at once.
_TILE = 64


@dataclass(frozen=True)
class FittedLogSums:
    """A process with its fitted hyper-parameters and everything it was observed through.

    Attributes:
        theta: The fitted θ.
        inputs: Inputs of all observations.
        observations: Observed sums of them.
        linear: Linearisation of the observations around a posterior, which conditioning on any of
            them then takes over; None to find it each time.
        row_weights: C⁻¹·r of all observations under that linearisation, so that means need no
            factor of C; None if that was not found.
    """

    process: LogSumProcess
    theta: Floats
    inputs: LogInputs
    observations: LogObservations
    linear: LinearSums | None = None
    row_weights: Floats | None = None

    @cached_property
    def hyper(self) -> LogSumParameters:
        """The fitted hyper-parameters by name."""
        return self.process.unpack(self.theta)

    @cached_property
    def row_covariances(self) -> RowCovariances:
        """Covariances of the observations with each other; they have to be linearised."""
        return RowCovariances(self)

    @cached_property
    def mean(self) -> PosteriorMean | None:
        """The posterior mean given all observations; None without row weights."""
        if self.linear is None or self.row_weights is None:
            return None
        weights, inputs = self.linear.weights, self.inputs
        order = np.argsort(inputs.cells[1], kind="stable")
        products = weights.weight * self.row_weights[weights.row]
        by_input = np.asarray(np.bincount(weights.column, products, inputs.size), float)
        return PosteriorMean(
            self.process,
            self.hyper,
            inputs.take(order),
            by_input[order],
            self.observations.sums,
            self.row_weights,
        )


@dataclass(frozen=True)
class PosteriorMean:
    """The posterior mean of a process.

    Attributes:
        inputs: Inputs of the observations, cell by cell.
        input_weights: Wᵀ·C⁻¹·r, P: the posterior mean is the prior covariance with the inputs times
            these.
        sums: Observed sums.
        row_weights: C⁻¹·r, N.
    """

    process: LogSumProcess
    hyper: LogSumParameters
    inputs: LogInputs
    input_weights: Floats
    sums: LogSums
    row_weights: Floats

    def predict(self, inputs: LogInputs) -> Floats:
        """Return the posterior mean of log values."""
        known = self.process, self.hyper, inputs, self.inputs, self.input_weights
        prior = prior_log_mean(inputs, self.hyper.coefficients)
        return np.asarray(prior + multiply_prior_covariance(*known))


@dataclass(frozen=True)
class LogSumPosterior:
    """A process conditioned on observations.

    Attributes:
        inputs: Inputs of the observations, cell by cell.
        sums: Observed sums.
        linear: Their linearisation, with weights W.
        inverse_factor: L⁻¹, N x N.
        row_weights: C⁻¹·r, N: the posterior mean is the prior covariance with the observations
            times these.
        full_mean: Posterior mean given further observations too; variances are then those given
            the ones here. None if there are no further ones.
    """

    process: LogSumProcess
    hyper: LogSumParameters
    inputs: LogInputs
    sums: LogSums
    linear: LinearSums
    inverse_factor: Floats
    row_weights: Floats
    full_mean: PosteriorMean | None = None

    def covariance_with_observations(self, inputs: LogInputs) -> Floats:
        """Return the prior covariance of the observations with inputs, N x P."""
        cov = log_prior_covariance(self.process, self.hyper, self.inputs, inputs)
        return self.linear.weights.matmul(cov)


def condition_logsums(fitted: FittedLogSums, rows: Ints | None = None) -> LogSumPosterior:
    """Return the posterior given all observations, or some of them."""
    observations, linear = fitted.observations, fitted.linear
    if rows is not None:
        observations = observations.take(rows)
    index, observations = sort_by_cell(fitted.inputs, observations)
    inputs = fitted.inputs.take(index)
    if rows is None or linear is None:
        prior = _ObservationPrior(fitted, inputs, observations)
        linear = prior.find_linearisation() if linear is None else _move(linear, observations)
        half = linear.weights.matmul(prior.covariance)
        cov = linear.weights.matmul(np.ascontiguousarray(half.T)) + prior.error_covariance
    else:
        linear = _move(linear.take(rows), observations)
        cov = fitted.row_covariances.take(rows, rows)
        cov[np.diag_indices_from(cov)] += fitted.hyper.noise_sd**2 + observations.log_variance
    _, inverse_factor = cholesky_with_inverse(cov)
    residual = observations.log_values - linear.evaluate(
        prior_log_mean(inputs, fitted.hyper.coefficients)
    )
    row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
    known = fitted.process, fitted.hyper, inputs, observations.sums
    return LogSumPosterior(*known, linear, inverse_factor, row_weights)


def linearise_observations(fitted: FittedLogSums) -> FittedLogSums:
    """Return the process with all observations linearised around their posterior."""
    index, observations = sort_by_cell(fitted.inputs, fitted.observations)
    prior = _ObservationPrior(fitted, fitted.inputs.take(index), observations)
    linear = prior.find_linearisation()
    row_weights = _LinearPosterior(prior, linear).find_row_weights()
    return replace(fitted, linear=_move(linear, fitted.observations), row_weights=row_weights)


def _move(linear: LinearSums, observations: LogObservations) -> LinearSums:
    """Return a linearisation over inputs in another order: entries lie where the counts do."""
    counts = observations.sums.counts
    return replace(linear, weights=replace(counts, weight=linear.weights.weight))


def correct_row_weights(fitted: FittedLogSums, rows: Ints) -> FittedLogSums:
    """Return the process with row weights that solve C·α = r for some observations.

    The weights of the others stay: where those solved their equations before, and the observations
    given are new or have much to do with new ones, all equations nearly hold.

    New observations have weights of zero.
    """
    if fitted.mean is None or fitted.linear is None or fitted.row_weights is None:
        return fitted
    sums, known = fitted.observations.sums.take(rows), fitted.mean
    used, own = sums.narrow()
    log_values = np.zeros(fitted.inputs.size)
    log_values[used] = known.predict(fitted.inputs.take(used))
    linear = fitted.linear.take(rows)
    noise = fitted.hyper.noise_sd**2 + fitted.observations.log_variance[rows]
    residual = fitted.observations.log_values[rows] - linear.evaluate(log_values)
    residual -= matvec(discrepancy_covariance(known.hyper, own, known.sums), known.row_weights)
    residual -= noise * known.row_weights[rows]
    inverse_factor = condition_logsums(fitted, rows).inverse_factor
    row_weights = fitted.row_weights.copy()
    row_weights[rows] += matvec(inverse_factor.T, matvec(inverse_factor, residual))
    return replace(fitted, row_weights=row_weights)


def multiply_triangular(lower: Floats, matrix: Floats) -> Floats:
    """Return the product of a lower triangular matrix and another one, without its zeros."""
    product = np.empty((len(lower), matrix.shape[1]))
    for start in range(0, len(lower), _TILE):
        stop = min(len(lower), start + _TILE)
        product[start:stop] = matmul(lower[start:stop, :stop], matrix[:stop])
    return product


@dataclass(frozen=True)
class LinearSums:
    """Logarithms of sums as affine functions of log values.

    Attributes:
        weights: The matrix w; each row adds up to 1.
        offsets: E f - w·z̄, N.
    """

    weights: WeightedSums
    offsets: Floats

    def evaluate(self, log_values: Floats) -> Floats:
        """Return the linearised logarithm of each sum."""
        return np.asarray(self.offsets + self.weights.total(log_values))

    def take(self, index: Ints) -> LinearSums:
        """Return some of the sums."""
        return LinearSums(take_rows(self.weights, index), self.offsets[index])


def linearise(
    counts: WeightedSums,
    log_values: Floats,
    log_variance: Floats | None = None,
    sum_variance: Floats | None = None,
) -> LinearSums:
    """Return the linearisation of sums around log values of all inputs.

    Args:
        counts: The sums.
        log_values: The mean z̄ of the inputs, P.
        log_variance: Their variance v, P; zero if left out.
        sum_variance: Variance s² of the linearised sums, N; zero if left out.
    """
    log_totals = log_sums(counts, log_values)
    terms = np.log(counts.weight) + log_values[counts.column]
    weight = np.exp(terms - log_totals[counts.row])
    weights = WeightedSums(counts.size, counts.row, counts.column, weight)
    if log_variance is not None and sum_variance is not None:
        log_totals = log_totals + 0.5 * (weights.total(log_variance) - sum_variance)
    return LinearSums(weights, log_totals - weights.total(log_values))


def log_sums(counts: WeightedSums, log_values: Floats) -> Floats:
    """Return the logarithm of each sum; minus infinity for empty ones."""
    values = log_values[counts.column]
    largest = np.full(counts.size, -np.inf)
    np.maximum.at(largest, counts.row, values)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    totals = counts.sum_entries(counts.weight * np.exp(values - largest[counts.row]))
    with np.errstate(divide="ignore"):
        return np.asarray(largest + np.log(totals))


# Steps in all; those that are not damped; and those after which variances are kept.
_MAX_STEPS, _FULL_STEPS, _VARIANCE_STEPS = 12, 3, 3
_DAMPING = 0.6
# A step changes no log value by more than this: far from z̄ the linearisation says little.
_MAX_CHANGE = 1.5
# Steps end when no linearised sum changes by more than this.
_TOLERANCE = 0.003


class _ObservationPrior:
    """Prior of observations and their inputs, for any linearisation.

    Attributes:
        counts: The observed sums, the matrix A.
        log_values: Logarithm of each observed value, N.
        mean: Prior mean of the inputs, P.
        covariance: Their prior covariance, P x P.
        error_covariance: Covariance of discrepancies and noise, N x N.
    """

    def __init__(
        self, fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations
    ) -> None:
        hyper, sums = fitted.hyper, observations.sums
        self.counts, self.log_values = sums.counts, observations.log_values
        self.mean = prior_log_mean(inputs, hyper.coefficients)
        self.covariance = log_prior_covariance(fitted.process, hyper, inputs, inputs)
        self.error_covariance = discrepancy_covariance(hyper, sums, sums)
        noise = hyper.noise_sd**2 + observations.log_variance
        self.error_covariance[np.diag_indices_from(self.error_covariance)] += noise

    def find_linearisation(self) -> LinearSums:
        """Return the sums linearised around the posterior mean of their inputs."""
        counts, log_values = self.counts, self.mean
        linear = linearise(counts, log_values)
        lengths = np.bincount(counts.row, minlength=counts.size)
        in_sums, several = np.unique(counts.column[lengths[counts.row] > 1]), lengths > 1
        if not len(in_sums):
            return linear
        variances: tuple[Floats, Floats] = np.zeros(len(log_values)), np.zeros(counts.size)
        for step in range(_MAX_STEPS):
            posterior = _LinearPosterior(self, linear)
            change = np.clip(posterior.find_mean() - log_values, -_MAX_CHANGE, _MAX_CHANGE)
            log_values = log_values + change * (1.0 if step < _FULL_STEPS else _DAMPING)
            if step < _VARIANCE_STEPS:
                variances = posterior.find_variances(in_sums, np.flatnonzero(several))
            before, linear = linear, linearise(counts, log_values, *variances)
            moved = np.abs(linear.evaluate(log_values) - before.evaluate(log_values))
            if moved.max() < _TOLERANCE and step >= _VARIANCE_STEPS:
                break
        return linear


class _LinearPosterior:
    """Posterior of the inputs under a linearisation."""

    def __init__(self, observed: _ObservationPrior, linear: LinearSums) -> None:
        from scipy.sparse import csr_array

        self._observed, self._linear = observed, linear
        entries = linear.weights
        shape = entries.size, len(observed.mean)
        self._weights = csr_array((entries.weight, (entries.row, entries.column)), shape)
        # The prior covariance of the observations with inputs, N x P, and with each other.
        self._half = self._weights @ observed.covariance
        self._own = np.asarray(self._weights @ np.ascontiguousarray(self._half.T))
        self._factor = factorise_covariance(self._own + observed.error_covariance)

    def find_row_weights(self) -> Floats:
        """Return C⁻¹ times the residuals of the prior mean."""
        residual = self._observed.log_values - self._linear.evaluate(self._observed.mean)
        return self._solve(self._solve(residual), transposed=True)

    def find_mean(self) -> Floats:
        """Return the posterior mean of all inputs."""
        return np.asarray(self._observed.mean + self.find_row_weights() @ self._half)

    def find_variances(self, in_sums: Ints, several: Ints) -> tuple[Floats, Floats]:
        """Return the posterior variances of inputs that occur in sums, and of these sums."""
        log_variance, sum_variance = np.zeros(self._half.shape[1]), np.zeros(len(self._own))
        prior_variance = np.diag(self._observed.covariance)[in_sums]
        log_variance[in_sums] = self._left_variance(self._half[:, in_sums], prior_variance)
        own_variance = self._own[several, several]
        sum_variance[several] = self._left_variance(self._own[:, several], own_variance)
        return log_variance, sum_variance

    def _left_variance(self, cov: Floats, prior_variance: Floats) -> Floats:
        explained = self._solve(cov)
        squares = np.einsum("ij,ij->j", explained, explained)
        return np.asarray(np.maximum(prior_variance - squares, 0.0))

    def _solve(self, matrix: Floats, transposed: bool = False) -> Floats:
        from scipy.linalg import solve_triangular

        found = solve_triangular(
            self._factor, matrix, trans=int(transposed), lower=True, check_finite=False
        )
        return np.asarray(found)


# Observations whose covariances are kept: 18 MB.
_KEPT_ROWS = 1536


class RowCovariances:
    """Covariances of the observations of a fitted process, for several threads.

    Args:
        fitted: The process, with its observations linearised.
        kept: Number of observations whose covariances are kept.
    """

    def __init__(self, fitted: FittedLogSums, kept: int = _KEPT_ROWS) -> None:
        assert fitted.linear is not None
        self._process, self._hyper, self._linear = fitted.process, fitted.hyper, fitted.linear
        self._inputs, self._observations = fitted.inputs, fitted.observations
        self._lock = threading.Lock()
        self._place = np.full(fitted.observations.size, -1)
        # Row in each place and when it was used last.
        self._row, self._used_at = np.full(kept, -1), np.zeros(kept, np.int64)
        self._matrix = np.full((0, 0), np.nan)
        self._uses = 0
        self._variances = np.full(fitted.observations.size, np.nan)

    def take(self, left: Ints, right: Ints) -> Floats:
        """Return the covariances of some observations with others, left x right."""
        rows = np.union1d(left, right)
        if len(rows) > len(self._row):
            return self._compute(left, right)
        with self._lock:
            self._find_places(rows)
            places, others = self._place[left], self._place[right]
            found = np.asarray(self._matrix[np.ix_(places, others)])
            # First rows that are mostly new, then columns that are new to the other rows.
            for share in (0.5, 0.0):
                missing = np.isnan(found)
                if not missing.any():
                    break
                is_new = missing.mean(axis=1) > share
                self._fill(left[is_new], right[missing[is_new].any(axis=0)])
                found = np.asarray(self._matrix[np.ix_(places, others)])
            return found

    def take_variances(self, rows: Ints) -> Floats:
        """Return the variances of some observations."""
        with self._lock:
            new = rows[np.isnan(self._variances[rows])]
            if len(new):
                inputs, sums, weights = self._select(new)
                found = log_prior_variance(self._process, self._hyper, inputs, weights)
                self._variances[new] = found + discrepancy_variance(self._hyper, sums)
            return np.asarray(self._variances[rows])

    def _find_places(self, rows: Ints) -> None:
        """Give every row a place, those of the rows that were not used for longest."""
        if not len(self._matrix):
            self._matrix = np.full((len(self._row), len(self._row)), np.nan)
        self._uses += 1
        known = self._place[rows]
        self._used_at[known[known >= 0]] = self._uses
        new = rows[known < 0]
        if not len(new):
            return
        free = np.argsort(self._used_at, kind="stable")[: len(new)]
        before = self._row[free]
        self._place[before[before >= 0]] = -1
        self._matrix[free, :] = self._matrix[:, free] = np.nan
        self._row[free], self._place[new], self._used_at[free] = new, free, self._uses

    def _fill(self, rows: Ints, others: Ints) -> None:
        if len(rows):
            found = self._compute(rows, others)
            places = np.ix_(self._place[rows], self._place[others])
            self._matrix[places] = found
            self._matrix.T[places] = found

    def _compute(self, left: Ints, right: Ints) -> Floats:
        inputs, sums, weights = self._select(left)
        others, other_sums, other_weights = self._select(right)
        cov = log_prior_covariance(self._process, self._hyper, inputs, others)
        half = weights.matmul(cov)
        product = other_weights.matmul(np.ascontiguousarray(half.T)).T
        return np.asarray(product + discrepancy_covariance(self._hyper, sums, other_sums))

    def _select(self, rows: Ints) -> tuple[LogInputs, LogSums, WeightedSums]:
        """Return the inputs of some observations cell by cell, their sums, and their weights."""
        index, observations = sort_by_cell(self._inputs, self._observations.take(rows))
        counts = observations.sums.counts
        weight = self._linear.take(rows).weights.weight
        weights = WeightedSums(counts.size, counts.row, counts.column, weight)
        return self._inputs.take(index), observations.sums, weights
