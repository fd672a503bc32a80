"""Insert tasks into a schedule one by one, quickly: first solutions and repaired ones.

A task goes where it adds least energy, then ends first, at one of the few times that matter: the
edges of a gap, of a charging window, and of the time that the device is awake anyway.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping

from joulecast.uses.plan.problem import Assignment, PlanDevice, Problem, Schedule, Task
from joulecast.uses.plan.replay import STRICT

_INSTANT_S = 1e-7
_ANY_TIME: Mapping[str, float] = {}


class PartialSchedule:
    """A valid schedule that can be changed; it checks what the replay checks, but incrementally."""

    def __init__(self, problem: Problem, schedule: Iterable[Assignment] = ()) -> None:
        self.problem = problem
        self._rows: dict[str, list[Assignment]] = {device.name: [] for device in problem.devices}
        self._energy_j = dict.fromkeys(self._rows, 0.0)
        for one in schedule:
            self.add(one)

    @property
    def energy_j(self) -> float:
        """Return the energy of all devices while awake."""
        return sum(self._energy_j.values())

    @property
    def schedule(self) -> Schedule:
        """Return all assignments, device by device."""
        return tuple(one for row in self._rows.values() for one in row)

    def copy(self) -> PartialSchedule:
        """Return a copy that can be changed on its own."""
        new = PartialSchedule(self.problem)
        new._rows, new._energy_j = dict(self._rows), dict(self._energy_j)
        return new

    def list_rows(self) -> dict[str, list[Assignment]]:
        """Return the assignments of each device that is used, by start."""
        return {name: row for name, row in self._rows.items() if row}

    def add(self, new: Assignment) -> None:
        """Add an assignment that fits."""
        # A copy may hold the same row: it is replaced, not changed.
        row = self._rows[new.device].copy()
        insort(row, new, key=lambda one: one.start_s)
        self._set_row(new.device, row)

    def remove(self, tasks: Collection[str]) -> None:
        """Remove tasks."""
        for name, row in self._rows.items():
            kept = [one for one in row if one.task not in tasks]
            if len(kept) < len(row):
                self._set_row(name, kept)

    def insert(self, task: Task, not_before_s: Mapping[str, float] = _ANY_TIME) -> bool:
        """Insert a task where it adds least energy; return False where it fits nowhere.

        Args:
            task: What to insert.
            not_before_s: When devices may start it at the earliest.
        """
        best: tuple[float, float] | None = None
        chosen = None
        for name, cost in sorted(task.costs.items(), key=lambda pair: pair[1].extra_j):
            # This device and all later ones add at least their extra energy.
            if best is not None and cost.extra_j > best[0]:
                break
            release_s = max(task.release_s, not_before_s.get(name, 0.0))
            for added_j, end_s, start_s in self._rank_starts(name, task, release_s):
                if best is not None and (added_j, end_s) >= best:
                    break
                new = Assignment(task.name, name, start_s, end_s)
                if self._keeps_charge(new):
                    best, chosen = (added_j, end_s), new
                    break
        if chosen is not None:
            self.add(chosen)
        return chosen is not None

    def fits(self, new: Assignment) -> bool:
        """Return whether an assignment is valid beside the others."""
        task = self.problem.task[new.task]
        starts = self._list_start_ranges(new.device, task, task.release_s)
        in_range = any(
            low_s - _INSTANT_S <= new.start_s <= high_s + _INSTANT_S for low_s, high_s in starts
        )
        return in_range and self._keeps_charge(new)

    def _set_row(self, name: str, row: list[Assignment]) -> None:
        span_s = max(one.end_s for one in row) - row[0].start_s if row else 0.0
        extra_j = sum(self.problem.task[one.task].costs[name].extra_j for one in row)
        self._rows[name] = row
        self._energy_j[name] = self.problem.device[name].awake_w * span_s + extra_j

    def _rank_starts(
        self, name: str, task: Task, release_s: float
    ) -> list[tuple[float, float, float]]:
        """Return (added energy, end, start) for the start times that matter, best first."""
        device, row, cost = self.problem.device[name], self._rows[name], task.costs[name]
        first_s = row[0].start_s if row else math.inf
        last_s = max((one.end_s for one in row), default=-math.inf)
        times_s = {first_s, last_s - cost.duration_s}
        for window in device.windows:
            times_s |= {window.start_s, window.end_s, window.end_s - cost.duration_s}
        found = []
        for low_s, high_s in self._list_start_ranges(name, task, release_s):
            inside = {at_s for at_s in times_s if low_s < at_s < high_s}
            for start_s in inside | ({low_s, high_s} if high_s < math.inf else {low_s}):
                end_s = start_s + cost.duration_s
                span_s = max(last_s, end_s) - min(first_s, start_s)
                longer_s = span_s - (last_s - first_s) if row else span_s
                found.append((cost.extra_j + device.awake_w * longer_s, end_s, start_s))
        return sorted(found)

    def _list_start_ranges(
        self, name: str, task: Task, release_s: float
    ) -> Iterator[tuple[float, float]]:
        """Yield from when to when a task may start, as far as lanes, memory and times go."""
        cost = task.costs[name]
        for from_s, to_s in _list_gaps(self.problem, self._rows[name], name, cost.memory_bytes):
            low_s = max(from_s, release_s)
            high_s = min(to_s, task.deadline_s + _INSTANT_S) - cost.duration_s
            if low_s <= high_s + _INSTANT_S:
                yield low_s, max(low_s, high_s)
            if to_s >= task.deadline_s:
                break

    def _keeps_charge(self, new: Assignment) -> bool:
        """Return whether the battery stays above its reserve with one more assignment."""
        device, row = self.problem.device[new.device], (*self._rows[new.device], new)
        battery = device.battery
        if battery is None:
            return True
        first_s, last_s = min(one.start_s for one in row), max(one.end_s for one in row)
        events = [(first_s, device.awake_w - device.asleep_w)]
        for one in row:
            extra_w = self.problem.task[one.task].costs[device.name].extra_w
            events += ((one.start_s, extra_w), (one.end_s, -extra_w))
        for window in battery.windows:
            events += ((window.start_s, -window.power_w), (window.end_s, window.power_w))
        least_j = battery.reserve_j - STRICT * battery.capacity_j
        charge_j, power_w, before_s = battery.charge_j, device.asleep_w, 0.0
        for at_s, change_w in sorted(events):
            if at_s > last_s:
                break
            charge_j = min(battery.capacity_j, charge_j - power_w * (at_s - before_s))
            if charge_j < least_j and at_s >= first_s:
                return False
            power_w, before_s = power_w + change_w, at_s
        return True


def insert_rest(problem: Problem, schedule: Schedule) -> Schedule:
    """Insert the tasks that do not run yet, by priority and deadline."""
    partial, running = PartialSchedule(problem, schedule), {one.task for one in schedule}
    for task in sorted(problem.tasks, key=lambda task: (-task.priority, task.deadline_s)):
        if task.name not in running:
            partial.insert(task)
    return partial.schedule


def repair(problem: Problem, schedule: Schedule) -> Schedule:
    """Keep what fits of a schedule in order of starts, and insert the rest anew."""
    partial = PartialSchedule(problem)
    for one in sorted(schedule, key=lambda one: one.start_s):
        if partial.fits(one):
            partial.add(one)
    return insert_rest(problem, partial.schedule)


def _list_gaps(
    problem: Problem, row: list[Assignment], name: str, size_bytes: float
) -> Iterator[tuple[float, float]]:
    """Yield from when to when a device has a lane and this much memory left."""
    device: PlanDevice = problem.device[name]
    if size_bytes > device.memory_bytes:
        return
    events = []
    for one in row:
        used_bytes = problem.task[one.task].costs[name].memory_bytes
        events += [(one.start_s, 1, used_bytes), (one.end_s, -1, -used_bytes)]
    events.sort()
    begin_s, count, used = 0.0, 0, 0.0
    is_open = True
    for at_s, change, change_bytes in events:
        count, used = count + change, (used + change_bytes if count + change else 0.0)
        has_room = count < device.max_parallel and used + size_bytes <= device.memory_bytes
        if is_open and not has_room:
            if at_s - begin_s > _INSTANT_S:
                yield begin_s, at_s
        elif has_room and not is_open:
            begin_s = at_s
        is_open = has_room
    yield begin_s, math.inf
