"""A plan without a clock: how tasks would share machines if only sums mattered.

    min  Σ extra·x + Σ awake_w·span      x: share of a task on a machine, 0 to 1, all shares of a
                                         task together 1 (or less, for a total worth)
    span >= Σ duration·x / at_once       and by shares of memory; only so much time until deadlines
    Σ extra·x + awake_w·span <= charge - reserve + all that its charger could give

Every plan satisfies this, so its minimum is a bound on all plans; and its x, nearly whole where
tasks are many, say where tasks belong. A linear program, for HiGHS in scipy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.uses.plan.problem import Machine, Problem, Task

# Deadlines at which the time until then is counted, at most.
_MOST_DATES = 12
_LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class Relaxed:
    """A bound on the joules of any plan, and on which machines each task has a share."""

    bound_j: float
    liked: dict[str, tuple[str, ...]]


def relax(problem: Problem, worth: float, horizon_s: float) -> Relaxed | None:
    """What plans that run at least this worth cannot beat; None where there is no such plan."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    pairs = [(task, problem.machine[name]) for task in problem.tasks for name in task.costs]
    spans = {machine.name: len(pairs) + at for at, machine in enumerate(problem.machines)}
    rows, limits = _list_rows(problem, pairs, spans, horizon_s)
    row = {at: -float(task.priority) for at, (task, _) in enumerate(pairs)}
    rows, limits = [*rows, row], [*limits, -worth]
    cells = [(at, column, value) for at, row in enumerate(rows) for column, value in row.items()]
    places, columns, values = zip(*cells, strict=True)
    size = len(pairs) + len(spans)
    matrix = csr_array((values, (places, columns)), shape=(len(rows), size))
    prices = [task.costs[machine.name].extra_j for task, machine in pairs]
    prices += [machine.awake_w for machine in problem.machines]
    # HiGHS works to absolute tolerances: numbers of about one suit it.
    scale = max(prices) or 1.0
    ends = [(0.0, 1.0)] * len(pairs) + [(0.0, horizon_s)] * len(spans)
    found = linprog(np.array(prices) / scale, A_ub=matrix, b_ub=limits, bounds=ends, method="highs")
    if found.status != 0:
        return None
    return Relaxed(float(found.fun) * scale * (1 - 1e-7), _list_liked(pairs, found.x))


def _list_rows(
    problem: Problem, pairs: list[tuple[Task, Machine]], spans: dict[str, int], horizon_s: float
) -> tuple[list[dict[int, float]], list[float]]:
    rows: list[dict[int, float]] = []
    limits: list[float] = []
    for task in problem.tasks:
        row = {at: 1.0 for at, (own, _) in enumerate(pairs) if own is task}
        rows, limits = [*rows, row], [*limits, 1.0]
    dates_s = _choose_dates(problem, horizon_s)
    for machine in problem.machines:
        here = {at: task for at, (task, own) in enumerate(pairs) if own is machine}
        for row, limit in _list_machine(machine, here, spans[machine.name], dates_s):
            size = max(map(abs, row.values()), default=0.0) or 1.0
            rows.append({at: value / size for at, value in row.items()})
            limits.append(limit / size)
    return [row for row in rows if row], [x for x, row in zip(limits, rows, strict=True) if row]


def _list_machine(machine: Machine, here: dict[int, Task], span: int, dates_s: list[float]) -> Any:
    """What holds for the sums of one machine: rows and their limits."""
    costs = {at: task.costs[machine.name] for at, task in here.items()}
    busy = {at: cost.duration_s for at, cost in costs.items()}
    yield {**busy, span: -float(machine.at_once)}, 0.0
    if machine.at_once > 1:
        yield (
            {**{at: s * machine.share_memory(costs[at]) for at, s in busy.items()}, span: -1.0},
            0.0,
        )
    first_s = min((task.release_s for task in here.values()), default=0.0)
    for date_s in dates_s:
        due = {at: busy[at] for at, task in here.items() if task.deadline_s <= date_s}
        if due and date_s > first_s:
            yield due, machine.at_once * (date_s - first_s)
    if machine.battery:
        drawn = {at: cost.extra_j for at, cost in costs.items()}
        given_j = sum(
            w.power_w * max(0.0, min(w.to_s, dates_s[-1]) - w.from_s) for w in machine.windows
        )
        room_j = machine.battery.charge_j - machine.battery.reserve_j + given_j
        # With nothing on it a machine owes its reserve to nobody.
        yield {**drawn, span: machine.awake_w}, max(0.0, room_j)


def _choose_dates(problem: Problem, horizon_s: float) -> list[float]:
    dues = sorted({task.deadline_s for task in problem.tasks if task.deadline_s < horizon_s})
    step = max(1, len(dues) // _MOST_DATES)
    return [*dues[step - 1 :: step], horizon_s]


def _list_liked(pairs: list[tuple[Task, Machine]], shares: Any) -> dict[str, tuple[str, ...]]:
    liked: dict[str, tuple[str, ...]] = {}
    for (task, machine), share in zip(pairs, shares, strict=False):
        if share > _LEAST_SHARE:
            liked[task.name] = (*liked.get(task.name, ()), machine.name)
    return liked
