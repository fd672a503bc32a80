"""Inputs of a process over log values and sums over them, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from joulecast.gp.linalg import Floats, Ints, WeightedSums, group_rows

ALL_INPUTS = -1
"""Group of all inputs."""
NO_GROUP = -(2**63)
"""Group of inputs that a term leaves out: it adds nothing to their variance."""


@dataclass(frozen=True)
class Rows:
    """Arrays with equally many rows; None in place of one that is not needed."""

    def take(self, index: Ints) -> Self:
        """Return some of the rows."""
        found: list[Any] = []
        for one in fields(self):
            rows = getattr(self, one.name)
            is_array = isinstance(rows, np.ndarray)
            found.append(rows[index] if is_array else rows and rows.take(index))
        return type(self)(*found)

    def append(self, other: Self) -> Self:
        """Return the rows of both."""
        names = [one.name for one in fields(self)]
        return type(self)(*(_append(getattr(self, one), getattr(other, one)) for one in names))


def _append(rows: Any, others: Any) -> Any:
    if rows is None or others is None:
        return None
    is_array = isinstance(rows, np.ndarray)
    return np.concatenate([rows, others]) if is_array else rows.append(others)


@dataclass(frozen=True)
class LogInputs(Rows):
    """P inputs of the process.

    Attributes:
        basis: Basis functions of the mean, non-negative and not all zero in a row, P x K.
        points: Coordinates of the kernels, P x D.
        groups: Groups that each input belongs to, one column for each way of grouping, P x G.
        regimes: Regime of each input, P: half-independent copies of every kernel.
        identities: Identity of each input, P: equal numbers are the same input.
        log_caps: Logarithm of the largest mean of each input, P; None if there is none.
        log_basis: Basis functions of the logarithm of the mean, P x S; None if there are none.
    """

    basis: Floats
    points: Floats
    groups: Ints
    regimes: Ints
    identities: Ints
    log_caps: Floats | None = None
    log_basis: Floats | None = None

    @property
    def size(self) -> int:
        return len(self.identities)

    def group_column(self, group: int) -> Ints:
        """Return the group of each input, P; zeros if all inputs are one group."""
        if group == ALL_INPUTS:
            return np.zeros(self.size, np.int64)
        return self.groups[:, group]

    @cached_property
    def cells(self) -> tuple[Ints, Ints]:
        """Distinct rows of groups and regime, cells x (G + 1), and the cell of each input, P."""
        return group_rows(np.column_stack([self.groups, self.regimes]))


@dataclass(frozen=True)
class LogSums(Rows):
    """N sums over inputs.

    Attributes:
        counts: How often each sum contains each input, the matrix A.
        structures: Share of each structure in each sum, the matrix F; empty rows for single inputs.
        identities: Identity of each sum, N: equal numbers are the same sum.
    """

    counts: WeightedSums
    structures: WeightedSums
    identities: Ints

    @classmethod
    def of_counts(cls, counts: WeightedSums) -> LogSums:
        """Return sums without discrepancy."""
        nothing = np.zeros(0, np.int64)
        structures = WeightedSums(counts.size, nothing, nothing, np.zeros(0))
        return cls(counts, structures, np.arange(counts.size))

    @property
    def size(self) -> int:
        return self.counts.size

    def renumber(self, numbers: Ints) -> LogSums:
        """Return the sums over the same inputs with other numbers."""
        counts = replace(self.counts, column=numbers[self.counts.column])
        return replace(self, counts=counts)

    def narrow(self) -> tuple[Ints, LogSums]:
        """Return the inputs that occur in any sum, and the sums over those alone."""
        used, column = np.unique(self.counts.column, return_inverse=True)
        return used, replace(self, counts=replace(self.counts, column=column))


@dataclass(frozen=True)
class LogObservations(Rows):
    """Observed sums.

    Attributes:
        log_values: Logarithm of each observed value, N.
        log_variance: Variance of each that is known beforehand, N.
        strata: Stratum of each observation, N, so that a subset shows all of them; None for one.
    """

    sums: LogSums
    log_values: Floats
    log_variance: Floats
    strata: Ints | None = None

    @property
    def size(self) -> int:
        return len(self.log_values)


@dataclass(frozen=True)
class LinearSums(Rows):
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
    weights = replace(counts, weight=np.exp(terms - log_totals[counts.row]))
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
