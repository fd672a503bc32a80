"""Weighted sums over inputs, as a sparse matrix, and their prior variance.

Sums share inputs, so each sum is a list of entries: which input, with which weight. Memory grows
with the entries of the sums that are predicted at once, never with the square of all inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.inputs import Inputs
from joulecast.gp.kernels import matern52
from joulecast.gp.linalg import Floats, Ints, SparsityPattern, matvec

# Numbers that one chunk of sums may hold at once, 64 megabytes; numbers per pair of entries.
_CHUNK_SIZE = 8_000_000
_NUMBERS_PER_PAIR = 16


@dataclass(frozen=True)
class WeightedSums:
    """Sums over inputs: a sparse matrix of weights, sum by sum.

    Attributes:
        size: Number of sums; some may be empty.
        row: Sum of each entry, ascending.
        column: Input of each entry; no sum has two entries of one input.
        weight: Weight of each entry.
    """

    size: int
    row: Ints
    column: Ints
    weight: Floats

    @classmethod
    def of_single_inputs(cls, inputs: int) -> WeightedSums:
        """Return one sum for each input, with weight 1."""
        index = np.arange(inputs)
        return cls(inputs, index, index, np.ones(inputs))

    @cached_property
    def pattern(self) -> SparsityPattern:
        """Where the weights lie, for products with other entries."""
        return SparsityPattern(self.size, self.row, self.column)

    def sum_entries(self, entries: Floats) -> Floats:
        """Return for each sum the sum of one number per entry."""
        return np.asarray(np.bincount(self.row, entries, self.size), float)

    def total(self, values: Floats) -> Floats:
        """Return the weighted sums of one value per input."""
        return self.sum_entries(self.weight * values[self.column])

    def to_matrix(self, inputs: int) -> Floats:
        """Return the weights as a dense matrix, sums x inputs."""
        matrix = np.zeros((self.size, inputs))
        matrix[self.row, self.column] = self.weight
        return matrix

    def iterate_chunks(self, training_size: int) -> Iterator[tuple[Ints, WeightedSums]]:
        """Yield some sums at a time with the inputs they contain, so that memory stays bounded.

        Args:
            training_size: Number of training inputs.
        """
        lengths = np.bincount(self.row, minlength=self.size)
        held = np.cumsum(lengths * (training_size + _NUMBERS_PER_PAIR * lengths))
        edges = np.flatnonzero(np.diff(held // _CHUNK_SIZE, prepend=-1, append=-1))
        for first, last in pairwise(edges.tolist()):
            entries = slice(*np.searchsorted(self.row, [first, last]))
            inputs, column = np.unique(self.column[entries], return_inverse=True)
            row, weight = self.row[entries] - first, self.weight[entries]
            yield inputs, WeightedSums(last - first, row, column, weight)


class PriorSumVariance:
    """Prior variance of sums, from all pairs of inputs within each sum."""

    def __init__(self, inputs: Inputs, sums: WeightedSums) -> None:
        self._sums = sums
        self._left, self._right = _list_pairs(sums.row)
        left, right = sums.column[self._left], sums.column[self._right]
        self._same_label = np.flatnonzero(inputs.labels[left] == inputs.labels[right])
        one, two = left[self._same_label], right[self._same_label]
        self._squares = (inputs.points[one] - inputs.points[two]) ** 2
        self._shared_squares = (inputs.shared_points[left] - inputs.shared_points[right]) ** 2

    def variance(self, entries: Floats, hyper: HyperParameters) -> Floats:
        """Return the variance of each sum, given the prior mean of each of its entries."""
        cov = np.zeros(len(self._left))
        own = hyper.label_offset_sd**2 + hyper.local_sd**2 + hyper.nugget_sd**2
        local = matern52(matvec(self._squares, 5.0 / hyper.local_length_scales**2))
        cov[self._same_label] = hyper.label_offset_sd**2 + hyper.local_sd**2 * local
        if self._shared_squares.shape[1]:
            own += hyper.shared_sd**2
            shared = matern52(matvec(self._shared_squares, 5.0 / hyper.shared_length_scales**2))
            cov += hyper.shared_sd**2 * shared
        row, size = self._sums.row, self._sums.size
        products = entries[self._left] * entries[self._right] * cov
        pairs = np.bincount(row[self._left], products, size)
        return np.asarray(own * np.bincount(row, entries**2, size) + 2.0 * pairs)


def _list_pairs(row: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of entries within a sum, the earlier entry first."""
    ends = np.searchsorted(row, row, side="right")
    later = ends - np.arange(len(ends)) - 1
    left = np.repeat(np.arange(len(ends)), later)
    starts = np.cumsum(later) - later
    return left, left + 1 + np.arange(len(left)) - starts[left]
