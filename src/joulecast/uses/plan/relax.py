"""A plan without a clock: how tasks would share machines if only sums mattered.

    min  Σ extra·x + Σ awake_w·span      x: share of a task on a machine, 0 to 1, all shares of a
                                         task together 1 (or less, for a total worth)
    load(d) = load(d-1) + Σ busy·x       over tasks due at d: what must be over by each deadline,
    load(d) <= d - first                 and only so much time is there until then
    span >= load(last)                   busy: duration times what it has of a machine (packing.py)
    Σ drawn·x + awake_w·span <= charge - reserve + all that its charger could give
    level(k) <= level(k-1) + given(k) - flow(k)     between a charger's coming and going, and never
    Σ flow = Σ drawn·x + awake_w·span               above full; what is due by k has flown by then

Every plan satisfies this, so its minimum is a bound on all plans; and its x, nearly whole where
tasks are many, say where tasks belong. A linear program, for HiGHS in scipy; what is due adds up
along the deadlines, so that its matrix has a few entries a row however many there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecast.uses.plan.packing import list_shares
from joulecast.uses.plan.problem import Battery, Machine, Problem, Task
from joulecast.uses.plan.replay import find_charger

_LEAST_SHARE = 1e-4
Pair = tuple[Task, Machine]
Row = dict[int, float]


@dataclass(frozen=True)
class Relaxed:
    """A bound on the joules of any plan, and on which machines each task has a share."""

    bound_j: float
    liked: dict[str, tuple[str, ...]]


@dataclass
class _Program:
    """A linear program as it is written down: prices and ends of columns, limits of rows."""

    prices: list[float] = field(default_factory=list)
    ends: list[tuple[float, float]] = field(default_factory=list)
    at_most: list[tuple[Row, float]] = field(default_factory=list)
    zero: list[Row] = field(default_factory=list)

    def add(self, price: float, most: float, least: float = 0.0) -> int:
        """A column between two ends: its number."""
        self.prices.append(price)
        self.ends.append((least, most))
        return len(self.prices) - 1

    def solve(self) -> tuple[float, Any] | None:
        """Its least value and its columns; None where nothing satisfies it."""
        from scipy.optimize import linprog

        # HiGHS works to absolute tolerances: numbers of about one suit it.
        scale = max(self.prices) or 1.0
        rows = [_scale(row, limit) for row, limit in self.at_most]
        equal = [_scale(row, 0.0) for row in self.zero]
        found = linprog(
            np.array(self.prices) / scale,
            A_ub=self._matrix([row for row, _ in rows]),
            b_ub=[limit for _, limit in rows],
            A_eq=self._matrix([row for row, _ in equal]) if equal else None,
            b_eq=[0.0] * len(equal) if equal else None,
            bounds=self.ends,
            method="highs",
        )
        return (float(found.fun) * scale, found.x) if found.status == 0 else None

    def _matrix(self, rows: list[Row]) -> Any:
        from scipy.sparse import csr_array

        cells = [(at, *cell) for at, row in enumerate(rows) for cell in row.items()]
        places, columns, values = zip(*cells, strict=True)
        return csr_array((values, (places, columns)), shape=(len(rows), len(self.prices)))


def relax(problem: Problem, worth: float, horizon_s: float) -> Relaxed | None:
    """What plans that run at least this worth cannot beat; None where there is no such plan."""
    program, pairs = _Program(), list(_list_pairs(problem))
    shares = [program.add(task.costs[machine.name].extra_j, 1.0) for task, machine in pairs]
    by_task: dict[str, Row] = {}
    by_machine: dict[str, dict[int, Task]] = {machine.name: {} for machine in problem.machines}
    for column, (task, machine) in zip(shares, pairs, strict=True):
        by_task.setdefault(task.name, {})[column] = 1.0
        by_machine[machine.name][column] = task
    program.at_most += [(row, 1.0) for row in by_task.values()]
    worths = {at: -float(task.priority) for at, (task, _) in zip(shares, pairs, strict=True)}
    program.at_most.append((worths, -worth))
    for machine in problem.machines:
        if by_machine[machine.name]:
            _add_machine(program, machine, by_machine[machine.name], horizon_s)
    found = program.solve() if pairs else None
    if found is None:
        return None
    return Relaxed(found[0] * (1 - 1e-7), _list_liked(pairs, found[1]))


def _list_pairs(problem: Problem) -> Iterator[Pair]:
    for task in problem.tasks:
        for name in task.costs:
            yield task, problem.machine[name]


def _add_machine(
    program: _Program, machine: Machine, here: dict[int, Task], horizon_s: float
) -> None:
    """What holds for the sums of one machine; ``here`` are its tasks by their columns."""
    span = program.add(machine.awake_w, horizon_s)
    costs = {at: task.costs[machine.name] for at, task in here.items()}
    for shares in list_shares(machine, list(costs.values())):
        sized = zip(costs.items(), shares, strict=True)
        busy = {at: cost.duration_s * share for (at, cost), share in sized}
        last = _add_loads(program, here, busy, horizon_s)
        program.at_most.append(({last: 1.0, span: -1.0}, 0.0))
    if machine.battery:
        drawn = {at: cost.extra_w * cost.duration_s for at, cost in costs.items()}
        given_j = sum(
            w.power_w * max(0.0, min(w.to_s, horizon_s) - w.from_s) for w in machine.windows
        )
        room_j = machine.battery.charge_j - machine.battery.reserve_j + given_j
        # With nothing on it a machine owes its reserve to nobody.
        program.at_most.append(({**drawn, span: machine.awake_w}, max(0.0, room_j)))
        if machine.windows:
            _add_levels(program, machine, machine.battery, here, drawn, span, horizon_s)


def _add_loads(program: _Program, here: dict[int, Task], busy: Row, horizon_s: float) -> int:
    """Seconds of work that are due by each deadline; the column of all of them."""
    due: dict[float, Row] = {}
    for at, task in here.items():
        due.setdefault(min(task.deadline_s, horizon_s), {})[at] = -busy[at]
    first_s = min(task.release_s for task in here.values())
    load = -1
    for date_s, row in sorted(due.items()):
        before, load = load, program.add(0.0, max(0.0, date_s - first_s))
        program.zero.append({**row, load: 1.0, **({before: -1.0} if before >= 0 else {})})
    return load


def _add_levels(
    program: _Program,
    machine: Machine,
    battery: Battery,
    here: dict[int, Task],
    drawn: Row,
    span: int,
    horizon_s: float,
) -> None:
    """What flows out between a charger's coming and going, and what the battery holds then."""
    edges = {0.0, horizon_s, *(edge for w in machine.windows for edge in (w.from_s, w.to_s))}
    spans = list(itertools.pairwise(sorted(edge for edge in edges if edge <= horizon_s)))
    most_w = machine.awake_w + machine.at_once * max(
        task.costs[machine.name].extra_w for task in here.values()
    )
    # Asleep, it may hold less than its reserve.
    least_j, before = min(battery.reserve_j, battery.charge_j), -1
    flows = []
    for begin_s, end_s in spans:
        flows.append(program.add(0.0, most_w * (end_s - begin_s)))
        level = program.add(0.0, battery.capacity_j, least_j)
        given_j = find_charger(battery, (begin_s + end_s) / 2) * (end_s - begin_s)
        held_j, known = (battery.charge_j, {}) if before < 0 else (0.0, {before: -1.0})
        program.at_most.append(({level: 1.0, flows[-1]: 1.0, **known}, held_j + given_j))
        before = level
    program.zero.append({**drawn, span: machine.awake_w, **dict.fromkeys(flows, -1.0)})
    for at, (begin_s, end_s) in enumerate(spans):
        due = {one: drawn[one] for one, task in here.items() if task.deadline_s <= end_s}
        late = {one: drawn[one] for one, task in here.items() if task.release_s >= begin_s}
        program.at_most.append(({**due, **dict.fromkeys(flows[: at + 1], -1.0)}, 0.0))
        program.at_most.append(({**late, **dict.fromkeys(flows[at:], -1.0)}, 0.0))


def _scale(row: Row, limit: float) -> tuple[Row, float]:
    """A row whose largest number is one."""
    size = max(map(abs, row.values()), default=0.0) or 1.0
    limit = limit / size if math.isfinite(limit) else limit
    return {at: value / size for at, value in row.items()}, limit


def _list_liked(pairs: list[Pair], shares: Any) -> dict[str, tuple[str, ...]]:
    liked: dict[str, tuple[str, ...]] = {}
    for (task, machine), share in zip(pairs, shares, strict=False):
        if share > _LEAST_SHARE:
            liked[task.name] = (*liked.get(task.name, ()), machine.name)
    return liked
