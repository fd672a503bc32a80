"""Condition a process over log values on observed sums.

C = W·K·Wᵀ + U + diag(σ_n² + v) = L·Lᵀ   covariance of the linearised observations, U discrepancies
r = y - E f - W·(μ - z̄)                  their residuals
z | y  ~  N(μ + k·C⁻¹·r, K - |L⁻¹·kᵀ|²)   k the prior covariance of z with the observations

z̄ starts at the prior mean, or at an earlier posterior mean, and becomes the posterior mean in a few
steps. The first is a Gauss-Newton step; later ones linearise around the posterior, its variances
included (iterated posterior linearisation), so that observed sums and predicted ones mean the same.
Where every observation has a single input, the first step is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
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

_MAX_STEPS = 4
# A step changes no log value by more than this: far from z̄ the linearisation says little.
_MAX_CHANGE = 1.5
# Steps end when no log value of a sum changes by more than this: the linearisation is then off by
# at most half its square.
_TOLERANCE = 0.02
# Rows of a triangular product made at once.
_TILE = 64


@dataclass(frozen=True)
class FittedLogSums:
    """A process with its fitted hyper-parameters and everything it was observed through.

    Attributes:
        theta: The fitted θ.
        inputs: Inputs of all observations.
        observations: Observed sums of them.
        log_values: Log values of the inputs to linearise around, such as their posterior mean;
            None for the prior mean.
    """

    process: LogSumProcess
    theta: Floats
    inputs: LogInputs
    observations: LogObservations
    log_values: Floats | None = None

    @cached_property
    def hyper(self) -> LogSumParameters:
        """The fitted hyper-parameters by name."""
        return self.process.unpack(self.theta)

    @cached_property
    def start(self) -> Floats:
        """Log values of the inputs to linearise around."""
        if self.log_values is not None:
            return self.log_values
        return prior_log_mean(self.inputs, self.hyper.coefficients)


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
    observations = fitted.observations if rows is None else fitted.observations.take(rows)
    index, observations = sort_by_cell(fitted.inputs, observations)
    inputs, start = fitted.inputs.take(index), fitted.start[index]
    return _find_posterior(fitted, inputs, observations, start)


def _find_posterior(
    fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations, start: Floats
) -> LogSumPosterior:
    process, hyper, sums = fitted.process, fitted.hyper, observations.sums
    cov = log_prior_covariance(process, hyper, inputs, inputs)
    extra = discrepancy_covariance(hyper, sums, sums)
    extra[np.diag_indices_from(extra)] += hyper.noise_sd**2 + observations.log_variance
    mean, log_values = prior_log_mean(inputs, hyper.coefficients), start
    in_sums, several = _find_summed(sums.counts)
    linear = linearise(sums.counts, log_values)
    for step in range(_MAX_STEPS):
        pattern, entries = linear.weights.pattern, linear.weights.weight
        half = pattern.matmul(entries, cov)
        own_cov = pattern.matmul(entries, np.ascontiguousarray(half.T))
        _, inverse_factor = cholesky_with_inverse(own_cov + extra)
        residual = observations.log_values - linear.evaluate(mean)
        row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
        change = mean + matvec(half.T, row_weights) - log_values
        log_values = log_values + np.clip(change, -_MAX_CHANGE, _MAX_CHANGE)
        is_close = not len(in_sums) or np.abs(change[in_sums]).max() < _TOLERANCE
        if (is_close and (step or not len(in_sums))) or step == _MAX_STEPS - 1:
            break
        log_variance, sum_variance = np.zeros(inputs.size), np.zeros(sums.size)
        log_variance[in_sums] = _left_variance(
            inverse_factor, half[:, in_sums], np.full(len(in_sums), hyper.prior_variance)
        )
        sum_variance[several] = _left_variance(
            inverse_factor, own_cov[:, several], own_cov[several, several]
        )
        linear = linearise(sums.counts, log_values, log_variance, sum_variance)
    return LogSumPosterior(
        process, hyper, inputs, sums, linear, inverse_factor, row_weights, log_values
    )


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
