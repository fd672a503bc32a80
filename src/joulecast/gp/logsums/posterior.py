"""Condition a process over log values on observed sums.

C = W·K·Wᵀ + U + diag(σ_n² + v) = L·Lᵀ   covariance of the linearised observations, U discrepancies
r = y - E f - W·(μ - z̄)                  their residuals
z | y  ~  N(μ + k·C⁻¹·r, K - |L⁻¹·kᵀ|²)   k the prior covariance of z with the observations

z̄ is the posterior mean that ``gauss_newton`` finds once, when a fit is made; conditioning under a
linearisation that was kept needs numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import Floats, Ints, cholesky_with_inverse, matmul, matvec
from joulecast.gp.logsums.gauss_newton import ObservedSums, find_linearisation, find_row_weights
from joulecast.gp.logsums.linearisation import LinearSums
from joulecast.gp.logsums.log_inputs import (
    LogInputs,
    LogObservations,
    LogSums,
    sort_by_cell,
)
from joulecast.gp.logsums.prior_covariance import (
    discrepancy_covariance,
    log_prior_covariance,
    multiply_prior_covariance,
)
from joulecast.gp.logsums.prior_mean import prior_log_mean
from joulecast.gp.logsums.process import LogSumParameters, LogSumProcess
from joulecast.gp.logsums.row_covariances import RowCovariances

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
        return self.linear.weights.pattern.matmul(self.linear.weights.weight, cov)


def condition_logsums(fitted: FittedLogSums, rows: Ints | None = None) -> LogSumPosterior:
    """Return the posterior given all observations, or some of them."""
    observations, linear = fitted.observations, fitted.linear
    if rows is not None and linear is not None:
        return _condition_on_kept(fitted, rows)
    if rows is not None:
        observations = observations.take(rows)
    prior = _ObservationPrior(fitted, observations)
    if linear is None:
        return prior.condition(find_linearisation(prior.observed))
    return prior.condition(prior.move(linear))


def linearise_observations(fitted: FittedLogSums) -> FittedLogSums:
    """Return the process with all observations linearised around their posterior."""
    prior = _ObservationPrior(fitted, fitted.observations)
    linear = find_linearisation(prior.observed)
    row_weights = find_row_weights(prior.observed, linear)
    weights = replace(fitted.observations.sums.counts, weight=linear.weights.weight)
    return replace(fitted, linear=replace(linear, weights=weights), row_weights=row_weights)


def correct_row_weights(fitted: FittedLogSums, rows: Ints) -> FittedLogSums:
    """Return the process with row weights that solve C·α = r for some observations.

    The weights of the others stay: where those solved their equations before, and the observations
    given are new or have much to do with new ones, all equations nearly hold.

    Args:
        fitted: The process with row weights; zeros for new observations.
        rows: The observations whose equations are solved.
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


def _condition_on_kept(fitted: FittedLogSums, rows: Ints) -> LogSumPosterior:
    """Return the posterior given some linearised observations, whose covariances may be kept."""
    assert fitted.linear is not None
    index, observations = sort_by_cell(fitted.inputs, fitted.observations.take(rows))
    inputs, linear = fitted.inputs.take(index), fitted.linear.take(rows)
    # The weights change their entries only: they lie where the counts do.
    weights = replace(observations.sums.counts, weight=linear.weights.weight)
    linear = replace(linear, weights=weights)
    cov = fitted.row_covariances.take(rows, rows)
    cov[np.diag_indices_from(cov)] += fitted.hyper.noise_sd**2 + observations.log_variance
    _, inverse_factor = cholesky_with_inverse(cov)
    prior_mean = prior_log_mean(inputs, fitted.hyper.coefficients)
    residual = observations.log_values - linear.evaluate(prior_mean)
    row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
    known = fitted.process, fitted.hyper, inputs, observations.sums
    return LogSumPosterior(*known, linear, inverse_factor, row_weights)


class _ObservationPrior:
    """Prior of observations and their inputs, for any linearisation."""

    def __init__(self, fitted: FittedLogSums, observations: LogObservations) -> None:
        self._process, self._hyper = fitted.process, fitted.hyper
        index, observations = sort_by_cell(fitted.inputs, observations)
        self._inputs, self._sums = fitted.inputs.take(index), observations.sums
        errors = discrepancy_covariance(self._hyper, self._sums, self._sums)
        noise = self._hyper.noise_sd**2 + observations.log_variance
        errors[np.diag_indices_from(errors)] += noise
        self.observed = ObservedSums(
            self._sums.counts,
            observations.log_values,
            prior_log_mean(self._inputs, self._hyper.coefficients),
            log_prior_covariance(self._process, self._hyper, self._inputs, self._inputs),
            errors,
        )

    def condition(self, linear: LinearSums) -> LogSumPosterior:
        """Return the posterior under a linearisation."""
        observed, weights = self.observed, linear.weights
        half = weights.pattern.matmul(weights.weight, observed.covariance)
        own_cov = weights.pattern.matmul(weights.weight, np.ascontiguousarray(half.T))
        _, inverse_factor = cholesky_with_inverse(own_cov + observed.error_covariance)
        residual = observed.log_values - linear.evaluate(observed.mean)
        row_weights = matvec(inverse_factor.T, matvec(inverse_factor, residual))
        known = self._process, self._hyper, self._inputs, self._sums
        return LogSumPosterior(*known, linear, inverse_factor, row_weights)

    def move(self, linear: LinearSums) -> LinearSums:
        """Return a linearisation of the observations over their inputs here, cell by cell."""
        # The weights change their entries only: they lie where the counts do.
        return replace(linear, weights=replace(self._sums.counts, weight=linear.weights.weight))


def multiply_triangular(lower: Floats, matrix: Floats) -> Floats:
    """Return the product of a lower triangular matrix and another one, without its zeros."""
    product = np.empty((len(lower), matrix.shape[1]))
    for start in range(0, len(lower), _TILE):
        stop = min(len(lower), start + _TILE)
        product[start:stop] = matmul(lower[start:stop, :stop], matrix[:stop])
    return product
