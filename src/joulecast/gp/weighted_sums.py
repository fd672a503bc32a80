"""Weighted sums over inputs, as a sparse matrix.

Sums share inputs, so each sum is a list of entries: which input, with which weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import Floats, Ints, SparsityPattern


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
