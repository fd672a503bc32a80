"""Replay a schedule event by event and report every violated constraint.

The replay shares no code with the solver's model. Between two events (a job starts or ends, a
charging window opens or closes) every power is constant, so the charge is a straight line, clipped
where the battery is full.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from joulecast.features.plan.problem import Assignment, Battery, PlanDevice, Problem

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
        kind: ``battery``, ``deadline``, ``release``, ``memory``, ``parallel`` or ``jobs``.
        missing: By how much: joules, seconds, bytes or jobs.
        full_s: For a battery: when it was last full, 0 if never.
    """

    kind: str
    device: str
    at_s: float
    missing: float
    full_s: float = 0.0


@dataclass(frozen=True)
class DeviceRun:
    """What a device does in a schedule.

    Attributes:
        charge: State of charge from now to the end of the last job; empty on mains power.
        energy_j: Energy while awake.
        idle_j: The part of it that flows between jobs.
        shared_j: Idle energy saved by running jobs in parallel.
    """

    assignments: tuple[Assignment, ...] = ()
    charge: tuple[ChargePoint, ...] = ()
    energy_j: float = 0.0
    idle_j: float = 0.0
    shared_j: float = 0.0
    violations: tuple[Violation, ...] = ()


@dataclass(frozen=True)
class Replay:
    """What all devices do, and their energy while awake."""

    runs: Mapping[str, DeviceRun]
    violations: tuple[Violation, ...]

    @property
    def energy_j(self) -> float:
        return sum(run.energy_j for run in self.runs.values())


def replay(
    problem: Problem, schedule: Iterable[Assignment], tolerance_share: float = HARMLESS
) -> Replay:
    """Replay a schedule; this share of a battery's capacity may be missing."""
    by_device: dict[str, list[Assignment]] = {device.name: [] for device in problem.devices}
    for one in schedule:
        by_device[one.device].append(one)
    counts = Counter(one.job for row in by_device.values() for one in row)
    runs = {
        device.name: replay_device(problem, device, by_device[device.name], tolerance_share)
        for device in problem.devices
    }
    twice = [Violation("jobs", "", 0.0, 1.0) for count in counts.values() if count > 1]
    return Replay(runs, (*(one for run in runs.values() for one in run.violations), *twice))


def replay_device(
    problem: Problem,
    device: PlanDevice,
    assignments: Sequence[Assignment],
    tolerance_share: float = HARMLESS,
) -> DeviceRun:
    """Replay one device."""
    name, battery, violations = device.name, device.battery, list[Violation]()
    charge = [ChargePoint(0.0, battery.charge_j)] if battery else []
    ordered = tuple(sorted(assignments, key=lambda one: (one.start_s, one.end_s, one.job)))
    if not ordered:
        return DeviceRun(charge=tuple(charge))
    energy_j = idle_j = shared_j = 0.0
    for one in ordered:
        job, cost = problem.job[one.job], problem.job[one.job].costs[name]
        energy_j += cost.extra_j
        if not math.isclose(one.end_s - one.start_s, cost.duration_s, rel_tol=1e-6):
            violations.append(Violation("jobs", name, one.start_s, 1.0))
        if (early_s := job.release_s - one.start_s) > _INSTANT_S:
            violations.append(Violation("release", name, one.start_s, early_s))
        if (late_s := one.end_s - job.deadline_s) > _INSTANT_S:
            violations.append(Violation("deadline", name, one.end_s, late_s))
    first_s, last_s = ordered[0].start_s, max(one.end_s for one in ordered)
    events = {0.0, *(one.start_s for one in ordered), *(one.end_s for one in ordered)}
    events |= {edge_s for window in device.windows for edge_s in (window.start_s, window.end_s)}
    coming, running = deque(ordered), list[Assignment]()
    for start_s, end_s in pairwise(sorted(at_s for at_s in events if at_s <= last_s)):
        while coming and coming[0].start_s <= start_s:
            running.append(coming.popleft())
        running = [one for one in running if one.end_s > start_s]
        costs = [problem.job[one.job].costs[name] for one in running]
        middle_s, base_w = (start_s + end_s) / 2, device.asleep_w
        if middle_s >= first_s:
            base_w = device.awake_w
            base_j = base_w * (end_s - start_s)
            energy_j += base_j
            idle_j += base_j * (not running)
            shared_j += base_j * max(0, len(running) - 1)
        if end_s - start_s > _INSTANT_S and running:
            if (excess := len(running) - device.max_parallel) > 0:
                violations.append(Violation("parallel", name, start_s, float(excess)))
            missing_bytes = sum(cost.memory_bytes for cost in costs) - device.memory_bytes
            if missing_bytes > 0:
                violations.append(Violation("memory", name, start_s, missing_bytes))
        if battery:
            windows = (w.power_w for w in device.windows if w.start_s <= middle_s < w.end_s)
            power_w = sum(windows) - (base_w + sum(cost.extra_w for cost in costs))
            charge += _flow(battery, charge[-1], end_s, power_w)
    if battery:
        least_j, full_s = battery.reserve_j - tolerance_share * battery.capacity_j, 0.0
        for point in charge:
            full_s = point.at_s if point.is_full else full_s
            # The reserve counts from the first job on.
            if point.at_s >= first_s - _INSTANT_S and point.charge_j < least_j:
                missing_j = battery.reserve_j - point.charge_j
                violations.append(Violation("battery", name, point.at_s, missing_j, full_s))
    energies_j = (energy_j, idle_j, shared_j)
    return DeviceRun(ordered, tuple(charge), *energies_j, tuple(violations))


def _flow(battery: Battery, before: ChargePoint, end_s: float, power_w: float) -> list[ChargePoint]:
    """Return the charge after a constant power into the battery, and when it became full."""
    charge_j = before.charge_j + power_w * (end_s - before.at_s)
    if charge_j < battery.capacity_j or power_w <= 0:
        return [ChargePoint(end_s, charge_j, before.is_full and power_w == 0)]
    full_s = before.at_s + (battery.capacity_j - before.charge_j) / power_w
    times_s = (full_s, end_s) if before.at_s < full_s < end_s else (end_s,)
    return [ChargePoint(at_s, battery.capacity_j, True) for at_s in times_s]
