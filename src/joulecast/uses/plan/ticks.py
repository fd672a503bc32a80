"""A problem on whole ticks, for solvers that count: every rounding is to the safe side.

Tasks take a little longer, begin a little later and are due a little earlier; chargers come a
little later and leave a little earlier. A task's joules stay, but a battery has to give its power
for all of the longer time: so it never holds less than ticks say. What a task holds of a machine's
memory becomes a little more: whole parts in a million.
"""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.uses.plan.problem import Battery, Cost, Machine, Problem, Task, Window

# Ticks until the last moment that any plan could need.
_MOST_TICKS = 200_000
_STEPS = (1.0, 2.0, 5.0)
# Of a tick, so that 3.0000000001 ticks are three.
_NEAR = 1e-6
# Parts of a machine's memory; a power of two, so that a half and a quarter of it are whole.
MEMORY_PARTS = 2**20


def put_on_ticks(problem: Problem) -> tuple[Problem, float, float]:
    """A problem on ticks, their length, and its horizon: that of the rounded tasks, so it fits."""
    tick_s = choose_tick(find_horizon(problem))
    rounded = round_problem(problem, tick_s)
    return rounded, tick_s, max(tick_s, _up(find_horizon(rounded), tick_s))


def find_horizon(problem: Problem) -> float:
    """When everything is over, whatever the plan: the last deadline, or all tasks one by one."""
    if all(task.deadline_s < math.inf for task in problem.tasks):
        return max((task.deadline_s for task in problem.tasks), default=1.0)
    after_s = [task.release_s for task in problem.tasks]
    after_s += [window.to_s for machine in problem.machines for window in machine.windows]
    longest = [max((c.duration_s for c in t.costs.values()), default=0.0) for t in problem.tasks]
    dues = [task.deadline_s for task in problem.tasks if task.deadline_s < math.inf]
    return max(max(after_s) + sum(longest), *dues, 1.0)


def choose_tick(horizon_s: float) -> float:
    """The shortest of 1, 2, 5 ms, 10 ms … that a horizon has few enough of."""
    for power in range(-3, 12):
        for step in _STEPS:
            tick_s = float(f"{step:g}e{power}")
            if horizon_s / tick_s <= _MOST_TICKS:
                return tick_s
    raise ValueError(f"a horizon of {horizon_s} s")


def round_problem(problem: Problem, tick_s: float) -> Problem:
    """The same problem on ticks."""
    machines = tuple(_round_machine(machine, tick_s) for machine in problem.machines)
    return Problem(machines, tuple(_round_task(problem, task, tick_s) for task in problem.tasks))


def _round_machine(machine: Machine, tick_s: float) -> Machine:
    if not machine.battery:
        return machine
    rounded = [
        (_up(window.from_s, tick_s), _down(window.to_s, tick_s), window.power_w)
        for window in machine.windows
    ]
    windows = tuple(Window(*window) for window in rounded if window[0] < window[1])
    battery: Battery = replace(machine.battery, windows=windows)
    return replace(machine, battery=battery)


def _round_task(problem: Problem, task: Task, tick_s: float) -> Task:
    costs = {
        name: _round_cost(problem.machine[name], cost, tick_s) for name, cost in task.costs.items()
    }
    due_s = task.deadline_s if math.isinf(task.deadline_s) else _down(task.deadline_s, tick_s)
    return replace(task, costs=costs, release_s=_up(task.release_s, tick_s), deadline_s=due_s)


def _round_cost(machine: Machine, cost: Cost, tick_s: float) -> Cost:
    duration_s, part = (
        max(tick_s, _up(cost.duration_s, tick_s)),
        machine.memory_bytes / MEMORY_PARTS,
    )
    size_bytes = cost.memory_bytes
    if 0 < part < math.inf:
        size_bytes = math.ceil(size_bytes / part) * part
    return Cost(duration_s, cost.extra_j, size_bytes, cost.drawn_s or cost.duration_s)


def _up(at_s: float, tick_s: float) -> float:
    return math.ceil(at_s / tick_s - _NEAR) * tick_s


def _down(at_s: float, tick_s: float) -> float:
    return math.floor(at_s / tick_s + _NEAR) * tick_s
