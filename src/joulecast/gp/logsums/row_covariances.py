"""Covariances of observations with each other, kept for those that were used last.

    C = W·K·Wᵀ + U    without the noise of measuring

Queries that resemble each other, such as a network and the same one with another width, select
nearly the same observations. Entries are computed when they are first needed; each has the same
value whichever were needed before, up to rounding.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.log_inputs import LogInputs, LogSums, sort_by_cell
from joulecast.gp.logsums.prior_covariance import (
    discrepancy_covariance,
    discrepancy_variance,
    log_prior_covariance,
    log_prior_variance,
)
from joulecast.gp.weighted_sums import WeightedSums

if TYPE_CHECKING:
    from joulecast.gp.logsums.posterior import FittedLogSums

# Observations whose covariances are kept: 18 MB.
_KEPT_ROWS = 1536


class RowCovariances:
    """Covariances of the observations of a fitted process, for several threads.

    Args:
        fitted: The process, with its observations linearised.
        kept: Number of observations whose covariances are kept.
    """

    def __init__(self, fitted: FittedLogSums, kept: int = _KEPT_ROWS) -> None:
        assert fitted.linear is not None
        self._process, self._hyper, self._linear = fitted.process, fitted.hyper, fitted.linear
        self._inputs, self._observations = fitted.inputs, fitted.observations
        self._lock = threading.Lock()
        self._place = np.full(fitted.observations.size, -1)
        # Row in each place and when it was used last.
        self._row, self._used_at = np.full(kept, -1), np.zeros(kept, np.int64)
        self._matrix = np.full((0, 0), np.nan)
        self._uses = 0
        self._variances = np.full(fitted.observations.size, np.nan)

    def take(self, left: Ints, right: Ints) -> Floats:
        """Return the covariances of some observations with others, left x right."""
        rows = np.union1d(left, right)
        if len(rows) > len(self._row):
            return self._compute(left, right)
        with self._lock:
            self._find_places(rows)
            places, others = self._place[left], self._place[right]
            found = np.asarray(self._matrix[np.ix_(places, others)])
            # First rows that are mostly new, then columns that are new to the other rows.
            for share in (0.5, 0.0):
                missing = np.isnan(found)
                if not missing.any():
                    break
                is_new = missing.mean(axis=1) > share
                self._fill(left[is_new], right[missing[is_new].any(axis=0)])
                found = np.asarray(self._matrix[np.ix_(places, others)])
            return found

    def take_variances(self, rows: Ints) -> Floats:
        """Return the variances of some observations."""
        with self._lock:
            new = rows[np.isnan(self._variances[rows])]
            if len(new):
                inputs, sums, weights = self._select(new)
                found = log_prior_variance(self._process, self._hyper, inputs, weights)
                self._variances[new] = found + discrepancy_variance(self._hyper, sums)
            return np.asarray(self._variances[rows])

    def _find_places(self, rows: Ints) -> None:
        """Give every row a place, those of the rows that were not used for longest."""
        if not len(self._matrix):
            self._matrix = np.full((len(self._row), len(self._row)), np.nan)
        self._uses += 1
        known = self._place[rows]
        self._used_at[known[known >= 0]] = self._uses
        new = rows[known < 0]
        if not len(new):
            return
        free = np.argsort(self._used_at, kind="stable")[: len(new)]
        before = self._row[free]
        self._place[before[before >= 0]] = -1
        self._matrix[free, :] = self._matrix[:, free] = np.nan
        self._row[free], self._place[new], self._used_at[free] = new, free, self._uses

    def _fill(self, rows: Ints, others: Ints) -> None:
        if len(rows):
            found = self._compute(rows, others)
            places = np.ix_(self._place[rows], self._place[others])
            self._matrix[places] = found
            self._matrix.T[places] = found

    def _compute(self, left: Ints, right: Ints) -> Floats:
        inputs, sums, weights = self._select(left)
        others, other_sums, other_weights = self._select(right)
        cov = log_prior_covariance(self._process, self._hyper, inputs, others)
        half = weights.pattern.matmul(weights.weight, cov)
        product = other_weights.pattern.matmul(other_weights.weight, np.ascontiguousarray(half.T)).T
        return np.asarray(product + discrepancy_covariance(self._hyper, sums, other_sums))

    def _select(self, rows: Ints) -> tuple[LogInputs, LogSums, WeightedSums]:
        """Return the inputs of some observations cell by cell, their sums, and their weights."""
        index, observations = sort_by_cell(self._inputs, self._observations.take(rows))
        counts = observations.sums.counts
        weight = self._linear.take(rows).weights.weight
        weights = WeightedSums(counts.size, counts.row, counts.column, weight)
        return self._inputs.take(index), observations.sums, weights
