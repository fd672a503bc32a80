"""Pieces as arrays for the joint process, and the priors of what is learnt about them.

Columns of work are FLOPs by rate (precision), bytes, and for seconds launches, for joules seconds:
short launches, which leave most of the device idle, and what goes beyond them, busy.
Then one for each source of imported runs, its overhead.
Coefficients have log-normal priors by shares: what each would be if its column explained that part
of a typical look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.estimators.additive.decompose import Look
from joulecast.estimators.additive.pieces import AXES, OVERHEAD, Count, Piece, merge_counts
from joulecast.estimators.base import UNIT_SD_SHARE
from joulecast.gp.joint import Field, Prior, Rows
from joulecast.gp.kernels import Floats, Ints
from joulecast.gp.queries import Nets
from joulecast.kinds import KINDS

Words = dict[str, Any]

# Prior medians of the hyper-parameters and their log-deviations: shares of a look that each column
# of work explains; residuals by place, by rates, jagged, noise; length scales.
TIME = {
    "shares": (0.35, 0.35, 0.2),
    "spreads": (0.30, 0.1, 0.10, 0.004),
    "widths": (0.5, 0.5, 0.25, 0.2),
    "level": 0.5,
}
ENERGY = {
    "shares": (0.25, 0.35, 0.30, 0.30),
    "spreads": (0.10, 0.10, 0.03, 0.01),
    "widths": (0.5, 0.5, 0.5, 0.2),
    "level": 0.2,
}
# Nobody knows how a stranger's log was metered: its noise is learnt, and may be large. Meters of
# energy are noisier than clocks, so that seconds tell more of a layer.
IMPORTED_TIME = {**TIME, "spreads": (0.30, 0.1, 0.10, 0.01), "widths": (0.5, 0.5, 0.25, 1.0)}
IMPORTED_ENERGY = {
    **ENERGY,
    "shares": (0.10, 0.20, 0.60, 0.60),
    "spreads": (0.10, 0.10, 0.03, 0.05),
    "widths": (0.5, 0.5, 0.5, 0.5),
}
# From few FLOPs a second to many.
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_SHARE_WIDTH = 1.0
_OVERHEAD_SHARE = 0.1
# Power of busy seconds over that of the waiting device.
_BUSY_TIMES, _BUSY_WIDTH = 3.0, 0.6
# Launches are short up to so many times the quickest one, and up to so many seconds.
_SHORT_TIMES, _SHORT_S = 4.0, 10e-6
_PLACE_SCALE, _RATE_SCALE, _SCALE_WIDTH = 1.5, 1.0, 0.5


@dataclass(frozen=True)
class Table:
    """The names behind numbers: which labels and which rates were seen, in one order.

    Attributes:
        launch_s: Device seconds up to which a launch leaves most of the device idle.
    """

    labels: tuple[str, ...]
    rates: tuple[str, ...]
    launch_s: float = 0.0

    @property
    def overheads(self) -> tuple[str, ...]:
        """Labels of overheads: each has a column of its own."""
        return tuple(label for label in self.labels if label.startswith(OVERHEAD))

    def field(self, pieces: Sequence[Piece], time_s: Floats | None = None) -> Field:
        """Pieces as arrays: for seconds, or with their seconds for joules."""
        rates = len(self.rates)
        last = 2 * rates + 1 if time_s is None else rates + 2
        columns = np.zeros((len(pieces), last + 1 + len(self.overheads)))
        at, rate = np.arange(len(pieces)), self._number_rates(pieces)
        columns[at, rate] = [piece.flops for piece in pieces]
        if time_s is None:
            columns[at, rates + rate] = [piece.padded_flops for piece in pieces]
        moved = [piece.size_bytes for piece in pieces]
        if time_s is None:
            columns[:, last - 1], columns[:, last] = moved, [piece.launches for piece in pieces]
        else:
            launches = np.array([piece.launches for piece in pieces])
            short_s = np.minimum(time_s, self.launch_s * launches)
            columns[:, last - 2] = moved
            columns[:, last - 1], columns[:, last] = short_s, time_s - short_s
        reached = _rates(pieces, time_s)
        for place, label in enumerate(self.overheads, start=last + 1):
            mine = np.array([piece.label == label for piece in pieces], bool)
            columns[mine] = 0.0
            columns[mine, place] = 1.0
            # It does no work that could reach a rate: it is far from all layers, wherever asked.
            reached[mine] = 0.0
        places = np.array([piece.place for piece in pieces]).reshape(len(pieces), len(AXES))
        return Field(columns, self._number(pieces), places, reached)

    def _number_rates(self, pieces: Sequence[Piece]) -> Ints:
        """Where FLOPs count; those of a rate that nobody saw count as the one nearest to it."""
        numbers = {rate: at for at, rate in enumerate(self.rates)}
        for rate in {piece.rate for piece in pieces} - numbers.keys():
            nearest = min(self.rates, key=lambda seen, rate=rate: _differ(seen, rate), default="")  # type: ignore[misc]
            numbers[rate] = numbers.get(nearest, 0)
        return np.array([numbers[piece.rate] for piece in pieces], int)

    def _number(self, pieces: Sequence[Piece]) -> Ints:
        """Labels as numbers; each that nobody saw gets a new one."""
        numbers = {label: at for at, label in enumerate(self.labels)}
        return np.array([numbers.setdefault(piece.label, len(numbers)) for piece in pieces], int)


def _differ(one: str, two: str) -> int:
    """How far two rates are apart: by precision; the same one in another phase is nearest."""
    places = [_PRECISIONS.index(rate.split()[0]) if rate else 0 for rate in (one, two)]
    return abs(places[0] - places[1])


def find_launch(looks: Sequence[Look]) -> float:
    """Device seconds up to which a launch leaves most of the device idle.

    A recurrent layer fuses most of the launches that are counted for it, and says nothing here.
    """
    times_s = [
        look.duration_s / look.launches
        for look in looks
        if look.duration_s and look.launches and not any(map(_is_recurrent, look.counts))
    ]
    return min(_SHORT_TIMES * min(times_s, default=0.0), _SHORT_S)


def make_table(looks: Sequence[Look]) -> Table:
    """What names some looks bring."""
    pieces = [piece for look in looks for piece, _ in look.counts]
    labels, rates = {p.label for p in pieces}, {p.rate for p in pieces if p.rate}
    return Table(tuple(sorted(labels)), tuple(sorted(rates)))


def make_rows(
    looks: Sequence[Look],
    pieces: Sequence[Piece],
    values: Floats,
    known: Floats,
) -> Rows:
    """Looks as rows over pieces, each off by itself alone."""
    place = {piece.key: at for at, piece in enumerate(pieces)}
    counts = np.zeros((len(looks), len(pieces)))
    for row, look in enumerate(looks):
        for piece, count in look.counts:
            counts[row, place[piece.key]] = count
    nothing = np.zeros((len(looks), 0))
    return Rows(counts, values, known, nothing, nothing)


def lend_units(looks: Sequence[Look], unit: str) -> Floats:
    """How looks at other units than the one in question are off together, N x U."""
    others = sorted({look.unit for look in looks} - {unit})
    marks = [[UNIT_SD_SHARE * (look.unit == other) for other in others] for look in looks]
    return np.array(marks, float).reshape(len(looks), len(others))


def _is_recurrent(count: Count) -> bool:
    row = KINDS.get(count[0].kind_name)
    return row is not None and row.is_recurrent


def lend_kinds(
    looks: Sequence[Look], pieces: Sequence[Piece], field: Field, prior: Prior, spread: float
) -> Floats:
    """How kinds take part in what whole nets are off by, by what they cost at first sight."""
    costs = field.columns @ prior.medians[: field.columns.shape[1]]
    place = {piece.key: at for at, piece in enumerate(pieces)}
    above = np.zeros((len(looks), int(field.labels.max(initial=-1)) + 1))
    for row, look in enumerate(looks):
        for piece, count in look.counts if look.whole else ():
            at = place[piece.key]
            above[row, field.labels[at]] += count * costs[at]
    shares = above / np.maximum(above.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(spread * np.sqrt(shares))


def list_pieces(looks: Sequence[Look]) -> tuple[Piece, ...]:
    """Distinct pieces of some looks, kind by kind; the order of looks leaves no trace."""
    found = {piece.key: piece for look in looks for piece, _ in look.counts}
    return tuple(sorted(found.values(), key=lambda piece: (piece.label, piece.key)))


@dataclass(frozen=True)
class Batch:
    """Nets with their distinct pieces, before anything is known of them."""

    pieces: tuple[Piece, ...]
    size: int
    net: Ints
    piece: Ints
    count: Floats

    def nets(self, field: Field, rows: Sequence[str]) -> Nets:
        """The same nets over a field; ``rows`` are the keys of the pieces that rows show."""
        place = {key: at for at, key in enumerate(rows)}
        match = np.array([place.get(piece.key, -1) for piece in self.pieces], int)
        return Nets(field, match, self.size, self.net, self.piece, self.count)

    def sum_up(self, entries: Floats) -> Floats:
        """Sums over each net's entries."""
        return np.asarray(np.bincount(self.net, entries, self.size), float)

    def matrix(self) -> Floats:
        """Counts as a matrix, nets by pieces."""
        counts = np.zeros((self.size, len(self.pieces)))
        counts[self.net, self.piece] = self.count
        return counts


def make_batch(nets: Sequence[Sequence[Count]]) -> Batch:
    """Nets by their pieces, which stand kind by kind."""
    found: dict[str, int] = {}
    pieces: list[Piece] = []
    net, index, count = [], [], []
    for number, counts in enumerate(nets):
        for key, (piece, times) in merge_counts(counts).items():
            if key not in found:
                found[key] = len(pieces)
                pieces.append(piece)
            net.append(number)
            index.append(found[key])
            count.append(times)
    order = sorted(range(len(pieces)), key=lambda at: pieces[at].label)
    place = np.argsort(order)[np.array(index, int)]
    ordered = tuple(pieces[at] for at in order)
    return Batch(ordered, len(nets), np.array(net, int), place, np.array(count, float))


def _rates(pieces: Sequence[Piece], time_s: Floats | None) -> Floats:
    if time_s is None:
        return np.zeros((len(pieces), 0))
    moved = np.array([piece.size_bytes for piece in pieces])
    flops = np.maximum([piece.flops for piece in pieces], 0.1 * moved)
    work = np.maximum(np.column_stack([flops, moved]), 1.0)
    return np.asarray(np.log(work / np.maximum(time_s, 1e-12)[:, None]))


def choose_words(looks: Sequence[Look]) -> tuple[Words, Words]:
    """What is assumed of seconds and of joules before any look; more loosely of a stranger's."""
    if all(look.imported for look in looks):
        return IMPORTED_TIME, IMPORTED_ENERGY
    return TIME, ENERGY


def make_prior(
    field: Field, rows: Rows, words: Words, overheads: int = 0, idle_w: float = 0.0
) -> Prior:
    """Prior medians from shares: what a column would cost if it explained that much.

    Args:
        field: Pieces.
        rows: What was observed of them.
        words: Shares, spreads and their deviations.
        overheads: How many sources have an overhead of their own.
        idle_w: Of joules, power of the waiting device: what a second costs is told by it.
    """
    totals = rows.counts @ field.columns
    flops, *others = words["shares"]
    rates = totals.shape[1] - len(others) - overheads
    shares = [flops] * rates + others + [_OVERHEAD_SHARE] * overheads
    medians = np.array([_cost_share(column, rows.values) for column in totals.T]) * shares
    widths = [_SHARE_WIDTH] * len(medians)
    if idle_w:
        last = rates + len(others) - 1
        medians[last], widths[last] = _BUSY_TIMES * idle_w, _BUSY_WIDTH
    # A rate of which no row shows anything is taken as the others are.
    medians = np.where(medians > 0, medians, medians[:rates].max(initial=1e-30))
    scales = [_PLACE_SCALE] * field.places.shape[1] + [_RATE_SCALE] * field.rates.shape[1]
    widths = [*widths, *words["widths"], *([_SCALE_WIDTH] * len(scales))]
    return Prior(np.array([*medians, *words["spreads"], *scales]), np.array(widths), words["level"])


def _cost_share(column: Floats, values: Floats) -> float:
    """What a unit of a column would cost if it explained everything, in the middle."""
    used = column > 0
    return float(np.exp(np.log(values[used] / column[used]).mean())) if used.any() else 0.0
