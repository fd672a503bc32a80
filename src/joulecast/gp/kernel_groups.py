"""Groups: pieces that share a kernel, and what it does to the rows that show them.

    K = base + variance·Matern + own·1     among the pieces of one kind, or among all by their rates
    S·K·Sᵀ                                 its part of the rows' covariance; S sums pieces to rows
    Sᵀ·W·S                                 how everything leans on K, where W is how it does on rows

S is sparse: most rows show few pieces. No matrix is larger than a group, and no large one that is
mostly zeros is ever multiplied; small ones are, since keeping books of zeros takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.gp.kernels import Floats, Ints, matern_within, stretch

# Up to so many numbers S is written down with its zeros.
_SMALL = 4096


@dataclass(frozen=True)
class Kernel:
    """A kernel's numbers at some hyper-parameters; ``own`` is on the diagonal."""

    base: float
    variance: float
    own: float
    scales: Floats


@dataclass(frozen=True)
class Lean:
    """Derivatives of something by logarithms.

    Attributes:
        means: By what each piece costs in the mean, P.
        variance: By the root of the kernel's variance; ``own`` likewise.
        scales: By each length scale.
    """

    means: Floats
    variance: float
    own: float
    scales: Floats

    def __add__(self, other: Lean) -> Lean:
        return Lean(
            self.means + other.means,
            self.variance + other.variance,
            self.own + other.own,
            self.scales + other.scales,
        )


class Group:
    """Pieces that share a kernel.

    Args:
        members: Which pieces, in order, of how many in all.
        points: Where each member lies.
        row: The row of each entry of S; ``piece`` its piece.

    Attributes:
        window: Where the rows that show any member stand in a matrix of all rows.
    """

    def __init__(self, members: Ints, pieces: int, points: Floats, row: Ints, piece: Ints) -> None:
        self.members, self.pieces = members, pieces
        self.points = points - points.mean(axis=0)
        self._entries = np.flatnonzero(np.isin(piece, members))
        self._rows, self._row = np.unique(row[self._entries], return_inverse=True)
        self._column = np.searchsorted(members, piece[self._entries])
        self._shape = len(self._rows), len(members)
        self.window = np.ix_(self._rows, self._rows)
        self.room = np.empty((2, len(members), len(members)))

    def sum_up(self, weights: Floats) -> tuple[Any, Any]:
        """S and its transpose, sparse where they are large; ``weights`` are what rows sum."""
        entries, places = weights[self._entries], (self._row, self._column)
        if self._shape[0] * self._shape[1] <= _SMALL:
            sums = np.zeros(self._shape)
            sums[places] = entries
            return sums, np.ascontiguousarray(sums.T)
        from scipy.sparse import csr_array

        sparse = csr_array((entries, places), self._shape)
        return sparse, sparse.T.tocsr()


class Made:
    """A group's kernel at some hyper-parameters, made; the next one is made in the same room.

    Attributes:
        cov: Its part of the covariance of the rows that show any member.
    """

    def __init__(self, group: Group, kernel: Kernel, weights: Floats) -> None:
        self.group, self._kernel = group, kernel
        self._points = stretch(group.points, kernel.scales)
        self._value, self._slope = matern_within(self._points, group.room)
        self._sums, self._back = group.sum_up(weights)
        whole = self._sums.sum(axis=1)
        self.cov = kernel.variance * self._sandwich(self._sums, self._value)
        if kernel.base:
            self.cov += kernel.base * np.outer(whole, whole)
        if kernel.own:
            own = self._sums @ self._back
            self.cov += kernel.own * (own if isinstance(own, np.ndarray) else own.toarray())

    def lean(self, by_rows: Floats) -> Lean:
        """How everything leans on the kernel, given how it does on the covariance of all rows."""
        kernel, points = self._kernel, self._points
        by_cov = self._sandwich(self._back, by_rows[self.group.window])
        base, own = kernel.base * by_cov.sum(axis=1), kernel.own * np.diag(by_cov)
        shared = kernel.variance * np.einsum("ij,ij->i", by_cov, self._value)
        means = np.zeros(self.group.pieces)
        means[self.group.members] = base + shared + own
        by_cov *= self._slope
        # Half of Σ by·(x - x')² over all pairs, without a matrix for each axis.
        spans = by_cov.sum(axis=1) @ points**2 - np.einsum("ij,ij->j", points, by_cov @ points)
        return Lean(means, float(shared.sum()), float(own.sum()), kernel.variance * spans)

    def _sandwich(self, sums: Any, matrix: Floats) -> Floats:
        """Sums · matrix · Sumsᵀ of a symmetric matrix."""
        half = sums @ matrix
        return np.asarray(sums @ np.ascontiguousarray(half.T))
