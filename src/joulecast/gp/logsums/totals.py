"""Predict inputs, combinations of log values, and totals.

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
from dataclasses import dataclass

import numpy as np

from joulecast.gp.linalg import Floats, Ints, WeightedSums, matmul, matvec
from joulecast.gp.logsums.inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import (
    LinearSums,
    LogSumPosterior,
    linearise,
    multiply_triangular,
)
from joulecast.gp.logsums.prior import (
    discrepancy_covariance,
    discrepancy_variance,
    find_input_variances,
    log_prior_covariance,
    log_prior_variance,
    prior_log_mean,
)

# Inputs whose covariances with the observations are made at once.
_INPUT_CHUNK = 2048
# Entries of sums, and pairs of entries, that are held at once.
_MAX_ENTRIES, _MAX_PAIRS = 16384, 1_000_000


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


def predict_inputs(
    posterior: LogSumPosterior, inputs: LogInputs, with_variance: bool = True
) -> LogPrediction:
    """Return the posterior of each input; without variances three times as fast."""
    log_mean, log_variance = np.empty(inputs.size), np.zeros(inputs.size)
    if not with_variance and posterior.full_mean is not None:
        return LogPrediction(posterior.full_mean.predict(inputs), log_variance)
    variances = find_input_variances(posterior.process, posterior.hyper, inputs)
    for index, mean, cov in _iterate_inputs(posterior, inputs):
        log_mean[index] = mean
        if with_variance:
            explained = multiply_triangular(posterior.inverse_factor, cov)
            log_variance[index] = _subtract_squares(variances[index], explained.T)
    return LogPrediction(log_mean, log_variance)


def predict_log_totals(
    posterior: LogSumPosterior,
    inputs: LogInputs,
    sums: LogSums,
    joint: bool = False,
    log_mean: Floats | None = None,
) -> LogPrediction:
    """Return the posterior of sums over inputs.

    Args:
        posterior: The conditioned process.
        inputs: Distinct inputs of the sums.
        sums: The sums, none of them empty.
        joint: Whether to return their joint covariance; without it, memory stays bounded.
        log_mean: Posterior means of the inputs, if they are known already.
    """
    if joint:
        return _predict_chunk(posterior, inputs, sums, log_mean, joint=True)
    parts = [
        _predict_chunk(
            posterior,
            inputs.take(used),
            chunk,
            None if log_mean is None else log_mean[used],
            joint=False,
        )
        for used, chunk in _iterate_sums(sums)
    ]
    return LogPrediction(
        np.concatenate([np.zeros(0), *(part.log_mean for part in parts)]),
        np.concatenate([np.zeros(0), *(part.log_variance for part in parts)]),
    )


def predict_discrepancies(posterior: LogSumPosterior, sums: LogSums) -> Floats:
    """Return the posterior mean of the discrepancy of each sum."""
    if not len(sums.structures.row):
        return np.zeros(sums.size)
    known = posterior if posterior.full_mean is None else posterior.full_mean
    cov = discrepancy_covariance(posterior.hyper, sums, known.sums)
    return matvec(cov, known.row_weights)


def posterior_elasticities(
    posterior: LogSumPosterior, lower: LogInputs, upper: LogInputs, log_step: float
) -> Floats:
    """Return the derivative of each posterior mean by the logarithm of something it depends on.

    Achieved rates are coordinates of energies, so that durations act through the kernels too: on
    888 energies of an H200 the derivative is 0.87, against 0.68 of the prior mean alone, and the
    rms z of energies of unseen durations 1.13 against 1.33.

    Args:
        posterior: The conditioned process.
        lower: The inputs with that quantity half a step lower, on the logarithmic scale.
        upper: Likewise higher.
        log_step: The step.
    """
    one, two = (
        predict_inputs(posterior, each, with_variance=False).log_mean for each in (lower, upper)
    )
    return np.asarray((two - one) / log_step)


def explain_inputs(
    posterior: LogSumPosterior, inputs: LogInputs, known_mean: Floats | None = None
) -> tuple[LogPrediction, Floats]:
    """Return the posterior of inputs, and L⁻¹·k of each: what the observations explain, P x N."""
    log_mean = np.empty(inputs.size)
    explained = np.empty((inputs.size, posterior.sums.size))
    for index, mean, cov in _iterate_inputs(posterior, inputs, known_mean):
        log_mean[index] = mean
        explained[index] = multiply_triangular(posterior.inverse_factor, cov).T
    variances = find_input_variances(posterior.process, posterior.hyper, inputs)
    log_variance = _subtract_squares(variances, explained)
    return LogPrediction(log_mean, log_variance), explained


def explain_discrepancies(posterior: LogSumPosterior, sums: LogSums) -> Floats:
    """Return L⁻¹ times the covariance of observations with the discrepancies of sums, n x N."""
    cov = discrepancy_covariance(posterior.hyper, posterior.sums, sums)
    return multiply_triangular(posterior.inverse_factor, cov).T if cov.any() else cov.T


def linearise_prediction(
    posterior: LogSumPosterior, inputs: LogInputs, counts: WeightedSums
) -> LinearSums:
    """Return the linearisation of sums around their posterior."""
    prediction, explained = explain_inputs(posterior, inputs)
    weights = linearise(counts, prediction.log_mean).weights
    explained = weights.matmul(explained)
    prior = log_prior_variance(posterior.process, posterior.hyper, inputs, weights)
    sum_variance = _subtract_squares(prior, explained)
    return linearise(counts, prediction.log_mean, prediction.log_variance, sum_variance)


def _predict_chunk(
    posterior: LogSumPosterior,
    inputs: LogInputs,
    sums: LogSums,
    known_mean: Floats | None,
    joint: bool,
) -> LogPrediction:
    prediction, explained = explain_inputs(posterior, inputs, known_mean)
    weights = linearise(sums.counts, prediction.log_mean).weights
    explained = weights.matmul(explained)
    if joint:
        prior = log_prior_covariance(posterior.process, posterior.hyper, inputs, inputs)
        prior = weights.matmul(np.ascontiguousarray(weights.matmul(prior).T))
        own_prior = np.diag(prior)
    else:
        own_prior = log_prior_variance(posterior.process, posterior.hyper, inputs, weights)
    sum_variance = _subtract_squares(own_prior, explained)
    linear = linearise(sums.counts, prediction.log_mean, prediction.log_variance, sum_variance)
    log_mean = linear.evaluate(prediction.log_mean)
    if len(sums.structures.row):
        log_mean += predict_discrepancies(posterior, sums)
        own_prior = own_prior + discrepancy_variance(posterior.hyper, sums)
        explained += explain_discrepancies(posterior, sums)
    log_variance = _subtract_squares(own_prior, explained)
    if not joint:
        return LogPrediction(log_mean, log_variance)
    cov = prior + discrepancy_covariance(posterior.hyper, sums, sums)
    return LogPrediction(log_mean, log_variance, cov - matmul(explained, explained.T))


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
        cov = posterior.covariance_with_observations(some)
        if known_mean is not None:
            log_mean = known_mean[index]
        elif posterior.full_mean is None:
            log_mean = prior_log_mean(some, posterior.hyper.coefficients)
            log_mean = log_mean + matvec(cov.T, posterior.row_weights)
        else:
            log_mean = posterior.full_mean.predict(some)
        yield index, log_mean, cov


def _iterate_sums(sums: LogSums) -> Iterator[tuple[Ints, LogSums]]:
    """Yield some sums at a time with the inputs they contain."""
    lengths = np.bincount(sums.counts.row, minlength=sums.size)
    ends, pair_ends = np.cumsum(lengths), np.cumsum(lengths**2)
    start = 0
    while start < sums.size:
        held = (ends - ends[start] <= _MAX_ENTRIES) & (pair_ends - pair_ends[start] <= _MAX_PAIRS)
        stop = max(start + 1, int(np.count_nonzero(held)))
        yield sums.take(np.arange(start, stop)).narrow()
        start = stop


def expected_variance_reduction(
    posterior: LogSumPosterior,
    inputs: LogInputs,
    targets: LogSums,
    candidates: LogSums,
    known_variance: float = 0.0,
) -> Floats:
    """Return what each candidate takes off the log variance of each target, targets x candidates.

    Args:
        posterior: The conditioned process.
        inputs: Distinct inputs of targets and candidates.
        targets: Totals that should become certain.
        candidates: Sums that could be observed.
        known_variance: Variance of an observation that is known beforehand, besides its noise.
    """
    prediction, explained = explain_inputs(posterior, inputs)
    one = linearise(targets.counts, prediction.log_mean).weights
    two = linearise(candidates.counts, prediction.log_mean).weights
    by_target = one.matmul(explained)
    by_target += explain_discrepancies(posterior, targets)
    by_candidate = two.matmul(explained)
    by_candidate += explain_discrepancies(posterior, candidates)
    prior = log_prior_covariance(posterior.process, posterior.hyper, inputs, inputs)
    half = two.matmul(prior)
    cov = one.matmul(np.ascontiguousarray(half.T))
    cov += discrepancy_covariance(posterior.hyper, targets, candidates)
    cov -= matmul(by_target, by_candidate.T)
    variance = two.sum_entries(two.weight * half[two.row, two.column])
    variance += discrepancy_variance(posterior.hyper, candidates)
    variance -= np.einsum("ij,ij->i", by_candidate, by_candidate)
    noise = posterior.hyper.noise_sd**2 + known_variance
    return np.asarray(cov**2 / (np.maximum(variance, 0.0) + noise))
