"""Replay a schedule event by event and report every violated constraint.

The replay shares no code with the solver's model. Between two events (a task starts or ends, a
charging window opens or closes) every power is constant, so the charge is a straight line, clipped
where the battery is full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from joulecast.features.plan.problem import Assignment, Battery, PlanDevice, Problem, Task

# Shares of a capacity that may be missing. The solver counts in integers and lies in between: what
# passes the strict replay is valid for the solver, and what is valid for the solver is harmless.
HARMLESS, STRICT = 3e-6, 5e-7
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class ChargePoint:
    """A battery's charge at a time; ``is_full`` where it cannot take more."""

    at_s: float
    charge_j: float
    is_full: bool = False


@dataclass(frozen=True)
class Violation:
    """A constraint that does not hold.

    Attributes:
        kind: ``battery``, ``deadline``, ``release``, ``memory``, ``parallel`` or ``tasks``.
        missing: By how much: joules, seconds, bytes or tasks.
        full_s: For a battery: when it was last full, 0 if never.
    """

    kind: str
    device: str
    at_s: float
    missing: float
    task: str = ""
    full_s: float = 0.0


@dataclass(frozen=True)
class DeviceRun:
    """What a device does in a schedule.

    Attributes:
        charge: State of charge from now to the end of the last task; empty on mains power.
        energy_j: Energy while awake.
        idle_j: The part of it that flows between tasks.
        shared_j: Idle energy saved by running tasks in parallel.
    """

    device: str
    assignments: tuple[Assignment, ...] = ()
    charge: tuple[ChargePoint, ...] = ()
    energy_j: float = 0.0
    idle_j: float = 0.0
    shared_j: float = 0.0
    violations: tuple[Violation, ...] = ()

    def charge_at(self, at_s: float) -> float | None:
        """Return the charge in joules at a time; None on mains power."""
        for one, two in pairwise(self.charge):
            if one.at_s <= at_s <= two.at_s:
                share = (at_s - one.at_s) / (two.at_s - one.at_s)
                return one.charge_j + share * (two.charge_j - one.charge_j)
        return self.charge[-1].charge_j if self.charge else None


@dataclass(frozen=True)
class Replay:
    """What all devices do."""

    runs: Mapping[str, DeviceRun]
    violations: tuple[Violation, ...]

    @property
    def energy_j(self) -> float:
        """Return the energy of all devices while awake."""
        return sum(run.energy_j for run in self.runs.values())


def replay(
    problem: Problem, schedule: Iterable[Assignment], tolerance_share: float = HARMLESS
) -> Replay:
    """Replay a schedule; this share of a battery's capacity may be missing."""
    by_device: dict[str, list[Assignment]] = {device.name: [] for device in problem.devices}
    counts: dict[str, int] = {}
    for one in schedule:
        by_device[one.device].append(one)
        counts[one.task] = counts.get(one.task, 0) + 1
    runs = {
        device.name: replay_device(problem, device, by_device[device.name], tolerance_share)
        for device in problem.devices
    }
    twice = [Violation("tasks", "", 0.0, 1.0, name) for name, count in counts.items() if count > 1]
    return Replay(runs, (*(one for run in runs.values() for one in run.violations), *twice))


def replay_device(
    problem: Problem,
    device: PlanDevice,
    assignments: Sequence[Assignment],
    tolerance_share: float = HARMLESS,
) -> DeviceRun:
    """Replay one device."""
    battery = device.battery
    charge = [ChargePoint(0.0, battery.charge_j)] if battery else []
    ordered = tuple(sorted(assignments, key=lambda one: (one.start_s, one.end_s, one.task)))
    if not ordered:
        return DeviceRun(device.name, (), tuple(charge))
    first_s, last_s = ordered[0].start_s, max(one.end_s for one in ordered)
    violations = [v for one in ordered for v in _check_times(device, problem.task[one.task], one)]
    energy_j = sum(problem.task[one.task].costs[device.name].extra_j for one in ordered)
    idle_j = shared_j = 0.0
    for start_s, end_s, running in _list_spans(problem, device, ordered, last_s):
        middle_s, base_w = (start_s + end_s) / 2, device.asleep_w
        if middle_s >= first_s:
            base_w = device.awake_w
            base_j = base_w * (end_s - start_s)
            energy_j += base_j
            idle_j += base_j * (not running)
            shared_j += base_j * max(0, len(running) - 1)
        if end_s - start_s > _INSTANT_S:
            violations += _check_room(device, running, start_s)
        if battery:
            power_w = base_w + sum(task.costs[device.name].extra_w for task in running)
            charge += _flow(battery, charge[-1], end_s, battery.charging_w(middle_s) - power_w)
    if battery:
        least_j = battery.reserve_j - tolerance_share * battery.capacity_j
        violations += _check_charge(device.name, battery, charge, first_s, least_j)
    energies_j = (energy_j, idle_j, shared_j)
    return DeviceRun(device.name, ordered, tuple(charge), *energies_j, tuple(violations))


def _list_spans(
    problem: Problem, device: PlanDevice, ordered: Sequence[Assignment], last_s: float
) -> Iterator[tuple[float, float, list[Task]]]:
    """Yield each time between two events and the tasks that run in it."""
    events = {0.0, *(one.start_s for one in ordered), *(one.end_s for one in ordered)}
    events |= {edge_s for window in device.windows for edge_s in (window.start_s, window.end_s)}
    running: list[Assignment] = []
    coming = 0
    for start_s, end_s in pairwise(sorted(at_s for at_s in events if at_s <= last_s)):
        while coming < len(ordered) and ordered[coming].start_s <= start_s:
            running.append(ordered[coming])
            coming += 1
        running = [one for one in running if one.end_s > start_s]
        yield start_s, end_s, [problem.task[one.task] for one in running]


def _flow(battery: Battery, before: ChargePoint, end_s: float, power_w: float) -> list[ChargePoint]:
    """Return the charge after a constant power into the battery, and when it became full."""
    charge_j = before.charge_j + power_w * (end_s - before.at_s)
    if charge_j < battery.capacity_j or power_w <= 0:
        return [ChargePoint(end_s, charge_j, before.is_full and power_w == 0)]
    full_s = before.at_s + (battery.capacity_j - before.charge_j) / power_w
    times_s = (full_s, end_s) if before.at_s < full_s < end_s else (end_s,)
    return [ChargePoint(at_s, battery.capacity_j, True) for at_s in times_s]


def _check_times(device: PlanDevice, task: Task, one: Assignment) -> list[Violation]:
    name, cost = device.name, task.costs.get(device.name)
    found = []
    if cost is None or not math.isclose(one.end_s - one.start_s, cost.duration_s, rel_tol=1e-6):
        found.append(Violation("tasks", name, one.start_s, 1.0, task.name))
    if (early_s := task.release_s - one.start_s) > _INSTANT_S:
        found.append(Violation("release", name, one.start_s, early_s, task.name))
    if (late_s := one.end_s - task.deadline_s) > _INSTANT_S:
        found.append(Violation("deadline", name, one.end_s, late_s, task.name))
    return found


def _check_room(device: PlanDevice, running: Sequence[Task], at_s: float) -> list[Violation]:
    name, found = device.name, []
    if (excess := len(running) - device.max_parallel) > 0:
        found.append(Violation("parallel", name, at_s, float(excess), running[-1].name))
    used_bytes = sum(task.costs[name].memory_bytes for task in running)
    if used_bytes > device.memory_bytes:
        missing = used_bytes - device.memory_bytes
        found.append(Violation("memory", name, at_s, missing, running[-1].name))
    return found


def _check_charge(
    name: str, battery: Battery, charge: Sequence[ChargePoint], first_s: float, least_j: float
) -> list[Violation]:
    """Check that the charge stays above the reserve from the first task on."""
    found, full_s = [], 0.0
    for point in charge:
        full_s = point.at_s if point.is_full else full_s
        if point.at_s >= first_s - _INSTANT_S and point.charge_j < least_j:
            missing_j = battery.reserve_j - point.charge_j
            found.append(Violation("battery", name, point.at_s, missing_j, "", full_s))
    return found
