"""Fit hyper-parameters: the MAP estimate by L-BFGS on a stratified subset of the observations.

Sums are linearised around the posterior mean under the last estimate, then θ is fitted again.
"""

from __future__ import annotations

import numpy as np

from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.log_inputs import LogInputs, LogObservations, sort_by_cell
from joulecast.gp.logsums.outliers import discount_outliers
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.process import LogSumProcess
from joulecast.gp.logsums.relinearisation import keep_linearisation
from joulecast.gp.logsums.sum_objective import SumObjective

# Observations that hyper-parameters are fitted to, and inputs that their sums may contain.
MAX_FIT_ROWS, MAX_FIT_INPUTS = 800, 1100
# Fits of θ, each around the posterior mean of the last one, and steps of each.
_FIT_STEPS = (40, 15)
# Bounds of the search, in prior standard deviations.
_SEARCH_SDS = 6.0


def fit_logsums(
    process: LogSumProcess,
    inputs: LogInputs,
    observations: LogObservations,
    max_rows: int = MAX_FIT_ROWS,
    max_row_inputs: int | None = None,
) -> FittedLogSums:
    """Return the process with MAP hyper-parameters, ready to be conditioned.

    Where there are outliers, they are discounted and everything is fitted again. Without any
    observations, hyper-parameters are the medians of their priors.

    Args:
        process: The process.
        inputs: Distinct inputs of the observations.
        observations: Observed sums of them.
        max_rows: Number of observations that hyper-parameters are fitted to.
        max_row_inputs: Hyper-parameters are fitted to sums of at most so many inputs, if given.
    """
    if not observations.size:
        return FittedLogSums(process, process.prior.means, inputs, observations)
    rows = select_subset(observations, max_rows, max_row_inputs=max_row_inputs)

    def fit(observations: LogObservations) -> FittedLogSums:
        theta = _find_mode(process, inputs, observations.take(rows))
        return keep_linearisation(FittedLogSums(process, theta, inputs, observations))

    fitted = fit(observations)
    discounted = discount_outliers(fitted)
    return fitted if discounted is None else fit(discounted)


def select_subset(
    observations: LogObservations,
    max_rows: int,
    max_inputs: int = MAX_FIT_INPUTS,
    max_row_inputs: int | None = None,
) -> Ints:
    """Return observations of all strata, ascending, with at most so many inputs.

    A stratum's number of observations grows with the square root of its size, until it runs out.

    Args:
        observations: The observations to choose from.
        max_rows: Number of observations.
        max_inputs: Number of distinct inputs of all chosen sums together.
        max_row_inputs: Number of inputs of each chosen sum; None for any.
    """
    counts, size = observations.sums.counts, observations.size
    strata = np.zeros(size, np.int64) if observations.strata is None else observations.strata
    starts = np.searchsorted(counts.row, np.arange(size + 1))
    seen: set[int] = set()
    chosen = []
    for row in _order_by_stratum(strata).tolist():
        own = set(counts.column[starts[row] : starts[row + 1]].tolist())
        if max_row_inputs is not None and len(own) > max_row_inputs:
            continue
        if len(own) == 1 or len(seen | own) <= max_inputs:
            seen |= own
            chosen.append(row)
        if len(chosen) == max_rows:
            break
    return np.sort(np.array(chosen, np.int64))


def _order_by_stratum(strata: Ints) -> Ints:
    shuffled = np.random.default_rng(0).permutation(len(strata))
    rank = np.empty(len(strata))
    for stratum in np.unique(strata):
        mine = shuffled[strata[shuffled] == stratum]
        rank[mine] = (np.arange(len(mine)) + 0.5) / np.sqrt(len(mine))
    return np.argsort(rank, kind="stable")


def _find_mode(process: LogSumProcess, inputs: LogInputs, observations: LogObservations) -> Floats:
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    index, observations = sort_by_cell(inputs, observations)
    inputs = inputs.take(index)
    prior = process.prior
    theta, reach = prior.means, _SEARCH_SDS * prior.sds
    bounds = list(zip(theta - reach, theta + reach, strict=True))
    # The matrices are small: threads would wait for each other more than they work.
    with threadpool_limits(1, user_api="blas"):
        for steps in _FIT_STEPS:
            posterior = condition_logsums(FittedLogSums(process, theta, inputs, observations))
            objective = SumObjective(process, inputs, observations, posterior.linear)
            found = minimize(
                objective.negative_log_posterior,
                theta,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": steps},
            )
            theta = np.asarray(found.x)
            if not _has_sums(observations):
                break
    return theta


def _has_sums(observations: LogObservations) -> bool:
    return len(observations.sums.counts.row) > observations.size
