"""Nets to be asked about: their distinct pieces as arrays, some nets at a time, pairs within a net.

Pieces are shared by nets, so a net is a list of entries: which piece, how often. Memory grows with
the number of entries that are asked about at once, never with the square of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.gp.joint import Field, Parts
from joulecast.gp.kernels import Floats, Ints, combine, matern

# Numbers that asking holds at once, 64 megabytes; and how many it needs for each pair of layers.
_AT_ONCE = 8_000_000
_PAIR_NUMBERS = 16


@dataclass(frozen=True)
class Nets:
    """Nets to be asked about: distinct pieces, and how often each net runs them.

    Attributes:
        field: The pieces.
        match: For every piece the row piece that it is, or -1.
        net: For every entry the net; ``piece`` which piece, ``count`` how often.
    """

    field: Field
    match: Ints
    size: int
    net: Ints
    piece: Ints
    count: Floats

    def alone(self, pieces: Ints) -> Nets:
        """Each of some pieces as a net of its own."""
        size = len(pieces)
        each = np.arange(size)
        return Nets(self.field.take(pieces), self.match[pieces], size, each, each, np.ones(size))


def list_chunks(nets: Nets, rows: int) -> Iterator[tuple[Ints, Nets]]:
    """Some nets at a time with their pieces, so that memory does not grow with their number."""
    sizes = np.bincount(nets.net, minlength=nets.size)
    held = np.cumsum(sizes * (rows + _PAIR_NUMBERS * sizes))
    edges = np.flatnonzero(np.diff(held // _AT_ONCE, prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        entries = slice(*np.searchsorted(nets.net, [first, last]))
        pieces, piece = np.unique(nets.piece[entries], return_inverse=True)
        runs = nets.net[entries] - first, piece, nets.count[entries]
        yield pieces, Nets(nets.field.take(pieces), nets.match[pieces], last - first, *runs)


class Pairs:
    """All pairs of different pieces that stand in one net; entries come net by net."""

    def __init__(self, nets: Nets) -> None:
        field, self._nets = nets.field, nets
        self._left, self._right = _list_pairs(nets)
        left, right = nets.piece[self._left], nets.piece[self._right]
        self._alike = np.flatnonzero(field.labels[left] == field.labels[right])
        alike = left[self._alike], right[self._alike]
        self._place_gaps = (field.places[alike[0]] - field.places[alike[1]]) ** 2
        self._rate_gaps = (field.rates[left] - field.rates[right]) ** 2

    def add_up(self, entry: Floats, parts: Parts, level: float) -> Floats:
        """Prior variance of each net's total, given what its entries cost in the mean."""
        cov = np.zeros(len(self._left))
        own = level**2 + parts.shape**2 + parts.jagged**2
        near = matern(combine(self._place_gaps, 5.0 / parts.place_scales**2))
        cov[self._alike] = level**2 + parts.shape**2 * near
        if self._rate_gaps.shape[1]:
            own += parts.rates**2
            far = matern(combine(self._rate_gaps, 5.0 / parts.rate_scales**2))
            cov += parts.rates**2 * far
        net, size = self._nets.net, self._nets.size
        both = np.bincount(net[self._left], entry[self._left] * entry[self._right] * cov, size)
        return np.asarray(own * np.bincount(net, entry**2, size) + 2.0 * both)


def _list_pairs(nets: Nets) -> tuple[Ints, Ints]:
    """Entries of one net two by two, the earlier one first."""
    ends = np.searchsorted(nets.net, nets.net, side="right")
    later = ends - np.arange(len(ends)) - 1
    left = np.repeat(np.arange(len(ends)), later)
    starts = np.cumsum(later) - later
    return left, left + 1 + np.arange(len(left)) - starts[left]
