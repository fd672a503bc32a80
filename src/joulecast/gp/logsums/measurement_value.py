"""Predict how much a further observation would reduce the variance of totals.

c_ij      posterior covariance of the logarithms of target i and candidate j
s_j²      posterior variance of candidate j's observation, noise included
c²/s²     expected reduction of the target's log variance, whatever the observation shows
"""

from __future__ import annotations

import numpy as np

from joulecast.gp.linalg import Floats, matmul
from joulecast.gp.logsums.log_inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import LogSumPosterior
from joulecast.gp.logsums.prior_covariance import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
)
from joulecast.gp.logsums.totals import (
    explain_discrepancies,
    explain_inputs,
    linearise_totals,
)


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
    one = linearise_totals(targets.counts, prediction)
    two = linearise_totals(candidates.counts, prediction)
    by_target = one.pattern.matmul(one.weight, explained)
    by_target += explain_discrepancies(posterior, targets)
    by_candidate = two.pattern.matmul(two.weight, explained)
    by_candidate += explain_discrepancies(posterior, candidates)
    prior = log_prior_covariance(posterior.process, posterior.hyper, inputs, inputs)
    half = two.pattern.matmul(two.weight, prior)
    cov = one.pattern.matmul(one.weight, np.ascontiguousarray(half.T))
    cov += discrepancy_covariance(posterior.hyper, targets, candidates)
    cov -= matmul(by_target, by_candidate.T)
    variance = two.sum_entries(two.weight * half[two.row, two.column])
    variance += discrepancy_variance(posterior.hyper, candidates)
    variance -= np.einsum("ij,ij->i", by_candidate, by_candidate)
    noise = posterior.hyper.noise_sd**2 + known_variance
    return np.asarray(cov**2 / (np.maximum(variance, 0.0) + noise))
