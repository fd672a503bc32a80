"""Discount observations that all others together contradict.

A library may run one size of a layer a hundred times slower than its neighbours. A Gaussian process
would take that for a property of the whole region. Among many observations, the value of an outlier
is therefore given the variance of its own leave-one-out residual (R&W, eq. 5.12), so that it says
next to nothing. Several that agree predict each other, and are none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.gp.linalg import Floats, matmul
from joulecast.gp.logsums.log_inputs import LogObservations
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums

# Of fewer observations each one counts, and what looks like an outlier may be the subject.
_FEWEST_ROWS = 1000
# An outlier is off by this factor and by so many standard deviations.
_FACTOR, _SDS = 2.5, 3.5


def discount_outliers(fitted: FittedLogSums) -> LogObservations | None:
    """Return the observations with larger variances for outliers; None if there are none.

    The largest outlier is discounted first: its neighbours may look like some only beside it.

    Args:
        fitted: The process, with all observations linearised around their joint posterior.
    """
    size = fitted.observations.size
    if size < _FEWEST_ROWS or fitted.row_weights is None:
        return None
    posterior = condition_logsums(fitted)
    inverse = matmul(posterior.inverse_factor.T, posterior.inverse_factor)
    weights, added = posterior.row_weights.copy(), np.zeros(size)
    while (worst := _find_worst(weights, np.diag(inverse))) is not None:
        column = inverse[worst].copy()
        variance = float(weights[worst] / column[worst]) ** 2
        added[worst] += variance
        # Sherman and Morrison: one more variance on the diagonal of C.
        share = variance / (1.0 + variance * column[worst])
        weights -= share * weights[worst] * column
        inverse -= share * np.outer(column, column)
    if not added.any():
        return None
    return replace(fitted.observations, log_variance=fitted.observations.log_variance + added)


def _find_worst(weights: Floats, precision: Floats) -> int | None:
    """Return the outlier with the most standard deviations, by C⁻¹·r and the diagonal of C⁻¹."""
    residual, deviations = np.abs(weights / precision), np.abs(weights) / np.sqrt(precision)
    deviations = np.where(residual > np.log(_FACTOR), deviations, 0.0)
    worst = int(np.argmax(deviations))
    return worst if deviations[worst] > _SDS else None
