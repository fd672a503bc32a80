"""What `additive` has learnt of a device, and what it says about nets given by their pieces.

All of it is plain numbers that go to JSON and back exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.estimators.additive.encode import Batch, Table, make_batch
from joulecast.estimators.additive.host_time import Clock, step_time
from joulecast.estimators.additive.pieces import Count, Piece
from joulecast.gp.conditioning import Learnt
from joulecast.gp.inference import Answer, ask, ask_means
from joulecast.gp.joint import Rows
from joulecast.gp.kernels import Floats
from joulecast.gp.queries import Nets

Json = dict[str, Any]

# Nobody knows what a FLOP costs in a precision that was never measured.
_STRANGE_SPREAD = 0.6
# Relative deviation of a layer that was not timed, for each e-fold of its tiles that is empty.
_EMPTY_SPREAD = 0.12
# Seconds of whole steps differ from sums of layers alone, and from hour to hour, by about this.
_OFF_TIME_SHARE = 0.03


@dataclass(frozen=True)
class Process:
    """A joint process and the pieces that its rows show."""

    pieces: tuple[Piece, ...]
    learnt: Learnt

    @property
    def keys(self) -> tuple[str, ...]:
        """The pieces' keys, in order."""
        return tuple(piece.key for piece in self.pieces)

    def to_dict(self, table: Table) -> Json:
        rows = self.learnt.rows
        # Of joules, the two columns before the overheads are the seconds.
        last = self.learnt.field.columns.shape[1] - len(table.overheads)
        entries = [[[int(at), float(row[at])] for at in np.flatnonzero(row)] for row in rows.counts]
        return {
            "pieces": [_write_piece(piece) for piece in self.pieces],
            "times_s": self.learnt.field.columns[:, last - 2 : last].sum(axis=1).tolist(),
            "rows": entries,
            "values": rows.values.tolist(),
            "known": rows.known.tolist(),
            "above": _write_rows(rows.above),
            "units": _write_rows(rows.units),
            "spread": self.learnt.spread,
            "level": self.learnt.level,
            "thetas": self.learnt.thetas.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Json, table: Table, timed: bool) -> Process:
        pieces = tuple(_read_piece(words) for words in data["pieces"])
        counts = np.zeros((len(data["rows"]), len(pieces)))
        for row, entries in enumerate(data["rows"]):
            for at, count in entries:
                counts[row, at] = count
        values, known = np.array(data["values"]), np.array(data["known"])
        above, units = (_read_rows(data[name], len(values)) for name in ("above", "units"))
        rows = Rows(counts, values, known, above, units)
        field = table.field(pieces, np.array(data["times_s"]) if timed else None)
        thetas = np.array(data["thetas"])
        return cls(pieces, Learnt(field, rows, data["level"], thetas, data["spread"]))


def _write_rows(matrix: Floats) -> list[Any]:
    """Rows that are not all zero, with their places."""
    return [[at, row.tolist()] for at, row in enumerate(matrix) if row.any()]


def _read_rows(entries: Sequence[Any], size: int) -> Floats:
    matrix = np.zeros((size, len(entries[0][1]) if entries else 0))
    for at, row in entries:
        matrix[at] = row
    return matrix


def _write_piece(piece: Piece) -> list[Any]:
    return [list(word) if isinstance(word, tuple) else word for word in vars(piece).values()]


def _read_piece(words: Sequence[Any]) -> Piece:
    named: Json = dict(zip(Piece.__dataclass_fields__, words, strict=True))
    return Piece(**{**named, "place": tuple(named["place"]), "calls": tuple(named["calls"])})


@dataclass(frozen=True)
class State:
    """A device as `additive` knows it.

    Attributes:
        form: ``graph`` where looks replay graphs and the host has a clock of its own, else
            ``eager``: one clock.
        idle_w: Power of the waiting device.
    """

    form: str
    idle_w: float
    table: Table
    time: Process
    energy: Process
    clock: Clock

    def to_dict(self) -> Json:
        return {
            "form": self.form,
            "idle_w": self.idle_w,
            "labels": list(self.table.labels),
            "rates": list(self.table.rates),
            "launch_s": self.table.launch_s,
            "time": self.time.to_dict(self.table),
            "energy": self.energy.to_dict(self.table),
            "clock": self.clock.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Json) -> State:
        table = Table(tuple(data["labels"]), tuple(data["rates"]), data["launch_s"])
        return cls(
            data["form"],
            data["idle_w"],
            table,
            Process.from_dict(data["time"], table, timed=False),
            Process.from_dict(data["energy"], table, timed=True),
            Clock.from_dict(data["clock"]),
        )

    @property
    def watts(self) -> float:
        """Joules that a second more on the device brings with it."""
        return float(np.exp(self.energy.learnt.thetas[:, len(self.table.rates) + 2]).mean())


@dataclass(frozen=True)
class NetworkTotals:
    """What a step of each of n nets takes.

    Attributes:
        device_j: The device's own joules; ``energy_j`` with waiting for the host.
        lean: Joules of each net that a second more on the device brings.
        batch: The nets' pieces, with what each costs alone, ``own_j``.
        scale: What pieces of each net cost inside it, over alone.
        parts: Where each net's variance comes from, in joules squared.
        duration_var: Variance of each net's seconds.
    """

    energy_j: Floats
    device_energy_j: Floats
    duration_s: Floats
    cov: Floats | None
    batch: Batch
    own_j: Floats
    scale: Floats
    lean: Floats
    parts: dict[str, Floats]
    duration_var: Floats

    @property
    def var(self) -> Floats:
        """Variance of each net's joules."""
        return np.asarray(sum(self.parts.values()))


def ask_times(table: Table, time: Process, batch: Batch, joint: bool = False) -> Answer:
    """Device seconds of nets."""
    return ask(time.learnt, batch.nets(table.field(batch.pieces), time.keys), joint)


@dataclass(frozen=True)
class _Eager:
    """Steps of nets on both clocks.

    Attributes:
        host: Seconds that issuing takes, and how far that may be off, n x 2.
        by_host: Slope of ``time_s`` by the host's seconds; ``by_device`` by the device's.
        held: 1 where the device's own joules hold the idle power of its busy seconds.
    """

    energy_j: Floats
    time_s: Floats
    host: Floats
    launches: Floats
    by_host: Floats
    by_device: Floats
    held: float


def _add_waiting(
    state: State,
    batch: Batch,
    nets: Sequence[Sequence[Count]],
    between: Sequence[float],
    busy_s: Floats,
    device_energy_j: Floats,
) -> _Eager:
    """What waiting for the host adds to the device's own seconds and joules."""
    calls = between or (0.0,) * len(nets)
    host = np.array(list(map(state.clock.issue, nets, calls))).reshape(len(nets), 2)
    launches = batch.sum_up(batch.count * np.array([p.launches for p in batch.pieces])[batch.piece])
    time_s, by_host, by_device = step_time(host[:, 0], busy_s + state.clock.gap_s * launches)
    if state.form == "eager":
        time_s, by_host, by_device = busy_s, np.zeros(len(nets)), np.ones(len(nets))
    # Only of graphs does the device's own part hold the idle power of its busy seconds.
    held = float(state.form == "graph")
    energy_j = device_energy_j + state.idle_w * (time_s - held * busy_s)
    return _Eager(energy_j, time_s, host, launches, by_host, by_device, held)


def mean_nets(
    state: State, nets: Sequence[Sequence[Count]], between: Sequence[float] = ()
) -> Floats:
    """Joules of nets as ``total_nets`` says them, twice as fast: without any doubt."""
    batch = make_batch(nets)
    asked = batch.nets(state.table.field(batch.pieces), state.time.keys)
    busy_s, own_s = ask_means(state.time.learnt, asked)
    asked = batch.nets(state.table.field(batch.pieces, own_s), state.energy.keys)
    device_energy_j, _ = ask_means(state.energy.learnt, asked)
    return _add_waiting(state, batch, nets, between, busy_s, device_energy_j).energy_j


def total_nets(
    state: State,
    nets: Sequence[Sequence[Count]],
    off_share: float,
    joint: bool = False,
    between: Sequence[float] = (),
) -> NetworkTotals:
    """Joules and seconds of nets given by their pieces.

    Args:
        state: What was learnt.
        nets: Pieces of each net.
        off_share: How far sums may be off.
        joint: Whether the nets' covariance is wanted.
        between: Calls of each net's host that stand in no piece; none where left out.
    """
    batch = make_batch(nets)
    busy = ask_times(state.table, state.time, batch, joint)
    field = state.table.field(batch.pieces, busy.own)
    asked = batch.nets(field, state.energy.keys)
    device = ask(state.energy.learnt, asked, joint)
    steps = _add_waiting(state, batch, nets, between, busy.total, device.total)
    energy_j, time_s, held = steps.energy_j, steps.time_s, steps.held
    by_host, by_device, launches = steps.by_host, steps.by_device, steps.launches
    lean = state.watts + state.idle_w * (by_device - held)
    narrow = _spread_narrow(state, batch, busy)
    narrow_var = batch.sum_up((batch.count * narrow[batch.piece]) ** 2)
    strange, unseen = _own_doubts(state, batch, asked, device)
    host_sd = state.idle_w * by_host * steps.host[:, 1]
    gap_sd = state.idle_w * by_device * held * state.clock.gap_sd_s * launches
    parts = {
        "kinds never measured": strange + unseen,
        "sizes between those measured": np.maximum(device.var - unseen, 0.0),
        "layers not timed": lean**2 * (busy.var + narrow_var),
        "host": host_sd**2 + gap_sd**2,
        "noise, and that layers do not quite add up": (off_share * energy_j) ** 2,
    }
    cov = None
    if joint:
        assert device.cov is not None and busy.cov is not None
        spread = batch.matrix() * narrow
        cov = device.cov + (busy.cov + spread @ spread.T) * np.outer(lean, lean)
        cov += np.outer(host_sd, host_sd) + np.outer(gap_sd, gap_sd)
        cov += np.outer(np.sqrt(strange), np.sqrt(strange))
    by_device_var = busy.var + narrow_var + (held * state.clock.gap_sd_s * launches) ** 2
    off_var = (off_share**2 + _OFF_TIME_SHARE**2) * time_s**2
    time_var = by_device**2 * by_device_var + (by_host * steps.host[:, 1]) ** 2 + off_var
    own_j = device.own + (1.0 - held) * state.idle_w * busy.own
    device_energy_j = device.total if held else energy_j
    scale = device.total / batch.sum_up(batch.count * device.own[batch.piece])
    return NetworkTotals(
        energy_j, device_energy_j, time_s, cov, batch, own_j, scale, lean, parts, time_var
    )


def _spread_narrow(state: State, batch: Batch, busy: Answer) -> Floats:
    """Seconds by which each narrow layer that was not timed may be off besides.

    A process of smooth residuals is too sure of layers whose tiles are mostly empty.
    """
    timed = set(state.time.keys)
    empty = [
        0.0 if piece.key in timed or not piece.flops else math.log(piece.padded_flops / piece.flops)
        for piece in batch.pieces
    ]
    return np.asarray(_EMPTY_SPREAD * np.array(empty) * busy.own)


def _own_doubts(state: State, batch: Batch, asked: Nets, device: Answer) -> tuple[Floats, Floats]:
    """Variance from precisions that nobody measured, and from kinds that nobody measured."""
    known = {piece.label for piece in state.energy.pieces}
    rates = {piece.rate for piece in state.energy.pieces}
    new_rate = np.array([piece.rate not in rates for piece in batch.pieces], float)
    new_kind = np.flatnonzero([piece.label not in known for piece in batch.pieces])
    costs = batch.count * device.own[batch.piece]
    strange = batch.sum_up(costs * new_rate[batch.piece])
    own_var = np.zeros(len(batch.pieces))
    if len(new_kind):
        own_var[new_kind] = ask(state.energy.learnt, asked.alone(new_kind)).var
    unseen = batch.sum_up(batch.count**2 * own_var[batch.piece])
    return np.square(_STRANGE_SPREAD * strange), np.minimum(unseen, device.var)
