"""Why a job cannot run: which battery, deadline or memory is in the way, and how much is missing.

For each device where a left-out job may run it is asked what would have to give. Alone first: does
it fit at all? Then beside the others as they are planned. What is missing is the least that was
found at the moments that placing tries, so a little less might do as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.uses.plan.place import find_place
from joulecast.uses.plan.problem import Problem, Slot, Slots, Task
from joulecast.uses.plan.replay import replay_machine
from joulecast.uses.plan.solve import solve

_ALONE_S = 2.0
_UNITS = {"battery": "J", "deadline": "s", "memory": "bytes"}


@dataclass(frozen=True)
class Reason:
    """What stands in the way of a job on a device.

    Attributes:
        kind: ``battery``, ``deadline`` or ``memory``.
        missing: How much of it: joules, seconds or bytes; see ``unit``.
        alone: Whether it does not even fit there alone; else it is in the way of the others.
    """

    device: str
    kind: str
    missing: float
    alone: bool

    @property
    def unit(self) -> str:
        """In what ``missing`` counts."""
        return _UNITS[self.kind]


@dataclass(frozen=True)
class LeftOut:
    """A job that does not run, and what is in the way on each device that it may run on."""

    job: str
    reasons: tuple[Reason, ...]

    @property
    def alone(self) -> bool:
        """Whether it could not run on any device even if it were the only job."""
        return all(reason.alone for reason in self.reasons)


def blame(problem: Problem, slots: Slots, name: str) -> LeftOut:
    """Why a task is left out of a plan: the devices that lack least first."""
    task = problem.task[name]
    found = []
    for machine in task.costs:
        only = Task(task.name, {machine: task.costs[machine]}, task.release_s, task.deadline_s)
        alone = find_place(problem, (), only) is None and not _fits_alone(problem, only, machine)
        found.append(_find_reason(problem, () if alone else slots, only, machine, alone))
    return LeftOut(name, tuple(sorted(found, key=lambda r: (r.alone, _share(problem, task, r)))))


def _fits_alone(problem: Problem, task: Task, machine: str) -> bool:
    """Asked of the solver: between the moments that placing tries there may be one that fits."""
    alone = Problem((problem.machine[machine],), (task,))
    return bool(problem.machine[machine].windows) and bool(solve(alone, _ALONE_S).slots)


def _find_reason(problem: Problem, slots: Slots, task: Task, machine: str, alone: bool) -> Reason:
    """The one constraint whose giving way would help with least; memory before all."""
    cost = task.costs[machine]
    room_bytes = problem.machine[machine].memory_bytes
    if cost.memory_bytes > room_bytes:
        return Reason(machine, "memory", cost.memory_bytes - room_bytes, alone)
    reasons = []
    for kind in _UNITS:
        slot = find_place(problem, slots, task, {kind})
        missing = _sum_missing(problem, slots, slot, kind) if slot else 0.0
        if missing > 0:
            reasons.append(Reason(machine, kind, missing, alone))
    if not reasons:
        # Only together would two of them do; the deadline is the one that always counts.
        slot = find_place(problem, slots, task, {"deadline", "battery"})
        kind = "battery" if slot and slot.end_s <= task.deadline_s else "deadline"
        missing = _sum_missing(problem, slots, slot, kind) if slot else math.inf
        return Reason(machine, kind, missing, alone)
    return min(reasons, key=lambda reason: _share(problem, task, reason))


def _sum_missing(problem: Problem, slots: Slots, slot: Slot, kind: str) -> float:
    here: Sequence[Slot] = [one for one in slots if one.machine == slot.machine]
    run = replay_machine(problem, problem.machine[slot.machine], [*here, slot])
    return max((one.missing for one in run.breaks if one.kind == kind), default=0.0)


def _share(problem: Problem, task: Task, reason: Reason) -> float:
    """How much is missing, as a share of what the job takes: to compare joules with seconds."""
    cost, machine = task.costs[reason.device], problem.machine[reason.device]
    sizes = {"battery": cost.energy_j(machine), "deadline": cost.duration_s}
    return reason.missing / (sizes.get(reason.kind, cost.memory_bytes) or 1.0)
