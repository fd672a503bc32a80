"""Select the observations that matter for some inputs, where there are too many for all.

Those with the largest prior covariance are selected, equally many for every input, which leaves the
cost of conditioning independent of the number of observations.
"""

from __future__ import annotations

import numpy as np

from joulecast.gp.linalg import Ints
from joulecast.gp.logsums.linearisation import linearise
from joulecast.gp.logsums.log_inputs import LogInputs
from joulecast.gp.logsums.posterior import FittedLogSums, LogSumPosterior, condition_logsums
from joulecast.gp.logsums.prior_covariance import log_prior_covariance
from joulecast.gp.logsums.prior_mean import prior_log_mean

# Up to this many observations all are used: their Cholesky factor takes less than a second.
MAX_EXACT_ROWS = 1500
# Observations selected in total, and at least for each input.
LOCAL_ROWS, ROWS_PER_INPUT = 500, 8
# Inputs whose covariances with all observations are held at once.
_CHUNK = 256


def condition_locally(
    fitted: FittedLogSums, inputs: LogInputs, limit: int = LOCAL_ROWS
) -> LogSumPosterior:
    """Return the posterior given the observations that matter for these inputs."""
    return condition_logsums(fitted, select_rows(fitted, inputs, limit))


def condition_for(fitted: FittedLogSums, inputs: LogInputs) -> LogSumPosterior:
    """Return the posterior given all observations, or those that matter if there are many."""
    if fitted.observations.size <= MAX_EXACT_ROWS:
        return condition_logsums(fitted)
    return condition_locally(fitted, inputs)


def select_rows(
    fitted: FittedLogSums,
    inputs: LogInputs,
    limit: int = LOCAL_ROWS,
    per_input: int = ROWS_PER_INPUT,
) -> Ints:
    """Return the observations with the largest prior covariance with the inputs, ascending.

    Args:
        fitted: The process and its observations.
        inputs: Inputs to predict.
        limit: Number of observations, unless that leaves an input fewer than ``per_input``.
        per_input: Least number of observations for each input.
    """
    size = fitted.observations.size
    if size <= limit:
        return np.arange(size)
    ranked = np.concatenate(
        [
            _rank_rows(
                fitted, inputs.take(np.arange(start, min(inputs.size, start + _CHUNK))), limit
            )
            for start in range(0, inputs.size, _CHUNK)
        ]
    )
    low, high = min(per_input, limit), limit
    while low < high:
        middle = (low + high + 1) // 2
        if len(np.unique(ranked[:, :middle])) <= limit:
            low = middle
        else:
            high = middle - 1
    return np.unique(ranked[:, :low])


def _rank_rows(fitted: FittedLogSums, inputs: LogInputs, limit: int) -> Ints:
    """Return the observations of largest covariance with each input, largest first, P x limit."""
    linear = fitted.linear
    if linear is None:
        start = prior_log_mean(fitted.inputs, fitted.hyper.coefficients)
        linear = linearise(fitted.observations.sums.counts, start)
    weights = linear.weights
    cov = log_prior_covariance(fitted.process, fitted.hyper, fitted.inputs, inputs)
    negative = -weights.pattern.matmul(weights.weight, cov).T
    best = np.argpartition(negative, limit - 1, axis=1)[:, :limit]
    order = np.argsort(np.take_along_axis(negative, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)
