"""Predict inputs, combinations of log values, and totals.

    m, v      posterior mean and variance of each log value
    M         = Σ_p A_p·exp(m_p + v_p/2)                    mean of a sum
    w̃_p       = A_p·exp(m_p + v_p/2) / M                    its linearisation
    s²        = w̃·Σ·w̃ᵀ                                      its log variance
    ln total  ~ N(ln M - s²/2 + E u, s² + discrepancy u)    log-normal with the mean of the sum

The mean of a sum of log-normals is exact, its variance that of the linearisation. Sums of many
uncertain inputs are above the sum of their medians; the logarithm of the sum of medians would be
too low by half the variance that averages out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulecast.gp.linalg import Floats, Ints, matmul, matvec
from joulecast.gp.logsums.linearisation import linearise
from joulecast.gp.logsums.log_inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import LogSumPosterior
from joulecast.gp.logsums.prior_covariance import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
)
from joulecast.gp.logsums.prior_mean import prior_log_mean
from joulecast.gp.weighted_sums import WeightedSums

# Inputs whose covariances are held at once, and those of the sums of one chunk.
_INPUT_CHUNK, _SUM_CHUNK = 2048, 1024


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

    @property
    def mean(self) -> Floats:
        """Means of the quantities, n."""
        return np.asarray(np.exp(self.log_mean + 0.5 * self.log_variance))

    @property
    def variance(self) -> Floats:
        """Variances of the quantities, n."""
        return np.asarray(self.mean**2 * np.expm1(self.log_variance))

    @property
    def covariance(self) -> Floats:
        """Joint covariance of the quantities, n x n.

        Raises:
            ValueError: The prediction was made without joint covariance.
        """
        if self.log_covariance is None:
            raise ValueError("predict with joint=True to get a covariance")
        return np.asarray(np.outer(self.mean, self.mean) * np.expm1(self.log_covariance))


def predict_inputs(
    posterior: LogSumPosterior, inputs: LogInputs, with_variance: bool = True
) -> LogPrediction:
    """Return the posterior of each input; without variances three times as fast.

    No mean exceeds the input's cap.
    """
    log_mean, log_variance = np.empty(inputs.size), np.zeros(inputs.size)
    order = np.argsort(inputs.cells[1], kind="stable")
    for start in range(0, inputs.size, _INPUT_CHUNK):
        index = order[start : start + _INPUT_CHUNK]
        some = inputs.take(index)
        cov = posterior.covariance_with_observations(some)
        log_mean[index] = prior_log_mean(some, posterior.hyper.coefficients) + matvec(
            cov.T, posterior.row_weights
        )
        if with_variance:
            explained = matmul(posterior.inverse_factor, cov)
            squares = np.einsum("ij,ij->j", explained, explained)
            log_variance[index] = np.maximum(posterior.hyper.prior_variance - squares, 0.0)
    if inputs.log_caps is not None:
        log_mean = np.minimum(log_mean, inputs.log_caps)
    return LogPrediction(log_mean, log_variance)


def predict_log_totals(
    posterior: LogSumPosterior, inputs: LogInputs, sums: LogSums, joint: bool = False
) -> LogPrediction:
    """Return the posterior of sums over inputs.

    Args:
        posterior: The conditioned process.
        inputs: Distinct inputs of the sums.
        sums: The sums, none of them empty.
        joint: Whether to return their joint covariance; without it, memory stays bounded.
    """
    if joint:
        return _predict_chunk(posterior, inputs, sums, joint=True)
    parts = [
        _predict_chunk(posterior, inputs.take(used), chunk, joint=False)
        for used, chunk in _iterate_chunks(sums)
    ]
    return LogPrediction(
        np.concatenate([np.zeros(0), *(part.log_mean for part in parts)]),
        np.concatenate([np.zeros(0), *(part.log_variance for part in parts)]),
    )


def predict_total_means(
    posterior: LogSumPosterior, inputs: LogInputs, counts: WeightedSums
) -> tuple[Floats, LogPrediction]:
    """Return the means of sums over inputs, without discrepancies, and the posterior of inputs."""
    prediction = predict_inputs(posterior, inputs)
    return counts.total(prediction.mean), prediction


def predict_combinations(
    posterior: LogSumPosterior, inputs: LogInputs, weights: WeightedSums
) -> tuple[Floats, Floats]:
    """Return mean and joint covariance of weighted sums of log values.

    With the derivatives of log energies by log durations as weights, the covariance is what
    uncertain durations add to that of the energies.
    """
    prediction = predict_inputs(posterior, inputs, with_variance=False)
    prior = _prior_products(posterior, inputs, weights)
    explained = explain(posterior, inputs, weights)
    return weights.total(prediction.log_mean), prior - matmul(explained.T, explained)


def explain(posterior: LogSumPosterior, inputs: LogInputs, weights: WeightedSums) -> Floats:
    """Return L⁻¹ times the covariance of observations with weighted sums of log values, N x n."""
    cov = posterior.covariance_with_observations(inputs)
    combined = weights.pattern.matmul(weights.weight, np.ascontiguousarray(cov.T))
    return matmul(posterior.inverse_factor, np.ascontiguousarray(combined.T))


def explain_discrepancies(posterior: LogSumPosterior, sums: LogSums) -> Floats:
    """Return L⁻¹ times the covariance of observations with the discrepancies of sums, N x n."""
    cov = discrepancy_covariance(posterior.hyper, posterior.sums, sums)
    return matmul(posterior.inverse_factor, cov) if cov.any() else cov


def linearise_totals(counts: WeightedSums, prediction: LogPrediction) -> WeightedSums:
    """Return the weights w̃ of sums over predicted inputs."""
    return linearise(counts, prediction.log_mean + 0.5 * prediction.log_variance).weights


def _predict_chunk(
    posterior: LogSumPosterior, inputs: LogInputs, sums: LogSums, joint: bool
) -> LogPrediction:
    prediction = predict_inputs(posterior, inputs)
    weights = linearise_totals(sums.counts, prediction)
    by_inputs = explain(posterior, inputs, weights)
    by_structure = explain_discrepancies(posterior, sums)
    explained = by_inputs + by_structure
    if joint:
        prior = _prior_products(posterior, inputs, weights)
        own_prior = np.diag(prior)
    else:
        own_prior = _prior_variance(posterior, inputs, weights)
    sum_variance = np.maximum(own_prior - np.einsum("ij,ij->j", by_inputs, by_inputs), 0.0)
    own_prior = own_prior + discrepancy_variance(posterior.hyper, sums)
    log_variance = np.maximum(own_prior - np.einsum("ij,ij->j", explained, explained), 0.0)
    discrepancy = discrepancy_covariance(posterior.hyper, sums, posterior.sums)
    log_mean = np.log(sums.counts.total(prediction.mean)) - 0.5 * sum_variance
    log_mean = log_mean + matvec(discrepancy, posterior.row_weights)
    if not joint:
        return LogPrediction(log_mean, log_variance)
    cov = prior + discrepancy_covariance(posterior.hyper, sums, sums)
    return LogPrediction(log_mean, log_variance, cov - matmul(explained.T, explained))


def _prior_products(posterior: LogSumPosterior, inputs: LogInputs, weights: WeightedSums) -> Floats:
    """Return the prior covariance of weighted sums of log values."""
    cov = log_prior_covariance(posterior.process, posterior.hyper, inputs, inputs)
    half = weights.pattern.matmul(weights.weight, cov)
    return weights.pattern.matmul(weights.weight, np.ascontiguousarray(half.T))


def _prior_variance(posterior: LogSumPosterior, inputs: LogInputs, weights: WeightedSums) -> Floats:
    cov = log_prior_covariance(posterior.process, posterior.hyper, inputs, inputs)
    half = weights.pattern.matmul(weights.weight, cov)
    return weights.sum_entries(weights.weight * half[weights.row, weights.column])


def _iterate_chunks(sums: LogSums) -> Iterator[tuple[Ints, LogSums]]:
    """Yield some sums at a time with the inputs they contain."""
    ends = np.cumsum(np.bincount(sums.counts.row, minlength=sums.size))
    start = 0
    while start < sums.size:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _SUM_CHUNK, side="right")))
        yield sums.take(np.arange(start, stop)).narrow()
        start = stop
