"""Explain why a job cannot run: which battery, deadline or memory, and how much is missing.

On each device the job is tried at the start times that matter, alone and then beside the others as
planned. The smallest amount that is missing at these times is reported; a little less might do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.uses.plan.problem import Assignment, PlanDevice, Problem, Schedule, Task
from joulecast.uses.plan.replay import Violation, replay_device
from joulecast.uses.plan.solve import solve

_ALONE_S = 2.0
_UNITS = {"battery": "J", "deadline": "s", "memory": "bytes"}


@dataclass(frozen=True)
class LeftOutReason:
    """What prevents a job on a device.

    Attributes:
        kind: ``battery``, ``deadline`` or ``memory``.
        missing: How much of it, in ``unit``.
        is_alone: Whether the job does not fit there even alone.
    """

    device: str
    kind: str
    missing: float
    is_alone: bool

    @property
    def unit(self) -> str:
        """Return the unit of ``missing``."""
        return _UNITS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return the reason as JSON values."""
        missing = self.missing if math.isfinite(self.missing) else None
        values = {"device": self.device, "reason": self.kind, "missing": missing}
        return {**values, "unit": self.unit, "alone": self.is_alone}


@dataclass(frozen=True)
class LeftOut:
    """A job that does not run, with a reason for each device that may run it."""

    job: str
    reasons: tuple[LeftOutReason, ...]

    @property
    def is_alone(self) -> bool:
        """Return whether it could not run even as the only job."""
        return all(reason.is_alone for reason in self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """Return the job and its reasons as JSON values."""
        reasons = [reason.to_dict() for reason in self.reasons]
        return {"job": self.job, "alone": self.is_alone, "reasons": reasons}


def explain_left_out(problem: Problem, schedule: Schedule, name: str) -> LeftOut:
    """Explain why a task is left out of a schedule; the device that lacks least comes first."""
    task, found = problem.task[name], []
    for device in (problem.device[device_name] for device_name in task.costs):
        here = [one for one in schedule if one.device == device.name]
        is_alone = not _fits_alone(problem, device, task)
        reason = _find_reason(problem, device, [] if is_alone else here, task)
        found.append((is_alone, *reason, device.name))
    return LeftOut(name, tuple(LeftOutReason(d, k, m, a) for a, _, m, k, d in sorted(found)))


def _fits_alone(problem: Problem, device: PlanDevice, task: Task) -> bool:
    """Return whether a task fits on an empty device; between the usual times, CP-SAT decides."""
    starts = _list_starts(problem, device, [], task)
    if any(not replay_device(problem, device, [one]).violations for one in starts):
        return True
    only = Task(task.name, {device.name: task.costs[device.name]}, task.release_s, task.deadline_s)
    return bool(device.windows) and bool(solve(Problem((device,), (only,)), _ALONE_S).schedule)


def _find_reason(
    problem: Problem, device: PlanDevice, others: Sequence[Assignment], task: Task
) -> tuple[float, float, str]:
    """Return (missing share of the task's need, missing amount, kind) of the smallest obstacle.

    A single violated kind is preferred; where only several together would do, the largest counts.
    """
    cost, found = task.costs[device.name], []
    needs = {"battery": cost.energy_j(device), "deadline": cost.duration_s}
    for one in _list_starts(problem, device, others, task):
        violations = replay_device(problem, device, [*others, one]).violations
        if any(violation.kind not in _UNITS for violation in violations):
            continue
        missing = _sum_up(violations)
        shares = [
            (amount / (needs.get(kind, cost.memory_bytes) or 1.0), amount, kind)
            for kind, amount in missing.items()
        ]
        found.append((len(shares), max(shares)))
    return min(found)[1] if found else (math.inf, math.inf, "deadline")


def _sum_up(violations: Sequence[Violation]) -> dict[str, float]:
    missing: dict[str, float] = {}
    for one in violations:
        missing[one.kind] = max(one.missing, missing.get(one.kind, 0.0))
    return missing


def _list_starts(
    problem: Problem, device: PlanDevice, others: Sequence[Assignment], task: Task
) -> list[Assignment]:
    """Return a task at its release, beside each other task, and at edges of charging windows."""
    duration_s = task.costs[device.name].duration_s
    edges_s = {edge_s for one in others for edge_s in (one.start_s, one.end_s)}
    edges_s |= {edge_s for w in device.windows for edge_s in (w.start_s, w.end_s)}
    edges_s |= {task.deadline_s} if task.deadline_s < math.inf else set()
    starts_s = {task.release_s, *edges_s, *(edge_s - duration_s for edge_s in edges_s)}
    allowed = sorted(start_s for start_s in starts_s if start_s >= task.release_s)
    return [problem.assign(task.name, device.name, start_s) for start_s in allowed]
