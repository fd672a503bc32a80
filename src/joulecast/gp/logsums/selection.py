"""Select the observations that matter for some queries, where there are too many for all.

First those with the largest prior covariance, equally many for every query; then, given these,
those with the largest expected variance reduction: the first are often near duplicates.

The selected ones give variances; means are those given all observations if the fit has row weights.
On 2,859 observations of an H200 and 40 networks, standard deviations are then 6 % too large in the
median, and totals differ from exact ones by rms 0.005 in the logarithm, as what uncertainty adds to
a sum does. Means given the selected ones alone would differ by 0.09, and by 0.04 with 800.

A fit linearises every sum around its posterior once, so that conditioning on some needs one step.
Later observations are linearised around what the earlier ones say of them; those of single inputs
are exact anyway.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.gp.linalg import Floats, Ints, WeightedSums, matmul
from joulecast.gp.logsums.inputs import (
    LogInputs,
    LogObservations,
    LogSums,
    append_inputs,
    append_observations,
    append_rows,
)
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    LinearSums,
    LogSumPosterior,
    condition_logsums,
    correct_row_weights,
    linearise,
    linearise_observations,
    multiply_triangular,
)
from joulecast.gp.logsums.prior import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
    log_prior_variance,
    prior_log_mean,
)
from joulecast.gp.logsums.totals import explain_discrepancies, explain_inputs, linearise_prediction

# Up to this many observations all are used: a quarter of a second on one core, selecting less.
MAX_EXACT_ROWS = 400
# Observations selected in total, and at least for each query: 0.1 s for a network of 60 operators.
LOCAL_ROWS, ROWS_PER_QUERY = 300, 6
# Share of them selected in the first round.
_FIRST_SHARE = 0.4
# Observations considered in the second round, as a multiple of those selected.
_CANDIDATES = 3
# Queries whose covariances with all observations are held at once.
_CHUNK = 256


def condition_for(
    fitted: FittedLogSums,
    inputs: LogInputs,
    queries: LogSums | None = None,
    limit: int | None = None,
) -> LogSumPosterior:
    """Return the posterior given all observations, or those that matter if there are many.

    If there are many and the process has row weights, means are those given all of them.

    Args:
        fitted: The process and its observations.
        inputs: Distinct inputs to predict.
        queries: Sums over them; each input alone if left out.
        limit: Number of observations that are many; LOCAL_ROWS by default.
    """
    return condition_on_rows(fitted, find_rows(fitted, inputs, queries, limit))


def condition_on_rows(fitted: FittedLogSums, rows: Ints) -> LogSumPosterior:
    """Return variances given some observations, with means given all if the fit knows them."""
    posterior = condition_logsums(fitted, rows)
    if len(rows) == fitted.observations.size:
        return posterior
    return replace(posterior, full_mean=fitted.mean)


def find_rows(
    fitted: FittedLogSums,
    inputs: LogInputs,
    queries: LogSums | None = None,
    limit: int | None = None,
) -> Ints:
    """Return all observations, or those that matter if there are many."""
    limit = limit or LOCAL_ROWS
    if fitted.observations.size <= max(MAX_EXACT_ROWS, limit):
        return np.arange(fitted.observations.size)
    return select_rows(fitted, inputs, queries, limit)


def select_rows(
    fitted: FittedLogSums,
    inputs: LogInputs,
    queries: LogSums | None = None,
    limit: int = LOCAL_ROWS,
    per_query: int = ROWS_PER_QUERY,
) -> Ints:
    """Return the observations that matter for sums over inputs, ascending.

    Args:
        fitted: The process and its observations.
        inputs: Distinct inputs to predict.
        queries: Sums over them, each as important as the others; each input alone if left out.
        limit: Number of observations, unless that leaves a query fewer than ``per_query``.
        per_query: Least number of observations for each query.
    """
    if fitted.observations.size <= limit:
        return np.arange(fitted.observations.size)
    if queries is None:
        queries = LogSums.of_single_inputs(inputs.size)
    search = _RowSearch(fitted, inputs, queries)
    cov = search.prior_covariance()
    ranked = _rank_rows(cov, _CANDIDATES * limit)
    first = _choose_ranked(ranked, round(_FIRST_SHARE * limit), per_query)
    left = limit - len(first)
    if left <= 0:
        return first
    candidates = np.setdiff1d(_choose_ranked(ranked, _CANDIDATES * limit, per_query), first)
    score = search.variance_reduction(first, candidates, cov)
    return np.union1d(first, candidates[_choose_ranked(_rank_rows(score, left), left, 1)])


class _RowSearch:
    """Covariances of observations with linearised queries."""

    def __init__(self, fitted: FittedLogSums, inputs: LogInputs, queries: LogSums) -> None:
        self._fitted, self._inputs, self._queries = fitted, inputs, queries
        self._rows = fitted.linear or _linearise_at_prior(
            fitted, fitted.inputs, fitted.observations.sums
        )
        self._weights = _linearise_at_prior(fitted, inputs, queries).weights

    def prior_covariance(self) -> Floats:
        """Return the prior covariance of all observations with the queries, N x n."""
        fitted, rows, size = self._fitted, self._rows.weights, self._inputs.size
        cov = np.empty((rows.size, size))
        for start in range(0, size, _CHUNK):
            some = np.arange(start, min(size, start + _CHUNK))
            part = log_prior_covariance(
                fitted.process, fitted.hyper, fitted.inputs, self._inputs.take(some)
            )
            cov[:, some] = rows.matmul(part)
        found = self._weights.matmul(np.ascontiguousarray(cov.T)).T
        sums = fitted.observations.sums
        return np.asarray(found + discrepancy_covariance(fitted.hyper, sums, self._queries))

    def variance_reduction(self, known: Ints, candidates: Ints, cov: Floats) -> Floats:
        """Return what each candidate takes off each query's variance, given known observations.

        ``cov`` is the prior covariance of all observations with the queries.
        """
        fitted, hyper = self._fitted, self._fitted.hyper
        if fitted.linear is not None:
            return self._reduce_kept(known, candidates, cov)
        posterior = condition_logsums(fitted, known)
        by_query = self._weights.matmul(explain_inputs(posterior, self._inputs)[1])
        by_query += explain_discrepancies(posterior, self._queries)
        used, sums = fitted.observations.sums.take(candidates).narrow()
        inputs, weight = fitted.inputs.take(used), self._rows.take(candidates).weights.weight
        weights = WeightedSums(sums.size, sums.counts.row, sums.counts.column, weight)
        by_row = weights.matmul(explain_inputs(posterior, inputs)[1])
        by_row += explain_discrepancies(posterior, sums)
        variance = log_prior_variance(fitted.process, hyper, inputs, weights)
        variance += discrepancy_variance(hyper, sums)
        variance -= np.einsum("ij,ij->i", by_row, by_row)
        noise = hyper.noise_sd**2 + fitted.observations.log_variance[candidates]
        left = cov[candidates] - matmul(by_row, np.ascontiguousarray(by_query.T))
        return np.asarray(left**2 / (np.maximum(variance, 0.0) + noise)[:, None])

    def _reduce_kept(self, known: Ints, candidates: Ints, cov: Floats) -> Floats:
        """Return the same from covariances that may be kept."""
        fitted = self._fitted
        noise = fitted.hyper.noise_sd**2 + fitted.observations.log_variance
        inverse_factor = condition_logsums(fitted, known).inverse_factor
        own = fitted.row_covariances
        by_row = multiply_triangular(inverse_factor, own.take(known, candidates))
        by_query = multiply_triangular(inverse_factor, np.ascontiguousarray(cov[known]))
        variance = own.take_variances(candidates) - np.einsum("ij,ij->j", by_row, by_row)
        left = cov[candidates] - matmul(np.ascontiguousarray(by_row.T), by_query)
        return np.asarray(left**2 / (np.maximum(variance, 0.0) + noise[candidates])[:, None])


def _linearise_at_prior(fitted: FittedLogSums, inputs: LogInputs, sums: LogSums) -> LinearSums:
    return linearise(sums.counts, prior_log_mean(inputs, fitted.hyper.coefficients))


def _rank_rows(score: Floats, depth: int) -> Ints:
    """Return the rows of highest score for each column, the best one first, n x depth."""
    depth = min(depth, len(score))
    negative = -score.T
    best = np.argpartition(negative, depth - 1, axis=1)[:, :depth]
    order = np.argsort(np.take_along_axis(negative, best, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(best, order, axis=1))


def _choose_ranked(ranked: Ints, limit: int, per_query: int) -> Ints:
    """Return the first rows of each ranking, equally many, at most ``limit`` in all."""
    depth = min(limit, ranked.shape[1])
    ranked = ranked[:, :depth]
    # The best rank of each row: written from the last to the first, so that the best one stays.
    best_rank = np.full(ranked.max(initial=0) + 1, depth)
    best_rank[ranked.T.ravel()[::-1]] = np.repeat(np.arange(depth)[::-1], len(ranked))
    counts = np.cumsum(np.bincount(best_rank, minlength=depth + 1)[:depth])
    most = max(min(per_query, depth), int(np.count_nonzero(counts <= limit)))
    return np.flatnonzero(best_rank < most)


# Up to so many observations and inputs, all are linearised around their joint posterior: 3,000 of
# 7,000 take half a minute and 1.5 gigabytes, 4,400 of 10,000 a minute and 3.
_MAX_JOINT_ROWS, _MAX_JOINT_INPUTS = 6000, 14_000
# Sums that are linearised around one local posterior.
_BATCH = 50


def keep_linearisation(fitted: FittedLogSums) -> FittedLogSums:
    """Return the process with all observations linearised around their posterior."""
    fitted = replace(fitted, linear=None, row_weights=None)
    counts = fitted.observations.sums.counts
    if fitted.observations.size <= _MAX_JOINT_ROWS and fitted.inputs.size <= _MAX_JOINT_INPUTS:
        return linearise_observations(fitted)
    start = prior_log_mean(fitted.inputs, fitted.hyper.coefficients)
    linear = linearise(counts, start)
    weight, offsets = linear.weights.weight.copy(), linear.offsets.copy()
    for rows in _list_batches(fitted):
        used, sums = fitted.observations.sums.take(rows).narrow()
        inputs = fitted.inputs.take(used)
        posterior = condition_logsums(fitted, select_rows(fitted, inputs))
        part = linearise_prediction(posterior, inputs, sums.counts)
        offsets[rows] = part.offsets
        weight[np.isin(counts.row, rows)] = part.weights.weight
    return replace(fitted, linear=LinearSums(replace(counts, weight=weight), offsets))


def extend_fitted(
    fitted: FittedLogSums, inputs: LogInputs, observations: LogObservations
) -> FittedLogSums:
    """Return the process with further observations, its hyper-parameters unchanged.

    Observations are sums over its inputs and, after them, the new ones.
    """
    together = append_inputs(fitted.inputs, inputs)
    # Strata matter for fits alone.
    all_rows = replace(append_observations(fitted.observations, observations), strata=None)
    extended = replace(fitted, inputs=together, observations=all_rows, row_weights=None)
    if fitted.linear is None:
        return extended
    used, sums = observations.sums.narrow()
    needed = together.take(used)
    near = find_rows(fitted, needed)
    linear = linearise_prediction(condition_on_rows(fitted, near), needed, sums.counts)
    counts = observations.sums.counts
    weights = append_rows(fitted.linear.weights, replace(counts, weight=linear.weights.weight))
    offsets = np.concatenate([fitted.linear.offsets, linear.offsets])
    extended = replace(extended, linear=LinearSums(weights, offsets))
    if fitted.row_weights is None:
        return extended
    row_weights = np.concatenate([fitted.row_weights, np.zeros(observations.size)])
    new = np.arange(fitted.observations.size, all_rows.size)
    extended = replace(extended, row_weights=row_weights)
    return correct_row_weights(extended, np.concatenate([near, new]))


def _list_batches(fitted: FittedLogSums) -> list[Ints]:
    """Return the sums of several inputs, those of equal structures together; each ascending."""
    sums = fitted.observations.sums
    lengths = np.bincount(sums.counts.row, minlength=sums.size)
    structure = np.full(sums.size, -1)
    structure[sums.structures.row] = sums.structures.column
    order = np.argsort(structure, kind="stable")
    order = order[lengths[order] > 1]
    return [np.sort(order[at : at + _BATCH]) for at in range(0, len(order), _BATCH)]
