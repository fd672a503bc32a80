"""Linear algebra for covariance matrices, made to run well in one thread.

Products are made tile by tile, so small that BLAS starts no threads: where other work keeps the
cores busy, waiting for threads takes up to fifty times as long as small products do. Large matrices
are made some rows at a time, so that what was written last is still in the cache when it is read
again. Everything but ``invert_covariance`` needs numpy alone. Sums share inputs, so
``WeightedSums`` lists for each sum which inputs it has, with which weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from joulecast.records.codec import add_codec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
T = TypeVar("T")

# Arrays of records are lists in JSON.
add_codec(np.ndarray, np.ndarray.tolist, partial(np.array, dtype=float))

# Numbers per strip of rows: an eighth of a megabyte, which the cache of one core holds; the product
# of up to 16 coordinates that makes a strip runs in one thread of OpenBLAS.
_STRIP_SIZE = 16384
# Products of tiles up to this size run in one thread of OpenBLAS.
_TILE = 64
# Products of more multiplications than this are left to BLAS: its threads then work more than they
# wait, even on busy cores (2 cores under a load of 4: three times as fast as tiles).
_MAX_TILED = 5e8
# Jitter added to the diagonal of a matrix that rounding has made indefinite, relative to its mean.
_JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def matvec(matrix: Floats, vector: Floats) -> Floats:
    """Return the product of a matrix and a vector, in one thread."""
    return np.asarray(np.einsum("ij,j->i", matrix, vector))


def matmul(left: Floats, right: Floats) -> Floats:
    """Return the product of two matrices, in one thread unless they are large."""
    if float(left.size) * right.shape[1] > _MAX_TILED:
        return np.asarray(left @ right)
    product = np.zeros((left.shape[0], right.shape[1]))
    sizes = left.shape[0], right.shape[1], left.shape[1]
    row_tiles, column_tiles, inner_tiles = (
        [slice(start, start + _TILE) for start in range(0, size, _TILE)] for size in sizes
    )
    for rows in row_tiles:
        for columns in column_tiles:
            tile = product[rows, columns]
            for middle in inner_tiles:
                tile += left[rows, middle] @ right[middle, columns]
    return product


def cholesky_with_inverse(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the lower Cholesky factor of a covariance and its inverse, in one thread."""
    return _solve_with_jitter(_factorise, matrix)


def factorise_covariance(matrix: Floats) -> Floats:
    """Return the lower Cholesky factor of a covariance, in as many threads as BLAS takes."""
    return np.asarray(_solve_with_jitter(np.linalg.cholesky, matrix))


def invert_covariance(matrix: Floats) -> tuple[Floats, float]:
    """Return the inverse of a covariance and half its log determinant.

    Three times as fast as ``cholesky_with_inverse`` and a product, in as many threads as the caller
    allows BLAS; needs scipy.

    Raises:
        numpy.linalg.LinAlgError: The matrix is not positive definite, even with jitter.
    """
    return _solve_with_jitter(_invert, matrix)


def iterate_strips(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices over the rows of a matrix, each as large as the cache holds."""
    step = max(1, _STRIP_SIZE // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def expand_ranges(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the members of ranges of integers, one range after another, after their ranges."""
    number = np.repeat(np.arange(len(starts)), lengths)
    before = np.cumsum(lengths) - lengths
    return number, np.arange(len(number)) + (starts - before)[number]


def group_rows(table: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of a table, sorted, and for each row the place of its equal."""
    # Several times as fast as numpy.unique along an axis, which compares rows as structures.
    order = np.lexsort(table.T[::-1])
    is_first = np.ones(len(table), bool)
    is_first[1:] = (table[order[1:]] != table[order[:-1]]).any(axis=1)
    place = np.empty(len(table), np.int64)
    place[order] = np.cumsum(is_first) - 1
    return table[order[is_first]], place


def _solve_with_jitter(solve: Callable[[Floats], T], matrix: Floats) -> T:
    """Return what ``solve`` returns, with as little jitter as makes the matrix definite."""
    diagonal = np.diag(matrix).copy()
    scale = float(diagonal.mean()) if len(diagonal) else 0.0
    for share in _JITTERS:
        if share:
            matrix = matrix.copy()
            matrix[np.diag_indices_from(matrix)] = diagonal + share * scale
        with suppress(np.linalg.LinAlgError):
            return solve(matrix)
    raise np.linalg.LinAlgError("the covariance is not positive definite, even with jitter")


def _invert(matrix: Floats) -> tuple[Floats, float]:
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed_row = dpotrf(matrix, lower=1)
    if failed_row:
        raise np.linalg.LinAlgError(f"not positive definite at row {failed_row}")
    half_log_det = float(np.log(np.diag(factor)).sum())
    inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
    # LAPACK fills one triangle only.
    return np.tril(inverse) + np.tril(inverse, -1).T, half_log_det


def _factorise(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the Cholesky factor and its inverse by halves: most of the work is products."""
    size = len(matrix)
    if size <= _TILE:
        small = np.asarray(np.linalg.cholesky(matrix))
        return small, np.asarray(np.linalg.inv(small))
    factor, inverse = np.zeros((size, size)), np.zeros((size, size))
    top, below = slice(0, size // 2), slice(size // 2, size)
    factor[top, top], inverse[top, top] = _factorise(matrix[top, top])
    side = factor[below, top] = matmul(matrix[below, top], inverse[top, top].T)
    schur = matrix[below, below] - matmul(side, side.T)
    factor[below, below], inverse[below, below] = _factorise(schur)
    inverse[below, top] = -matmul(inverse[below, below], matmul(side, inverse[top, top]))
    return factor, inverse


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

    def take(self, index: Ints) -> WeightedSums:
        """Return some of the sums."""
        starts = np.searchsorted(self.row, index)
        lengths = np.searchsorted(self.row, index, side="right") - starts
        row, entries = expand_ranges(starts, lengths)
        return WeightedSums(len(index), row, self.column[entries], self.weight[entries])

    def append(self, other: WeightedSums) -> WeightedSums:
        """Return the sums of both."""
        return WeightedSums(
            self.size + other.size,
            np.concatenate([self.row, other.row + self.size]),
            np.concatenate([self.column, other.column]),
            np.concatenate([self.weight, other.weight]),
        )

    def matmul(self, matrix: Floats) -> Floats:
        """Return the product of the weights and a dense matrix.

        The first entries of all sums are one step of arithmetic, then all second ones, and so on.
        Sums are ordered by their number of entries, so that each step takes them from the front.
        """
        lengths = np.bincount(self.row, minlength=self.size)
        order = np.argsort(-lengths, kind="stable")
        starts = (np.cumsum(lengths) - lengths)[order]
        ordered = np.zeros((self.size, matrix.shape[1]))
        for step in range(lengths.max(initial=0)):
            entries = starts[: np.count_nonzero(lengths > step)] + step
            for rows in iterate_strips(len(entries), matrix.shape[1]):
                part = matrix.take(self.column[entries[rows]], axis=0)
                part *= self.weight[entries[rows], None]
                ordered[rows] += part
        product = np.empty_like(ordered)
        product[order] = ordered
        return product

    def sum_entries(self, entries: Floats) -> Floats:
        """Return for each sum the sum of one number per entry."""
        return np.asarray(np.bincount(self.row, entries, self.size), float)

    def total(self, values: Floats) -> Floats:
        """Return the weighted sums of one value per input."""
        return self.sum_entries(self.weight * values[self.column])
