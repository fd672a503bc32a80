"""Inputs of a process over log values and sums over them, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from joulecast.gp.linalg import Floats, Ints, WeightedSums
from joulecast.gp.logsums.process import ALL_INPUTS


@dataclass(frozen=True)
class LogInputs:
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
        """Number of inputs."""
        return len(self.identities)

    def take(self, index: Ints) -> LogInputs:
        """Return some of the inputs."""
        return LogInputs(
            self.basis[index],
            self.points[index],
            self.groups[index],
            self.regimes[index],
            self.identities[index],
            None if self.log_caps is None else self.log_caps[index],
            None if self.log_basis is None else self.log_basis[index],
        )

    def group_column(self, group: int) -> Ints:
        """Return the group of each input, P; zeros if all inputs are one group."""
        if group == ALL_INPUTS:
            return np.zeros(self.size, np.int64)
        return self.groups[:, group]

    @cached_property
    def cells(self) -> tuple[Ints, Ints]:
        """Distinct rows of groups and regime, cells x (G + 1), and the cell of each input, P."""
        rows = np.column_stack([self.groups, self.regimes])
        if not len(rows):
            return rows, np.zeros(0, np.int64)
        order = np.lexsort(rows.T[::-1])
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
        cell = np.empty(len(rows), np.int64)
        cell[order] = np.cumsum(is_first) - 1
        return rows[order[is_first]], cell

    @cached_property
    def members(self) -> list[Ints]:
        """Indices of the inputs of each cell, ascending."""
        table, cell = self.cells
        order = np.argsort(cell, kind="stable")
        return np.split(order, np.searchsorted(cell[order], np.arange(1, len(table))))


@dataclass(frozen=True)
class LogSums:
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
    def of_single_inputs(cls, inputs: int) -> LogSums:
        """Return one sum for each input, without discrepancy."""
        return cls.of_counts(WeightedSums.of_single_inputs(inputs))

    @classmethod
    def of_counts(cls, counts: WeightedSums) -> LogSums:
        """Return sums without discrepancy."""
        nothing = np.zeros(0, np.int64)
        structures = WeightedSums(counts.size, nothing, nothing, np.zeros(0))
        return cls(counts, structures, np.arange(counts.size))

    @property
    def size(self) -> int:
        """Number of sums."""
        return self.counts.size

    def take(self, index: Ints) -> LogSums:
        """Return some of the sums, over the same inputs."""
        return LogSums(
            take_rows(self.counts, index),
            take_rows(self.structures, index),
            self.identities[index],
        )

    def narrow(self) -> tuple[Ints, LogSums]:
        """Return the inputs that occur in any sum, and the sums over those alone."""
        used, column = np.unique(self.counts.column, return_inverse=True)
        counts = WeightedSums(self.size, self.counts.row, column, self.counts.weight)
        return used, LogSums(counts, self.structures, self.identities)


@dataclass(frozen=True)
class LogObservations:
    """Observed sums.

    Attributes:
        sums: The sums.
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
        """Number of observations."""
        return len(self.log_values)

    def take(self, index: Ints) -> LogObservations:
        """Return some of the observations, over the same inputs."""
        strata = None if self.strata is None else self.strata[index]
        return LogObservations(
            self.sums.take(index), self.log_values[index], self.log_variance[index], strata
        )


def append_inputs(left: LogInputs, right: LogInputs) -> LogInputs:
    """Return the inputs of both."""
    return LogInputs(
        np.concatenate([left.basis, right.basis]),
        np.concatenate([left.points, right.points]),
        np.concatenate([left.groups, right.groups]),
        np.concatenate([left.regimes, right.regimes]),
        np.concatenate([left.identities, right.identities]),
        _append_optional(left.log_caps, right.log_caps),
        _append_optional(left.log_basis, right.log_basis),
    )


def append_observations(
    left: LogObservations, right: LogObservations, offset: int = 0
) -> LogObservations:
    """Return the observations of both.

    Args:
        left: Observed sums.
        right: Further ones.
        offset: Added to the inputs of the further ones, where theirs follow those of the others.
    """
    one, two = left.sums, right.sums
    moved = replace(two.counts, column=two.counts.column + offset)
    return LogObservations(
        LogSums(
            append_rows(one.counts, moved),
            append_rows(one.structures, two.structures),
            np.concatenate([one.identities, two.identities]),
        ),
        np.concatenate([left.log_values, right.log_values]),
        np.concatenate([left.log_variance, right.log_variance]),
        _append_optional(left.strata, right.strata),
    )


def sort_by_cell(inputs: LogInputs, observations: LogObservations) -> tuple[Ints, LogObservations]:
    """Return the inputs that occur in observations, cell by cell, and the sums over those alone."""
    used, sums = observations.sums.narrow()
    order = np.argsort(inputs.cells[1][used], kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    counts = sums.counts
    counts = WeightedSums(counts.size, counts.row, position[counts.column], counts.weight)
    sums = LogSums(counts, sums.structures, sums.identities)
    return used[order], replace(observations, sums=sums)


def take_rows(sums: WeightedSums, index: Ints) -> WeightedSums:
    """Return some rows of a sparse matrix whose entries are ordered by row."""
    starts = np.searchsorted(sums.row, index)
    lengths = np.searchsorted(sums.row, index, side="right") - starts
    row = np.repeat(np.arange(len(index)), lengths)
    entries = np.arange(len(row)) + (starts - np.cumsum(lengths) + lengths)[row]
    return WeightedSums(len(index), row, sums.column[entries], sums.weight[entries])


def append_rows(left: WeightedSums, right: WeightedSums) -> WeightedSums:
    """Return the rows of both matrices."""
    return WeightedSums(
        left.size + right.size,
        np.concatenate([left.row, right.row + left.size]),
        np.concatenate([left.column, right.column]),
        np.concatenate([left.weight, right.weight]),
    )


def _append_optional(left: Any, right: Any) -> Any:
    return None if left is None or right is None else np.concatenate([left, right])
