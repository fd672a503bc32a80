"""What makes the joint process fast: Matern kernels in the cache, and sums over few of many.

Points are **stretched** first, times √5 over the length scale of each axis, so that a kernel is a
function of plain distance d: Matern 5/2 is (1 + d + d²/3)·exp(-d). Large matrices are made some
rows at a time: what was written last is still in the cache when it is read again. Products are made
tile by tile, so small that BLAS starts no threads: where other work keeps the cores busy, waiting
for threads takes up to fifty times as long as the products do. numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
T = TypeVar("T")

_ROOT5 = math.sqrt(5.0)
# Numbers that are worked on at once: a quarter of a megabyte, which a core's own cache holds.
_AT_ONCE = 32768
# Products of tiles up to this size run in one thread of OpenBLAS.
_TILE = 64
# What is added to a diagonal that rounding has spoilt, as a share of its mean.
_MORE_DIAGONAL = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def stretch(points: Floats, scales: Floats) -> Floats:
    """Points in units of their length scales, so that kernels need only distances."""
    return np.asarray(points * (_ROOT5 / scales))


def matern(squares: Floats) -> Floats:
    """Matern 5/2 at squared distances of stretched points; the squares are used up."""
    np.maximum(squares, 0.0, out=squares)
    distance = np.sqrt(squares)
    squares /= 3.0
    squares += distance
    squares += 1.0
    np.negative(distance, out=distance)
    squares *= np.exp(distance, out=distance)
    return squares


def add_matern(cov: Floats, one: Floats, two: Floats, variance: float, base: float = 0.0) -> None:
    """Add ``base + variance * matern`` between all stretched points of two sets to ``cov``."""
    left, right = _prepare(one, two)
    for rows in list_strips(len(one), len(two)):
        value = matern(left[rows] @ right)
        value *= variance
        value += base
        cov[rows] += value


def matern_within(points: Floats, room: Floats) -> tuple[Floats, Floats]:
    """Matern 5/2 among stretched points, and minus twice its slope by squared distance.

    Both are written into ``room``, 2 x P x P: memory that is used again costs less than new one.
    """
    size = len(points)
    left, right = _prepare(points, points)
    value, slope = room
    for rows in list_strips(size, size):
        squares = left[rows] @ right[:, rows.start :]
        distance = np.sqrt(np.maximum(squares, 0.0))
        fade = np.exp(-distance)
        distance += 1.0
        squares /= 3.0
        squares += distance
        squares *= fade
        distance *= fade
        distance /= 3.0
        # Both are symmetric: what was written to the right goes below the diagonal too.
        for matrix, strip in ((value, squares), (slope, distance)):
            matrix[rows, rows.start :] = strip
            matrix[rows.start :, rows] = strip.T
    return value, slope


def combine(matrix: Floats, weights: Floats) -> Floats:
    """A matrix times a vector, in one thread."""
    return np.asarray(np.einsum("ij,j->i", matrix, weights))


def multiply(one: Floats, two: Floats) -> Floats:
    """A product of two matrices, in one thread."""
    product = np.zeros((one.shape[0], two.shape[1]))
    inner = _list_tiles(one.shape[1])
    for rows in _list_tiles(one.shape[0]):
        for columns in _list_tiles(two.shape[1]):
            tile = product[rows, columns]
            for middle in inner:
                tile += one[rows, middle] @ two[middle, columns]
    return product


def factorise(matrix: Floats) -> tuple[Floats, Floats]:
    """The lower Cholesky factor and its inverse, in one thread.

    A matrix that rounding has spoilt gets a little more diagonal.
    """
    return _mend(_factorise, matrix)


def invert(matrix: Floats) -> tuple[Floats, float]:
    """The inverse of a covariance, and half the logarithm of its determinant.

    Three times as fast as ``factorise`` and a product, in as many threads as the caller lets BLAS
    have; needs scipy.
    """
    return _mend(_invert, matrix)


def _mend(work: Callable[[Floats], T], matrix: Floats) -> T:
    """Work that needs a matrix above zero; rounding is mended by a little more diagonal."""
    scale = float(np.diag(matrix).mean())
    for share in _MORE_DIAGONAL:
        with suppress(np.linalg.LinAlgError):
            return work(matrix + share * scale * np.eye(len(matrix)))
    raise np.linalg.LinAlgError("no covariance, not even nearly")


def _invert(matrix: Floats) -> tuple[Floats, float]:
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed = dpotrf(matrix, lower=1)
    if failed:
        raise np.linalg.LinAlgError(f"not above zero at row {failed}")
    half_log = float(np.log(np.diag(factor)).sum())
    inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
    # LAPACK fills one triangle only.
    below = np.tril(inverse)
    return below + np.tril(inverse, -1).T, half_log


def _factorise(matrix: Floats) -> tuple[Floats, Floats]:
    """By halves: most of it is products."""
    size = len(matrix)
    if size <= _TILE:
        small = np.asarray(np.linalg.cholesky(matrix))
        return small, np.asarray(np.linalg.inv(small))
    factor, inverse = np.zeros((size, size)), np.zeros((size, size))
    top, below = slice(0, size // 2), slice(size // 2, size)
    factor[top, top], inverse[top, top] = _factorise(matrix[top, top])
    side = factor[below, top] = multiply(matrix[below, top], inverse[top, top].T)
    rest = matrix[below, below] - multiply(side, side.T)
    factor[below, below], inverse[below, below] = _factorise(rest)
    inverse[below, top] = -multiply(inverse[below, below], multiply(side, inverse[top, top]))
    return factor, inverse


def _list_tiles(size: int) -> list[slice]:
    return [slice(start, start + _TILE) for start in range(0, size, _TILE)]


def list_strips(rows: int, columns: int) -> Iterator[slice]:
    """Some rows of a matrix at a time, as many as the cache holds."""
    step = max(1, _AT_ONCE // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _prepare(one: Floats, two: Floats) -> tuple[Floats, Floats]:
    """Two matrices whose product is the squared distances."""
    middle = two.mean(axis=0) if len(two) else 0.0
    a, b = one - middle, two - middle
    lengths_a, lengths_b = (a**2).sum(axis=1), (b**2).sum(axis=1)
    left = np.column_stack([-2.0 * a, lengths_a, np.ones(len(a))])
    return left, np.vstack([b.T, np.ones(len(b)), lengths_b])


class Mix:
    """A sparse matrix of which every row sums a few of many columns.

    All first entries of rows are one step of arithmetic, then all second ones, and so on; rows are
    ordered by how many entries they have, so that each step takes the rows from the front.

    Args:
        size: How many rows there are.
        row: The row of each entry; ``column`` its column. No two entries have both in common.
    """

    def __init__(self, size: int, row: Ints, column: Ints) -> None:
        lengths = np.bincount(row, minlength=size)
        self._order = np.argsort(-lengths, kind="stable")
        starts = (np.cumsum(lengths) - lengths)[self._order]
        by_row = np.argsort(row, kind="stable")
        held = [np.count_nonzero(lengths > turn) for turn in range(lengths.max(initial=0))]
        self._turns = [by_row[starts[:count] + turn] for turn, count in enumerate(held)]
        self._columns = [column[entries] for entries in self._turns]

    def times(self, weights: Floats, matrix: Floats) -> Floats:
        """The product with a dense matrix; ``weights`` are what stands in the entries."""
        total = np.zeros((len(self._order), matrix.shape[1]))
        for entries, columns in zip(self._turns, self._columns, strict=True):
            for rows in list_strips(len(entries), matrix.shape[1]):
                part = matrix.take(columns[rows], axis=0)
                part *= weights[entries[rows], None]
                total[rows] += part
        result = np.empty_like(total)
        result[self._order] = total
        return result
