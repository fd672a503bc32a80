"""Who runs where, machine by machine, to place tasks on quickly: first plans, mended, better ones.

A task goes where it adds least energy, there as early as can be, at one of the few moments that
matter: when it is released, when others end or begin, when a charger comes or goes. Whether it fits
there is asked of its own machine only; a replay says the same (the tests compare them).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection
from typing import NamedTuple

from joulecast.uses.plan.problem import Battery, Cost, Machine, Problem, Slot, Slots, Task
from joulecast.uses.plan.replay import STRICT

NOTHING: frozenset[str] = frozenset()
# Seconds that are rounding.
_INSTANT_S = 1e-7


class Stay(NamedTuple):
    """A slot on a known machine; they sort as they begin. A quarter of a Slot's making."""

    start_s: float
    end_s: float
    task: str


Row = list[Stay]


class Board:
    """A plan that is changed: rows of stays, and what each row's machine draws."""

    def __init__(self, problem: Problem, slots: Slots = ()) -> None:
        self.problem = problem
        self._rows: dict[str, Row] = {machine.name: [] for machine in problem.machines}
        self._energy_j = {machine.name: 0.0 for machine in problem.machines}
        self._open = {m.name: [(0.0, math.inf, 0.0)] for m in problem.machines}
        self._closed_s: dict[str, float] = {}
        for slot in slots:
            self.put(slot.machine, Stay(slot.start_s, slot.end_s, slot.task))

    def copy(self) -> Board:
        """One that can be changed while this one stays."""
        new = Board.__new__(Board)
        new.problem, new._rows, new._open = self.problem, dict(self._rows), dict(self._open)
        new._energy_j, new._closed_s = dict(self._energy_j), self._closed_s
        return new

    @property
    def energy_j(self) -> float:
        """What all machines draw while awake."""
        return sum(self._energy_j.values())

    def list_slots(self) -> Slots:
        """The plan, machine by machine."""
        rows = self._rows.items()
        return tuple(Slot(one.task, name, *one[:2]) for name, row in rows for one in row)

    def list_tasks(self, machine: str) -> list[str]:
        """Who runs on a machine, as they begin."""
        return [one.task for one in self._rows[machine]]

    def list_used(self) -> list[str]:
        """Machines that have something to do."""
        return [name for name, row in self._rows.items() if row]

    def put(self, machine: str, stay: Stay) -> None:
        """One more."""
        # Rows may be another board's too: they are replaced, not changed.
        row = self._rows[machine].copy()
        insort(row, stay)
        self._set(machine, row)

    def close_until(self, closed_s: dict[str, float]) -> None:
        """Nobody finds a place on these machines before a moment; on others anywhere."""
        changed = {*self._closed_s, *closed_s}
        self._closed_s = closed_s
        for name in changed:
            self._set(name, self._rows[name])

    def take_out(self, tasks: Collection[str]) -> set[str]:
        """These no longer run."""
        gone = set(tasks)
        for name, row in self._rows.items():
            if any(one.task in gone for one in row):
                self._set(name, [one for one in row if one.task not in gone])
        return gone

    def _set(self, name: str, row: Row) -> None:
        machine = self.problem.machine[name]
        costs = (self.problem.task[one.task].costs[name] for one in row)
        span_s = max(one.end_s for one in row) - row[0].start_s if row else 0.0
        self._rows[name] = row
        self._energy_j[name] = machine.awake_w * span_s + sum(cost.extra_j for cost in costs)
        self._open[name] = _list_open(self.problem, machine, row, self._closed_s.get(name, 0.0))

    def place(self, task: Task) -> bool:
        """One more where it fits best; False where it fits nowhere."""
        found = self.find_place(task)
        if found is not None:
            self.put(*found)
        return found is not None

    def fits(self, machine: str, stay: Stay) -> bool:
        """Whether somebody may run on a machine then, beside those that are there."""
        task, there = self.problem.task[stay.task], self.problem.machine[machine]
        gaps = self._list_gaps(there, task, NOTHING)
        return any(
            from_s - _INSTANT_S <= stay.start_s <= to_s + _INSTANT_S for from_s, to_s in gaps
        ) and self._holds(there, self._rows[machine], stay, NOTHING)

    def find_place(self, task: Task, ignored: Collection[str] = NOTHING) -> tuple[str, Stay] | None:
        """Where a task fits, at least energy, then soonest; None where nowhere.

        Args:
            task: What shall run too.
            ignored: What does not matter: ``deadline``, ``memory``, ``battery``.
        """
        best: tuple[float, float, str, Stay] | None = None
        for name, cost in sorted(task.costs.items(), key=lambda pair: pair[1].extra_j):
            # Nothing on this machine can be better: others only take more above their waking.
            if best is not None and cost.extra_j > best[0]:
                break
            machine, row = self.problem.machine[name], self._rows[name]
            if self._lacks_charge(machine, cost, ignored):
                continue
            for added_j, end_s, stay in self._list_places(machine, row, task, ignored):
                if best is not None and (added_j, end_s) >= best[:2]:
                    break
                if self._holds(machine, row, stay, ignored):
                    best = (added_j, end_s, name, stay)
                    break
        return best[2:] if best else None

    def _list_places(
        self, machine: Machine, row: Row, task: Task, ignored: Collection[str]
    ) -> list[tuple[float, float, Stay]]:
        """What each moment that matters would add in joules, and its end; the best first."""
        cost = task.costs[machine.name]
        first_s = row[0].start_s if row else math.inf
        last_s = max(one.end_s for one in row) if row else -math.inf
        span_s = last_s - first_s if row else 0.0
        # Where it begins with the others or ends with them, the machine is awake no longer.
        moments = {first_s, last_s - cost.duration_s}
        for window in machine.windows:
            moments |= {window.from_s, window.to_s, window.to_s - cost.duration_s}
        places = []
        for from_s, to_s in self._list_gaps(machine, task, ignored):
            inside = {at_s for at_s in moments if from_s < at_s < to_s}
            for at_s in inside | {from_s, to_s} if to_s < math.inf else inside | {from_s}:
                end_s = at_s + cost.duration_s
                longer_s = max(last_s, end_s) - min(first_s, at_s) - span_s
                added_j = cost.extra_j + machine.awake_w * longer_s
                places.append((added_j, end_s, Stay(at_s, end_s, task.name)))
        places.sort()
        return places

    def _list_gaps(
        self, machine: Machine, task: Task, ignored: Collection[str]
    ) -> list[tuple[float, float]]:
        """From when to when a task may begin, beside those that are there."""
        cost = task.costs[machine.name]
        due_s = math.inf if "deadline" in ignored else task.deadline_s
        room = math.inf if "memory" in ignored else machine.memory_bytes - cost.memory_bytes
        gaps, from_s, to_s = [], -math.inf, -math.inf
        for begin_s, end_s, used in (*self._open[machine.name], (math.inf, math.inf, 0.0)):
            if used > room:
                continue
            if begin_s > to_s + _INSTANT_S or begin_s == math.inf:
                latest_s = min(to_s, due_s + _INSTANT_S) - cost.duration_s
                earliest_s = max(from_s, task.release_s)
                if earliest_s <= latest_s + _INSTANT_S:
                    gaps.append((earliest_s, max(earliest_s, latest_s)))
                if begin_s >= due_s:
                    break
                from_s = begin_s
            to_s = end_s
        return gaps

    def _holds(self, machine: Machine, row: Row, stay: Stay, ignored: Collection[str]) -> bool:
        if machine.battery is None or "battery" in ignored:
            return True
        return self._keeps_charge(machine, machine.battery, row, stay)

    def _lacks_charge(self, machine: Machine, cost: Cost, ignored: Collection[str]) -> bool:
        """Whether even all that a battery has and ever gets is too little for one more."""
        battery = machine.battery
        if battery is None or "battery" in ignored:
            return False
        room_j = battery.charge_j - battery.reserve_j + STRICT * battery.capacity_j
        room_j += sum(w.power_w * (w.to_s - w.from_s) for w in battery.windows)
        return self._energy_j[machine.name] + cost.extra_j > room_j

    def _keeps_charge(self, machine: Machine, battery: Battery, row: Row, stay: Stay) -> bool:
        """Whether a battery stays above its reserve with one more on its machine."""
        tasks, name = self.problem.task, machine.name
        first_s = min(row[0].start_s, stay.start_s) if row else stay.start_s
        events = [(first_s, machine.awake_w - machine.asleep_w)]
        for one in (*row, stay):
            extra_w = tasks[one.task].costs[name].extra_w
            events += ((one.start_s, extra_w), (one.end_s, -extra_w))
        for window in battery.windows:
            events += ((window.from_s, -window.power_w), (window.to_s, window.power_w))
        events.sort()
        last_s = max(stay.end_s, max(one.end_s for one in row) if row else 0.0)
        least_j = battery.reserve_j - STRICT * battery.capacity_j
        held_j, draw_w, before_s = battery.charge_j, machine.asleep_w, 0.0
        for at_s, more_w in events:
            if at_s > last_s:
                break
            held_j = min(battery.capacity_j, held_j - draw_w * (at_s - before_s))
            if held_j < least_j and at_s >= first_s:
                return False
            draw_w, before_s = draw_w + more_w, at_s
        return True


def _list_open(
    problem: Problem, machine: Machine, row: Row, closed_s: float
) -> list[tuple[float, float, float]]:
    """From when to when one more could run, and the memory that is used then."""
    if machine.at_once == 1:
        ends = [closed_s, *(one.end_s for one in row)]
        begins = [*(one.start_s for one in row), math.inf]
        pairs = zip(ends, begins, strict=True)
        return [(from_s, to_s, 0.0) for from_s, to_s in pairs if to_s - from_s > _INSTANT_S]
    events = []
    for one in row:
        size = problem.task[one.task].costs[machine.name].memory_bytes
        events += [(one.start_s, 1, size), (one.end_s, -1, -size)]
    events.sort()
    spans, before_s, count, used = [], closed_s, 0, 0.0
    for at_s, more, size in (*events, (math.inf, 0, 0.0)):
        if count < machine.at_once and at_s - before_s > _INSTANT_S:
            spans.append((before_s, at_s, used if count else 0.0))
        before_s, count, used = max(at_s, closed_s), count + more, used + size
    return spans
