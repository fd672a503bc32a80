"""Linearise logarithms of sums around log values z̄.

f_i(z) = ln Σ_p A_ip·exp(z_p)
w_ip   = A_ip·exp(z̄_p) / Σ_q A_iq·exp(z̄_q)
f(z)   ≈ f(z̄) + w·(z - z̄)
E f    ≈ f(z̄) + b,  b = ½·(Σ_p w_p·v_p - s²)

with v the variances of z and s² that of w·z: the expectation of the second-order expansion. A sum
of many uncertain inputs is above the sum of their medians, by what of their variance averages out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.logsums.log_inputs import take_rows
from joulecast.gp.weighted_sums import WeightedSums


@dataclass(frozen=True)
class LinearSums:
    """Logarithms of sums as affine functions of log values.

    Attributes:
        weights: The matrix w; each row adds up to 1.
        offsets: E f - w·z̄, N.
    """

    weights: WeightedSums
    offsets: Floats

    def evaluate(self, log_values: Floats) -> Floats:
        """Return the linearised logarithm of each sum."""
        return np.asarray(self.offsets + self.weights.total(log_values))

    def take(self, index: Ints) -> LinearSums:
        """Return some of the sums."""
        return LinearSums(take_rows(self.weights, index), self.offsets[index])


def linearise(
    counts: WeightedSums,
    log_values: Floats,
    log_variance: Floats | None = None,
    sum_variance: Floats | None = None,
) -> LinearSums:
    """Return the linearisation of sums around log values of all inputs.

    Args:
        counts: The sums.
        log_values: The mean z̄ of the inputs, P.
        log_variance: Their variance v, P; zero if left out.
        sum_variance: Variance s² of the linearised sums, N; zero if left out.
    """
    log_totals = log_sums(counts, log_values)
    terms = np.log(counts.weight) + log_values[counts.column]
    weight = np.exp(terms - log_totals[counts.row])
    weights = WeightedSums(counts.size, counts.row, counts.column, weight)
    if log_variance is not None and sum_variance is not None:
        log_totals = log_totals + 0.5 * (weights.total(log_variance) - sum_variance)
    return LinearSums(weights, log_totals - weights.total(log_values))


def log_sums(counts: WeightedSums, log_values: Floats) -> Floats:
    """Return the logarithm of each sum; minus infinity for empty ones."""
    values = log_values[counts.column]
    largest = np.full(counts.size, -np.inf)
    np.maximum.at(largest, counts.row, values)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    totals = counts.sum_entries(counts.weight * np.exp(values - largest[counts.row]))
    with np.errstate(divide="ignore"):
        return np.asarray(largest + np.log(totals))
