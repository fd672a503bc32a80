"""Condition a process over log values on observed sums.

C = W·K·Wᵀ + U + diag(σ_n² + v) = L·Lᵀ   covariance of the linearised observations, U discrepancies
r = y - f(z̄) - W·(μ - z̄)                 their residuals
z | y  ~  N(μ + k·C⁻¹·r, K - |L⁻¹·kᵀ|²)   k the prior covariance of z with the observations

z̄ starts at the prior mean, or at an earlier posterior mean, and becomes the posterior mean in a few
Gauss-Newton steps. Where every observation has a single input, the first step is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import Floats, Ints, cholesky_with_inverse, matvec
from joulecast.gp.logsums.linearisation import linearise
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
        weights: Their linearisation W.
        inverse_factor: L⁻¹, N x N.
        row_weights: C⁻¹·r, N: the posterior mean is the prior covariance with the observations
            times these.
        log_values: Posterior mean of the inputs.
    """

    process: LogSumProcess
    hyper: LogSumParameters
    inputs: LogInputs
    sums: LogSums
    weights: WeightedSums
    inverse_factor: Floats
    row_weights: Floats
    log_values: Floats

    def covariance_with_observations(self, inputs: LogInputs) -> Floats:
        """Return the prior covariance of the observations with inputs, N x P."""
        cov = log_prior_covariance(self.process, self.hyper, self.inputs, inputs)
        return self.weights.pattern.matmul(self.weights.weight, cov)


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
    in_sums = _find_summed(sums.counts)
    for _ in range(_MAX_STEPS):
        linear = linearise(sums.counts, log_values)
        pattern, entries = linear.weights.pattern, linear.weights.weight
        half = pattern.matmul(entries, cov)
        row_cov = pattern.matmul(entries, np.ascontiguousarray(half.T)) + extra
        _, inverse_factor = cholesky_with_inverse(row_cov)
        residual = observations.log_values - linear.evaluate(mean)
        row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
        found = mean + matvec(half.T, row_weights)
        change = np.clip(found - log_values, -_MAX_CHANGE, _MAX_CHANGE)
        log_values = log_values + change
        if not len(in_sums) or np.abs(change[in_sums]).max() < _TOLERANCE:
            break
    return LogSumPosterior(
        process, hyper, inputs, sums, linear.weights, inverse_factor, row_weights, log_values
    )


def _find_summed(counts: WeightedSums) -> Ints:
    """Return the inputs that occur in a sum of several."""
    lengths = np.bincount(counts.row, minlength=counts.size)
    return np.unique(counts.column[lengths[counts.row] > 1])
