"""A plan lived through: who runs when, what the machine draws, how its battery falls and rises.

Independent of whoever made the plan. Time goes from event to event (a task starts or ends, a
charger is plugged in or out); between two of them every power is constant, so charge is a straight
line, cut off where the battery is full. Whatever a plan breaks is a Break that says by how much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from joulecast.uses.plan.problem import Battery, Machine, Problem, Slot, Task

# Shares of a battery and seconds that are rounding, not harm; whoever counts in whole units lies in
# between: what holds strictly holds for it, and what holds for it does no harm.
HARMLESS, STRICT = 3e-6, 5e-7
_INSTANT_S = 1e-6


@dataclass(frozen=True)
class Moment:
    """What a battery holds at a moment; ``full`` where it can hold no more."""

    at_s: float
    charge_j: float
    full: bool = False


@dataclass(frozen=True)
class Break:
    """A constraint that does not hold.

    Attributes:
        kind: ``battery``, ``deadline``, ``release``, ``memory``, ``at once`` or ``tasks``.
        missing: By how much: joules, seconds, bytes or tasks.
        since_s: For a battery: when it was full last, 0 where it never was.
    """

    kind: str
    machine: str
    at_s: float
    missing: float
    task: str = ""
    since_s: float = 0.0


@dataclass(frozen=True)
class MachineRun:
    """What a machine does in a plan.

    Attributes:
        moments: State of charge from now to the end of its last task; empty on the mains.
        energy_j: What it draws while it is awake.
        idle_j: What of that flows between tasks.
        shared_j: What tasks at once would pay twice if each were alone.
    """

    machine: str
    slots: tuple[Slot, ...]
    moments: tuple[Moment, ...]
    energy_j: float
    idle_j: float
    shared_j: float
    breaks: tuple[Break, ...]

    def charge_at(self, at_s: float) -> float | None:
        """Joules in the battery at a moment of the plan; None on the mains."""
        for one, two in zip(self.moments, self.moments[1:], strict=False):
            if one.at_s <= at_s <= two.at_s:
                share = (at_s - one.at_s) / (two.at_s - one.at_s)
                return one.charge_j + share * (two.charge_j - one.charge_j)
        return self.moments[-1].charge_j if self.moments else None


@dataclass(frozen=True)
class Replay:
    """What all machines do."""

    runs: Mapping[str, MachineRun]
    breaks: tuple[Break, ...]

    @property
    def energy_j(self) -> float:
        """What all machines draw while they are awake."""
        return sum(run.energy_j for run in self.runs.values())


def replay(problem: Problem, slots: Iterable[Slot], forgiven_share: float = HARMLESS) -> Replay:
    """Live through a plan; so much of a battery may be missing and is no break."""
    found = tuple(slots)
    runs = {
        machine.name: replay_machine(
            problem, machine, [s for s in found if s.machine == machine.name], forgiven_share
        )
        for machine in problem.machines
    }
    breaks = [one for run in runs.values() for one in run.breaks]
    names = [slot.task for slot in found]
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    breaks += [Break("tasks", "", 0.0, 1.0, name) for name in sorted(twice)]
    return Replay(runs, tuple(breaks))


def replay_machine(
    problem: Problem, machine: Machine, slots: Sequence[Slot], forgiven_share: float = HARMLESS
) -> MachineRun:
    """Live through what one machine does."""
    ordered = tuple(sorted(slots, key=lambda slot: (slot.start_s, slot.end_s, slot.task)))
    if not ordered:
        full = (Moment(0.0, machine.battery.charge_j),) if machine.battery else ()
        return MachineRun(machine.name, (), full, 0.0, 0.0, 0.0, ())
    tasks = problem.task
    first_s, last_s = ordered[0].start_s, max(slot.end_s for slot in ordered)
    breaks = [one for slot in ordered for one in _check_slot(machine, tasks[slot.task], slot)]
    moments = [Moment(0.0, machine.battery.charge_j)] if machine.battery else []
    energy_j = sum(tasks[slot.task].costs[machine.name].extra_j for slot in ordered)
    idle_j = shared_j = 0.0
    for begin_s, end_s, running in _list_spans(problem, machine, ordered, last_s):
        length_s, middle_s = end_s - begin_s, (begin_s + end_s) / 2
        awake = middle_s >= first_s
        draw_w = machine.awake_w if awake else machine.asleep_w
        draw_w += sum(task.costs[machine.name].extra_w for task in running)
        if awake:
            energy_j += machine.awake_w * length_s
            idle_j += machine.awake_w * length_s * (not running)
            shared_j += machine.awake_w * length_s * max(0, len(running) - 1)
        if length_s > _INSTANT_S:
            breaks += _check_room(machine, running, begin_s)
        if machine.battery:
            charging_w = find_charger(machine.battery, middle_s)
            moments += _flow(machine.battery, moments[-1], end_s, charging_w - draw_w)
    if machine.battery:
        least_j = machine.battery.reserve_j - forgiven_share * machine.battery.capacity_j
        breaks += _check_charge(machine, machine.battery, moments, first_s, least_j)
    totals = (energy_j, idle_j, shared_j)
    return MachineRun(machine.name, ordered, tuple(moments), *totals, tuple(breaks))


def find_charger(battery: Battery, at_s: float) -> float:
    """Watts that a charger gives at a moment."""
    return sum(w.power_w for w in battery.windows if w.from_s <= at_s < w.to_s)


def _list_spans(
    problem: Problem, machine: Machine, slots: Sequence[Slot], last_s: float
) -> Iterator[tuple[float, float, list[Task]]]:
    """From event to event, and who runs in between; slots come as they begin."""
    events = {0.0, *(slot.start_s for slot in slots), *(slot.end_s for slot in slots)}
    events |= {edge for window in machine.windows for edge in (window.from_s, window.to_s)}
    ordered = sorted(at_s for at_s in events if at_s <= last_s)
    running: list[Slot] = []
    coming = 0
    for begin_s, end_s in itertools.pairwise(ordered):
        while coming < len(slots) and slots[coming].start_s <= begin_s:
            running.append(slots[coming])
            coming += 1
        running = [slot for slot in running if slot.end_s > begin_s]
        yield begin_s, end_s, [problem.task[slot.task] for slot in running]


def _flow(battery: Battery, before: Moment, end_s: float, power_w: float) -> list[Moment]:
    """What follows when a power flows into a battery, or out of it; full is full."""
    charge_j = before.charge_j + power_w * (end_s - before.at_s)
    if charge_j < battery.capacity_j or power_w <= 0:
        return [Moment(end_s, charge_j, before.full and power_w == 0)]
    full_s = before.at_s + (battery.capacity_j - before.charge_j) / power_w
    full = Moment(end_s, battery.capacity_j, True)
    return (
        [Moment(full_s, battery.capacity_j, True), full] if before.at_s < full_s < end_s else [full]
    )


# ---------------------------------------------------------------------------------------------
# What may not be


def _check_slot(machine: Machine, task: Task, slot: Slot) -> list[Break]:
    found = []
    cost = task.costs.get(machine.name)
    if cost is None or not math.isclose(slot.end_s - slot.start_s, cost.duration_s, rel_tol=1e-6):
        found.append(Break("tasks", machine.name, slot.start_s, 1.0, task.name))
    if slot.start_s < task.release_s - _INSTANT_S:
        early_s = task.release_s - slot.start_s
        found.append(Break("release", machine.name, slot.start_s, early_s, task.name))
    if slot.end_s > task.deadline_s + _INSTANT_S:
        late_s = slot.end_s - task.deadline_s
        found.append(Break("deadline", machine.name, slot.end_s, late_s, task.name))
    return found


def _check_room(machine: Machine, running: Sequence[Task], at_s: float) -> list[Break]:
    found = []
    if len(running) > machine.at_once:
        many = float(len(running) - machine.at_once)
        found.append(Break("at once", machine.name, at_s, many, running[-1].name))
    need_bytes = sum(task.costs[machine.name].memory_bytes for task in running)
    if need_bytes > machine.memory_bytes:
        missing = need_bytes - machine.memory_bytes
        found.append(Break("memory", machine.name, at_s, missing, running[-1].name))
    return found


def _check_charge(
    machine: Machine,
    battery: Battery,
    moments: Sequence[Moment],
    first_s: float,
    least_j: float,
) -> list[Break]:
    """From its first task on, a machine's battery stays above the reserve, or nearly."""
    found, since_s = [], 0.0
    for moment in moments:
        since_s = moment.at_s if moment.full else since_s
        missing_j = battery.reserve_j - moment.charge_j
        if moment.at_s >= first_s - _INSTANT_S and moment.charge_j < least_j:
            found.append(Break("battery", machine.name, moment.at_s, missing_j, "", since_s))
    return found
