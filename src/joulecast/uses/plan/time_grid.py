"""Round a problem to whole time steps so that every rounding is safe.

Tasks get a little longer, start later and are due earlier; charging windows get shorter. A task's
energy stays, but its battery must deliver the power for the longer time, so the true charge is
never below the rounded one. Memory is rounded up to whole parts of the device's memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from joulecast.uses.plan.problem import ChargingWindow, PlanDevice, Problem, Task, TaskCost

# A power of two, so that halves and quarters of a memory are whole.
MEMORY_PARTS = 2**20
_MAX_STEPS = 200_000
# Of a time step, so that 3.0000000001 steps are three.
_NEAR = 1e-6


@dataclass(frozen=True)
class TimeGrid:
    """A time step, and how many of them any schedule can need."""

    step_s: float
    horizon: int

    def count(self, duration_s: float) -> int:
        """Return the nearest whole number of steps, at most the horizon's."""
        return self.horizon if math.isinf(duration_s) else round(duration_s / self.step_s)


def round_to_grid(problem: Problem) -> tuple[Problem, TimeGrid]:
    """Return a problem on whole time steps, and the grid."""
    step_s = choose_step(find_horizon(problem))
    rounded = round_problem(problem, step_s)
    return rounded, TimeGrid(step_s, max(1, math.ceil(find_horizon(rounded) / step_s - _NEAR)))


def find_horizon(problem: Problem) -> float:
    """Return when everything is over: the last deadline, or all tasks one after another."""
    deadlines_s = [task.deadline_s for task in problem.tasks]
    if max(deadlines_s) < math.inf:
        return max(deadlines_s)
    begin_s = [task.release_s for task in problem.tasks]
    begin_s += [window.end_s for device in problem.devices for window in device.windows]
    longest_s = [max((c.duration_s for c in t.costs.values()), default=0.0) for t in problem.tasks]
    finite_s = [deadline_s for deadline_s in deadlines_s if deadline_s < math.inf]
    return max(max(begin_s) + sum(longest_s), *finite_s, 1.0)


def choose_step(horizon_s: float) -> float:
    """Return the shortest of 1, 2, 5, 10 ms ... that divides a horizon into few enough steps."""
    steps = (float(f"{digit}e{power}") for power in range(-3, 12) for digit in (1, 2, 5))
    return next(step_s for step_s in steps if horizon_s / step_s <= _MAX_STEPS)


def round_problem(problem: Problem, step_s: float) -> Problem:
    """Round all times and memory sizes to the safe side."""
    devices = tuple(_round_device(device, step_s) for device in problem.devices)
    return Problem(devices, tuple(_round_task(problem, task, step_s) for task in problem.tasks))


def _round_device(device: PlanDevice, step_s: float) -> PlanDevice:
    if not device.battery:
        return device
    times = [(_up(w.start_s, step_s), _down(w.end_s, step_s), w.power_w) for w in device.windows]
    windows = tuple(ChargingWindow(*row) for row in times if row[0] < row[1])
    return replace(device, battery=replace(device.battery, windows=windows))


def _round_task(problem: Problem, task: Task, step_s: float) -> Task:
    deadline_s = task.deadline_s
    return replace(
        task,
        costs={m: _round_cost(problem.device[m], cost, step_s) for m, cost in task.costs.items()},
        release_s=_up(task.release_s, step_s),
        deadline_s=deadline_s if math.isinf(deadline_s) else _down(deadline_s, step_s),
    )


def _round_cost(device: PlanDevice, cost: TaskCost, step_s: float) -> TaskCost:
    part_bytes, size_bytes = device.memory_bytes / MEMORY_PARTS, cost.memory_bytes
    if 0 < part_bytes < math.inf:
        size_bytes = math.ceil(size_bytes / part_bytes) * part_bytes
    duration_s = max(step_s, _up(cost.duration_s, step_s))
    return TaskCost(duration_s, cost.extra_j, size_bytes, cost.drawn_s or cost.duration_s)


def _up(at_s: float, step_s: float) -> float:
    return math.ceil(at_s / step_s - _NEAR) * step_s


def _down(at_s: float, step_s: float) -> float:
    return math.floor(at_s / step_s + _NEAR) * step_s
