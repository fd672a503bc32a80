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

Predictions are of inputs, combinations of log values, and totals:

    m, v      posterior mean and variance of each log value
    w, b      linearisation of a sum around m, and what uncertainty adds (``posterior``)
    s²        = w·Σ·wᵀ                                      log variance of the sum
    ln total  ~ N(ln Σ_p A_p·exp(m_p) + b + E u, s² + discrepancy u)

A further observation, candidate j, is expected to take c_ij² / s_j² off the log variance of target
i, whatever it shows: c_ij is their posterior covariance, s_j² the variance of the observation with
its noise.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from joulecast.gp.logsums.inputs import LinearSums, LogInputs, LogObservations, LogSums, linearise
from joulecast.gp.logsums.prior import LogSumPrior, LogSumProcess

# Rows of a triangular product made at once.
_TILE = 64
# Steps in all; those that are not damped; and those after which variances are kept.
_MAX_STEPS, _FULL_STEPS, _VARIANCE_STEPS = 12, 3, 3
_DAMPING = 0.6
# A step changes no log value by more than this: far from z̄ the linearisation says little.
_MAX_CHANGE = 1.5
# Steps end when no linearised sum changes by more than this.
_TOLERANCE = 0.003
# Inputs whose covariances with the observations are made at once.
_INPUT_CHUNK = 2048
# Entries of sums, and pairs of entries, that are held at once.
_MAX_ENTRIES, _MAX_PAIRS = 16384, 1_000_000


@dataclass(frozen=True)
class FittedLogSums:
    """A process with its fitted hyper-parameters and everything it was observed through.

    Attributes:
        linear: Linearisation of the observations, which conditioning on any of them takes over.
        row_weights: C⁻¹·r of all observations under that linearisation, so that means need no
            factor of C; None if that was not found.
    """

    process: LogSumProcess
    theta: Floats
    inputs: LogInputs
    observations: LogObservations
    linear: LinearSums
    row_weights: Floats | None = None

    @classmethod
    def start(
        cls, process: LogSumProcess, theta: Floats, inputs: LogInputs, observations: LogObservations
    ) -> FittedLogSums:
        """Return the process with its observations linearised around the prior mean."""
        linear = linearise(observations.sums.counts, process.unpack(theta).mean(inputs))
        return cls(process, theta, inputs, observations, linear)

    @cached_property
    def prior(self) -> LogSumPrior:
        """The prior under the fitted hyper-parameters."""
        return self.process.unpack(self.theta)

    @property
    def noise_variance(self) -> Floats:
        """Variance of the noise of each observation."""
        return np.asarray(self.prior.noise_sd**2 + self.observations.log_variance)

    def narrow(self, rows: Ints) -> FittedLogSums:
        """Return some of the observations, over their own inputs alone, cell by cell."""
        used, sums = self.observations.sums.take(rows).narrow()
        order = np.argsort(self.inputs.cells[1][used], kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        sums, linear = sums.renumber(position), self.linear.take(rows)
        return replace(
            self,
            inputs=self.inputs.take(used[order]),
            observations=replace(self.observations.take(rows), sums=sums),
            linear=move(linear, sums),
            row_weights=None,
        )

    def covary_rows(self, other: FittedLogSums) -> Floats:
        """Return the covariance of the observations with others of the process, without noise."""
        cov = self.prior.covariance(self.inputs, other.inputs)
        half = self.linear.weights.matmul(cov)
        cov = other.linear.weights.matmul(np.ascontiguousarray(half.T)).T
        sums, other_sums = self.observations.sums, other.observations.sums
        return np.asarray(cov + self.prior.discrepancy_covariance(sums, other_sums))

    @cached_property
    def weighted_inputs(self) -> tuple[LogInputs, Floats]:
        """The inputs cell by cell, and Wᵀ·C⁻¹·r: covariances with them times these are means."""
        assert self.row_weights is not None
        order = np.argsort(self.inputs.cells[1], kind="stable")
        by_input = sum_by_input(self.linear, self.row_weights, self.inputs.size)
        return self.inputs.take(order), by_input[order]

    def predict_mean(self, inputs: LogInputs) -> Floats:
        """Return the posterior mean of log values given all observations, by row weights."""
        added = self.prior.multiply_covariance(inputs, *self.weighted_inputs)
        return np.asarray(self.prior.mean(inputs) + added)


@dataclass(frozen=True)
class LogSumPosterior:
    """A process conditioned on observations.

    Attributes:
        inputs: Inputs of the observations, cell by cell.
        inverse_factor: L⁻¹, N x N.
        row_weights: C⁻¹·r, N: the posterior mean is the prior covariance with the observations
            times these.
        full: The process with further observations, which means are given too; variances are those
            given the ones here. None if there are no further ones.
    """

    prior: LogSumPrior
    inputs: LogInputs
    sums: LogSums
    linear: LinearSums
    inverse_factor: Floats
    row_weights: Floats
    full: FittedLogSums | None = None

    def whiten(self, cov: Floats) -> Floats:
        """Return L⁻¹ times covariances of the observations, without multiplying its zeros."""
        lower = self.inverse_factor
        product = np.empty((len(lower), cov.shape[1]))
        for start in range(0, len(lower), _TILE):
            stop = min(len(lower), start + _TILE)
            product[start:stop] = matmul(lower[start:stop, :stop], cov[:stop])
        return product

    def predict_discrepancies(self, sums: LogSums) -> Floats:
        """Return the posterior mean of the discrepancy of each sum."""
        known, row_weights = self.sums, self.row_weights
        if self.full is not None and self.full.row_weights is not None:
            known, row_weights = self.full.observations.sums, self.full.row_weights
        return matvec(self.prior.discrepancy_covariance(sums, known), row_weights)


def condition_logsums(fitted: FittedLogSums, rows: Ints | None = None) -> LogSumPosterior:
    """Return the posterior given all observations, or some of them.

    Given some, means are those given all if the fit has row weights.
    """
    size = fitted.observations.size
    own = fitted.narrow(np.arange(size) if rows is None else rows)
    cov = own.covary_rows(own)
    cov[np.diag_indices_from(cov)] += own.noise_variance
    _, inverse_factor = cholesky_with_inverse(cov)
    residual = own.observations.log_values - own.linear.evaluate(own.prior.mean(own.inputs))
    row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
    has_full = own.observations.size < size and fitted.row_weights is not None
    known = fitted.prior, own.inputs, own.observations.sums, own.linear
    return LogSumPosterior(*known, inverse_factor, row_weights, fitted if has_full else None)


def linearise_observations(fitted: FittedLogSums) -> FittedLogSums:
    """Return the process with all observations linearised around their joint posterior."""
    own = fitted.narrow(np.arange(fitted.observations.size))
    prior, sums, counts = own.prior, own.observations.sums, own.observations.sums.counts
    mean, cov = prior.mean(own.inputs), prior.covariance(own.inputs, own.inputs)
    error_cov = prior.discrepancy_covariance(sums, sums)
    error_cov[np.diag_indices_from(error_cov)] += own.noise_variance

    def condition(linear: LinearSums) -> _LinearPosterior:
        residual = own.observations.log_values - linear.evaluate(mean)
        return _LinearPosterior(cov, error_cov, linear, residual)

    log_values, linear = mean, linearise(counts, mean)
    lengths = np.bincount(counts.row, minlength=counts.size)
    in_sums = np.unique(counts.column[lengths[counts.row] > 1])
    variances: tuple[Floats, Floats] = np.zeros(len(mean)), np.zeros(counts.size)
    # Observations of single inputs are exact.
    for step in range(_MAX_STEPS if len(in_sums) else 0):
        posterior = condition(linear)
        change = mean + posterior.row_weights @ posterior.half - log_values
        damping = 1.0 if step < _FULL_STEPS else _DAMPING
        log_values = log_values + np.clip(change, -_MAX_CHANGE, _MAX_CHANGE) * damping
        if step < _VARIANCE_STEPS:
            variances = posterior.find_variances(in_sums, np.flatnonzero(lengths > 1))
        before, linear = linear, linearise(counts, log_values, *variances)
        moved = np.abs(linear.evaluate(log_values) - before.evaluate(log_values))
        if moved.max() < _TOLERANCE and step >= _VARIANCE_STEPS:
            break
    row_weights = condition(linear).row_weights
    return replace(fitted, linear=move(linear, fitted.observations.sums), row_weights=row_weights)


def correct_row_weights(fitted: FittedLogSums, rows: Ints) -> FittedLogSums:
    """Return the process with row weights that solve C·α = r for some observations.

    The weights of the others stay: where those solved their equations before, and the observations
    given are new or have much to do with new ones, all equations nearly hold. New observations have
    weights of zero.
    """
    assert fitted.row_weights is not None
    own, row_weights = fitted.narrow(rows), fitted.row_weights.copy()
    sums = own.observations.sums
    residual = own.observations.log_values - own.linear.evaluate(fitted.predict_mean(own.inputs))
    cov = fitted.prior.discrepancy_covariance(sums, fitted.observations.sums)
    residual -= matvec(cov, row_weights)
    residual -= own.noise_variance * row_weights[rows]
    inverse_factor = condition_logsums(fitted, rows).inverse_factor
    row_weights[rows] += matvec(inverse_factor.T, matvec(inverse_factor, residual))
    return replace(fitted, row_weights=row_weights)


def sum_by_input(linear: LinearSums, row_weights: Floats, inputs: int) -> Floats:
    """Return Wᵀ·C⁻¹·r."""
    products = linear.weights.weight * row_weights[linear.weights.row]
    return np.asarray(np.bincount(linear.weights.column, products, inputs), float)


def move(linear: LinearSums, sums: LogSums) -> LinearSums:
    """Return a linearisation over inputs in another order: entries lie where the counts do."""
    return replace(linear, weights=replace(sums.counts, weight=linear.weights.weight))


class _LinearPosterior:
    """Posterior of the inputs under a linearisation.

    Attributes:
        half: Prior covariance of the observations with inputs, N x P.
        row_weights: C⁻¹ times the residuals of the prior mean.
    """

    def __init__(
        self, cov: Floats, error_cov: Floats, linear: LinearSums, residual: Floats
    ) -> None:
        from scipy.sparse import csr_array

        entries = linear.weights
        shape = entries.size, len(cov)
        weights = csr_array((entries.weight, (entries.row, entries.column)), shape)
        self.half = weights @ cov
        self._input_variances = np.diag(cov)
        self._own = np.asarray(weights @ np.ascontiguousarray(self.half.T))
        self._factor = factorise_covariance(self._own + error_cov)
        self.row_weights = self._solve(self._solve(residual), transposed=True)

    def find_variances(self, inputs: Ints, sums: Ints) -> tuple[Floats, Floats]:
        """Return the posterior variances of some inputs, and of some sums; zero for others."""
        log_variance, sum_variance = np.zeros(self.half.shape[1]), np.zeros(len(self._own))
        for found, cov, variance, some in (
            (log_variance, self.half, self._input_variances, inputs),
            (sum_variance, self._own, np.diag(self._own), sums),
        ):
            explained = self._solve(cov[:, some])
            squares = np.einsum("ij,ij->j", explained, explained)
            found[some] = np.maximum(variance[some] - squares, 0.0)
        return log_variance, sum_variance

    def _solve(self, matrix: Floats, transposed: bool = False) -> Floats:
        from scipy.linalg import solve_triangular

        found = solve_triangular(
            self._factor, matrix, trans=int(transposed), lower=True, check_finite=False
        )
        return np.asarray(found)


@dataclass(frozen=True)
class LogPrediction:
    """Posterior of the logarithms of n positive quantities.

    Attributes:
        log_mean: Means of the logarithms, n; their exponentials are medians.
        log_variance: Variances of the logarithms, n.
        log_covariance: Their joint covariance, n x n; None unless requested.
    """

    log_mean: Floats
    log_variance: Floats
    log_covariance: Floats | None = None


def predict_log_means(posterior: LogSumPosterior, inputs: LogInputs) -> Floats:
    """Return the posterior mean of each input."""
    if posterior.full is not None:
        return posterior.full.predict_mean(inputs)
    log_mean = np.empty(inputs.size)
    for index, some, _ in _iterate_inputs(posterior, inputs):
        log_mean[index] = some
    return log_mean


def explain_inputs(
    posterior: LogSumPosterior, inputs: LogInputs, known_mean: Floats | None = None
) -> tuple[LogPrediction, Floats]:
    """Return the posterior of inputs, and L⁻¹·k of each: what the observations explain, P x N."""
    log_mean = np.empty(inputs.size)
    explained = np.empty((inputs.size, posterior.sums.size))
    for index, mean, cov in _iterate_inputs(posterior, inputs, known_mean):
        log_mean[index] = mean
        explained[index] = posterior.whiten(cov).T
    log_variance = _subtract_squares(posterior.prior.variance(inputs), explained)
    return LogPrediction(log_mean, log_variance), explained


def predict_log_totals(
    posterior: LogSumPosterior,
    inputs: LogInputs,
    sums: LogSums,
    joint: bool = False,
    log_mean: Floats | None = None,
) -> LogPrediction:
    """Return the posterior of sums over inputs.

    No sum may be empty. Without ``joint``, memory stays bounded. ``log_mean`` are the posterior
    means of the inputs, if they are known already.
    """
    if joint:
        return _predict_chunk(posterior, inputs, sums, log_mean, joint)
    means, variances = [np.zeros(0)], [np.zeros(0)]
    lengths = np.bincount(sums.counts.row, minlength=sums.size)
    ends, pair_ends = np.cumsum(lengths), np.cumsum(lengths**2)
    start = 0
    while start < sums.size:
        held = (ends - ends[start] <= _MAX_ENTRIES) & (pair_ends - pair_ends[start] <= _MAX_PAIRS)
        stop = max(start + 1, int(np.count_nonzero(held)))
        used, chunk = sums.take(np.arange(start, stop)).narrow()
        start = stop
        known = None if log_mean is None else log_mean[used]
        part = _predict_chunk(posterior, inputs.take(used), chunk, known, joint)
        means.append(part.log_mean)
        variances.append(part.log_variance)
    return LogPrediction(np.concatenate(means), np.concatenate(variances))


def posterior_elasticities(
    posterior: LogSumPosterior, lower: LogInputs, upper: LogInputs, log_step: float
) -> Floats:
    """Return the derivative of each posterior mean by the logarithm of something it depends on.

    Achieved rates are coordinates of energies, so that durations act through the kernels too: on
    888 energies of an H200 the derivative is 0.87, against 0.68 of the prior mean alone, and the
    rms z of energies of unseen durations 1.13 against 1.33.

    ``lower`` and ``upper`` are the inputs with that quantity half a step lower and higher, on the
    logarithmic scale.
    """
    difference = predict_log_means(posterior, upper) - predict_log_means(posterior, lower)
    return np.asarray(difference / log_step)


def linearise_prediction(
    posterior: LogSumPosterior, inputs: LogInputs, counts: WeightedSums
) -> LinearSums:
    """Return the linearisation of sums around their posterior."""
    prediction, explained = explain_inputs(posterior, inputs)
    weights = linearise(counts, prediction.log_mean).weights
    prior = posterior.prior.sum_variance(inputs, weights)
    sum_variance = _subtract_squares(prior, weights.matmul(explained))
    return linearise(counts, prediction.log_mean, prediction.log_variance, sum_variance)


def expected_variance_reduction(
    posterior: LogSumPosterior, inputs: LogInputs, targets: LogSums, candidates: LogSums
) -> Floats:
    """Return what each candidate takes off each target's log variance, targets x candidates."""
    prior = posterior.prior
    prediction, explained = explain_inputs(posterior, inputs)
    one = linearise(targets.counts, prediction.log_mean).weights
    two = linearise(candidates.counts, prediction.log_mean).weights
    by_target = one.matmul(explained)
    by_target += _explain_discrepancies(posterior, targets)
    by_candidate = two.matmul(explained)
    by_candidate += _explain_discrepancies(posterior, candidates)
    half = two.matmul(prior.covariance(inputs, inputs))
    cov = one.matmul(np.ascontiguousarray(half.T))
    cov += prior.discrepancy_covariance(targets, candidates)
    cov -= matmul(by_target, by_candidate.T)
    variance = two.sum_entries(two.weight * half[two.row, two.column])
    variance += prior.discrepancy_variance(candidates)
    variance = _subtract_squares(variance, by_candidate)
    return np.asarray(cov**2 / (variance + prior.noise_sd**2))


def _predict_chunk(
    posterior: LogSumPosterior,
    inputs: LogInputs,
    sums: LogSums,
    known_mean: Floats | None,
    joint: bool,
) -> LogPrediction:
    prior = posterior.prior
    prediction, explained = explain_inputs(posterior, inputs, known_mean)
    weights = linearise(sums.counts, prediction.log_mean).weights
    explained = weights.matmul(explained)
    cov = np.zeros((0, 0))
    if joint:
        half = weights.matmul(prior.covariance(inputs, inputs))
        cov = weights.matmul(np.ascontiguousarray(half.T))
        own_prior = np.diag(cov)
    else:
        own_prior = prior.sum_variance(inputs, weights)
    sum_variance = _subtract_squares(own_prior, explained)
    linear = linearise(sums.counts, prediction.log_mean, prediction.log_variance, sum_variance)
    log_mean = linear.evaluate(prediction.log_mean)
    if len(sums.structures.row):
        log_mean += posterior.predict_discrepancies(sums)
        own_prior = own_prior + prior.discrepancy_variance(sums)
        explained += _explain_discrepancies(posterior, sums)
    log_variance = _subtract_squares(own_prior, explained)
    if not joint:
        return LogPrediction(log_mean, log_variance)
    cov = cov + prior.discrepancy_covariance(sums, sums)
    return LogPrediction(log_mean, log_variance, cov - matmul(explained, explained.T))


def _explain_discrepancies(posterior: LogSumPosterior, sums: LogSums) -> Floats:
    """Return L⁻¹ times the covariance of observations with the discrepancies of sums, n x N."""
    cov = posterior.prior.discrepancy_covariance(posterior.sums, sums)
    return posterior.whiten(cov).T if cov.any() else cov.T


def _subtract_squares(prior_variance: Floats, explained: Floats) -> Floats:
    """Return the posterior variance of each row of L⁻¹·k."""
    squares = np.einsum("ij,ij->i", explained, explained)
    return np.asarray(np.maximum(prior_variance - squares, 0.0))


def _iterate_inputs(
    posterior: LogSumPosterior, inputs: LogInputs, known_mean: Floats | None = None
) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Yield some inputs at a time: index, posterior mean, and covariance with observations."""
    order = np.argsort(inputs.cells[1], kind="stable")
    for start in range(0, inputs.size, _INPUT_CHUNK):
        index = order[start : start + _INPUT_CHUNK]
        some = inputs.take(index)
        cov = posterior.prior.covariance(posterior.inputs, some)
        cov = posterior.linear.weights.matmul(cov)
        if known_mean is not None:
            log_mean = known_mean[index]
        elif posterior.full is not None:
            log_mean = posterior.full.predict_mean(some)
        else:
            log_mean = posterior.prior.mean(some) + matvec(cov.T, posterior.row_weights)
        yield index, log_mean, cov
