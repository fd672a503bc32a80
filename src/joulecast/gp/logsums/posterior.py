"""Condition a process over log values on observed sums.

C = W·K·Wᵀ + U + diag(σ_n² + v) = L·Lᵀ   covariance of the linearised observations, U discrepancies
r = y - E f - W·(μ - z̄)                  their residuals
z | y  ~  N(μ + k·C⁻¹·r, K - |L⁻¹·kᵀ|²)   k the prior covariance of z with the observations

z̄ starts at the prior mean and becomes the posterior mean in a few Gauss-Newton steps, the later
ones damped. What uncertainty adds to the expectation of a sum is taken from the first of them, so
that observed sums and predicted ones mean the same. Where every observation has a single input, the
first step is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import Floats, Ints, cholesky_with_inverse, matmul, matvec
from joulecast.gp.logsums.linearisation import LinearSums, linearise
from joulecast.gp.logsums.log_inputs import (
    LogInputs,
    LogObservations,
    LogSums,
    sort_by_cell,
)
from joulecast.gp.logsums.prior_covariance import discrepancy_covariance, log_prior_covariance
from joulecast.gp.logsums.prior_mean import prior_log_mean
from joulecast.gp.logsums.process import LogSumParameters, LogSumProcess
from joulecast.gp.weighted_sums import WeightedSums

# Steps in all; those that are not damped; and those after which variances are kept.
_MAX_STEPS, _FULL_STEPS, _VARIANCE_STEPS = 12, 3, 3
_DAMPING = 0.6
# A step changes no log value by more than this: far from z̄ the linearisation says little.
_MAX_CHANGE = 1.5
# Steps end when no linearised sum changes by more than this.
_TOLERANCE = 0.003
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
    """

    process: LogSumProcess
    theta: Floats
    inputs: LogInputs
    observations: LogObservations
    linear: LinearSums | None = None

    @cached_property
    def hyper(self) -> LogSumParameters:
        """The fitted hyper-parameters by name."""
        return self.process.unpack(self.theta)


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
        log_values: Posterior mean of the inputs.
    """

    process: LogSumProcess
    hyper: LogSumParameters
    inputs: LogInputs
    sums: LogSums
    linear: LinearSums
    inverse_factor: Floats
    row_weights: Floats
    log_values: Floats

    def covariance_with_observations(self, inputs: LogInputs) -> Floats:
        """Return the prior covariance of the observations with inputs, N x P."""
        cov = log_prior_covariance(self.process, self.hyper, self.inputs, inputs)
        return self.linear.weights.pattern.matmul(self.linear.weights.weight, cov)


def condition_logsums(fitted: FittedLogSums, rows: Ints | None = None) -> LogSumPosterior:
    """Return the posterior given all observations, or some of them."""
    observations, linear = fitted.observations, fitted.linear
    if rows is not None:
        observations = observations.take(rows)
        linear = None if linear is None else linear.take(rows)
    index, observations = sort_by_cell(fitted.inputs, observations)
    inputs = fitted.inputs.take(index)
    cov = _ObservationCovariance(fitted, inputs, observations)
    if linear is not None:
        # The weights change their entries only: they lie where the counts do.
        return cov.condition(replace(linear, weights=_move(linear.weights, observations)))
    return _find_posterior(cov, prior_log_mean(inputs, fitted.hyper.coefficients))


class _ObservationCovariance:
    """Prior covariance of inputs and what observations add to it, for any linearisation."""

    def __init__(
        self, fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations
    ) -> None:
        self.process, self.hyper = fitted.process, fitted.hyper
        self.inputs, self.observations = inputs, observations
        self._cov = log_prior_covariance(self.process, self.hyper, inputs, inputs)
        sums = observations.sums
        self._extra = discrepancy_covariance(self.hyper, sums, sums)
        noise = self.hyper.noise_sd**2 + observations.log_variance
        self._extra[np.diag_indices_from(self._extra)] += noise
        self._mean = prior_log_mean(inputs, self.hyper.coefficients)

    def condition(self, linear: LinearSums) -> LogSumPosterior:
        """Return the posterior under a linearisation."""
        half = self.row_covariance(linear)
        pattern, entries = linear.weights.pattern, linear.weights.weight
        own_cov = pattern.matmul(entries, np.ascontiguousarray(half.T))
        _, inverse_factor = cholesky_with_inverse(own_cov + self._extra)
        residual = self.observations.log_values - linear.evaluate(self._mean)
        row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
        log_values = self._mean + matvec(half.T, row_weights)
        known = self.process, self.hyper, self.inputs, self.observations.sums
        return LogSumPosterior(*known, linear, inverse_factor, row_weights, log_values)

    def row_covariance(self, linear: LinearSums) -> Floats:
        """Return the prior covariance of the linearised observations with their inputs, N x P."""
        return linear.weights.pattern.matmul(linear.weights.weight, self._cov)


def _find_posterior(cov: _ObservationCovariance, start: Floats) -> LogSumPosterior:
    """Return the posterior linearised around itself."""
    counts, log_values = cov.observations.sums.counts, start
    in_sums, several = _find_summed(counts)
    posterior = cov.condition(linearise(counts, log_values))
    if not len(in_sums):
        return posterior
    log_variance, sum_variance = np.zeros(cov.inputs.size), np.zeros(counts.size)
    for step in range(_MAX_STEPS):
        change = np.clip(posterior.log_values - log_values, -_MAX_CHANGE, _MAX_CHANGE)
        log_values = log_values + change * (1.0 if step < _FULL_STEPS else _DAMPING)
        if step < _VARIANCE_STEPS:
            log_variance, sum_variance = _find_variances(cov, posterior, in_sums, several)
        linear = linearise(counts, log_values, log_variance, sum_variance)
        moved = np.abs(linear.evaluate(log_values) - posterior.linear.evaluate(log_values))
        posterior = cov.condition(linear)
        if moved.max() < _TOLERANCE and step >= _VARIANCE_STEPS:
            break
    return posterior


def _find_variances(
    cov: _ObservationCovariance, posterior: LogSumPosterior, in_sums: Ints, several: Ints
) -> tuple[Floats, Floats]:
    """Return the posterior variances of inputs that occur in sums, and of these sums."""
    log_variance = np.zeros(cov.inputs.size)
    sum_variance = np.zeros(posterior.sums.size)
    half, weights = cov.row_covariance(posterior.linear), posterior.linear.weights
    prior_variance = np.full(len(in_sums), cov.hyper.prior_variance)
    factor = posterior.inverse_factor
    log_variance[in_sums] = _left_variance(factor, half[:, in_sums], prior_variance)
    own_cov = weights.pattern.matmul(weights.weight, np.ascontiguousarray(half.T))
    sum_variance[several] = _left_variance(factor, own_cov[:, several], own_cov[several, several])
    return log_variance, sum_variance


def _move(weights: WeightedSums, observations: LogObservations) -> WeightedSums:
    """Return the weights of observations whose inputs have other positions."""
    counts = observations.sums.counts
    return WeightedSums(counts.size, counts.row, counts.column, weights.weight)


def _left_variance(inverse_factor: Floats, cov: Floats, prior_variance: Floats) -> Floats:
    """Return the posterior variance of what has this covariance with the observations."""
    explained = multiply_triangular(inverse_factor, cov)
    squares = np.einsum("ij,ij->j", explained, explained)
    return np.asarray(np.maximum(prior_variance - squares, 0.0))


def _find_summed(counts: WeightedSums) -> tuple[Ints, Ints]:
    """Return the inputs that occur in a sum of several, and these sums."""
    lengths = np.bincount(counts.row, minlength=counts.size)
    return np.unique(counts.column[lengths[counts.row] > 1]), np.flatnonzero(lengths > 1)


def multiply_triangular(lower: Floats, matrix: Floats) -> Floats:
    """Return the product of a lower triangular matrix and another one, without its zeros."""
    product = np.empty((len(lower), matrix.shape[1]))
    for start in range(0, len(lower), _TILE):
        stop = min(len(lower), start + _TILE)
        product[start:stop] = matmul(lower[start:stop, :stop], matrix[:stop])
    return product
