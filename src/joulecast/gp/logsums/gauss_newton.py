"""Find the log values around which observed sums are linearised: their posterior mean.

C = W·K·Wᵀ + E = L·Lᵀ                    covariance of the linearised observations, E their errors
z̄ ← μ + K·Wᵀ·C⁻¹·(y - E f - W·(μ - z̄))   a Gauss-Newton step

z̄ starts at the prior mean μ; later steps are damped. What uncertainty adds to the expectation of a
sum is taken from the first of them, so that observed sums and predicted ones mean the same. Where
every observation has a single input, nothing needs to be found. Products with K are sparse and
factors are LAPACK's, in as many threads as the caller allows: 2,859 observations of 7,118 inputs
take half a minute on one core. Needs scipy, as fits do; predictions take over what a fit has found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gp.linalg import Floats, Ints, factorise_covariance
from joulecast.gp.logsums.linearisation import LinearSums, linearise
from joulecast.gp.weighted_sums import WeightedSums

# Steps in all; those that are not damped; and those after which variances are kept.
_MAX_STEPS, _FULL_STEPS, _VARIANCE_STEPS = 12, 3, 3
_DAMPING = 0.6
# A step changes no log value by more than this: far from z̄ the linearisation says little.
_MAX_CHANGE = 1.5
# Steps end when no linearised sum changes by more than this.
_TOLERANCE = 0.003


@dataclass(frozen=True)
class ObservedSums:
    """Observed sums with the prior of their inputs and errors.

    Attributes:
        counts: The sums, the matrix A.
        log_values: Logarithm of each observed value, N.
        mean: Prior mean of the inputs, P.
        covariance: Their prior covariance, P x P.
        error_covariance: Covariance of discrepancies and noise, N x N.
    """

    counts: WeightedSums
    log_values: Floats
    mean: Floats
    covariance: Floats
    error_covariance: Floats


def find_row_weights(observed: ObservedSums, linear: LinearSums) -> Floats:
    """Return C⁻¹·r under a linearisation, r the residuals of its prior mean, N."""
    return _LinearPosterior(observed, linear).find_row_weights()


def find_linearisation(observed: ObservedSums) -> LinearSums:
    """Return the sums linearised around the posterior mean of their inputs."""
    counts, log_values = observed.counts, observed.mean
    linear = linearise(counts, log_values)
    in_sums, several = _find_summed(counts)
    if not len(in_sums):
        return linear
    variances: tuple[Floats, Floats] = np.zeros(len(log_values)), np.zeros(counts.size)
    for step in range(_MAX_STEPS):
        posterior = _LinearPosterior(observed, linear)
        change = np.clip(posterior.find_mean() - log_values, -_MAX_CHANGE, _MAX_CHANGE)
        log_values = log_values + change * (1.0 if step < _FULL_STEPS else _DAMPING)
        if step < _VARIANCE_STEPS:
            variances = posterior.find_variances(in_sums, several)
        before, linear = linear, linearise(counts, log_values, *variances)
        moved = np.abs(linear.evaluate(log_values) - before.evaluate(log_values))
        if moved.max() < _TOLERANCE and step >= _VARIANCE_STEPS:
            break
    return linear


class _LinearPosterior:
    """Posterior of the inputs under a linearisation."""

    def __init__(self, observed: ObservedSums, linear: LinearSums) -> None:
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


def _find_summed(counts: WeightedSums) -> tuple[Ints, Ints]:
    """Return the inputs that occur in a sum of several, and these sums."""
    lengths = np.bincount(counts.row, minlength=counts.size)
    return np.unique(counts.column[lengths[counts.row] > 1]), np.flatnonzero(lengths > 1)
