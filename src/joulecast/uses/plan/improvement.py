"""Improve a schedule of many tasks by large-neighbourhood search: remove some, insert them anew.

Removed are some tasks of a few devices, or all of one device and some that would take less there. A
schedule that is no worse is kept, now and then one that is slightly worse too. CP-SAT's own search
improves 300 tasks on 30 devices far more slowly (docs/decisions/0004-solver.md).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from joulecast.uses.plan.insertion import PartialSchedule
from joulecast.uses.plan.problem import Problem, Schedule, Task

_FEWEST, _MOST, _MOST_GUESTS = 3, 14, 4
# How much worse a schedule may be and still be followed, at first; it falls to 0.
_ACCEPTED_SHARE = 0.002
_WAITING_SHARE = 0.5


def improve(
    problem: Problem, schedule: Schedule, end_s: float, now: Callable[[], float], seed: int = 0
) -> Schedule:
    """Return the best schedule found until ``end_s``, by priority and then energy."""
    rng, begin_s = random.Random(seed), now()
    best = here = PartialSchedule(problem, schedule)
    best_out = here_out = {task.name for task in problem.tasks} - {one.task for one in schedule}
    while (at_s := now()) < end_s and here.list_rows():
        new, new_out = _reinsert(here, here_out, rng)
        lost, best_lost = problem.priority_of(new_out), problem.priority_of(best_out)
        slack = _ACCEPTED_SHARE * (end_s - at_s) / (end_s - begin_s) * rng.random()
        if lost <= problem.priority_of(here_out) and new.energy_j < here.energy_j * (1 + slack):
            here, here_out = new, new_out
        if (lost, new.energy_j) < (best_lost, best.energy_j):
            best, best_out = new, new_out
    return best.schedule


def _reinsert(
    here: PartialSchedule, left_out: set[str], rng: random.Random
) -> tuple[PartialSchedule, set[str]]:
    """Remove some tasks and insert them anew; return the schedule and who is left out of it."""
    new = here.copy()
    choose = rng.choice((_choose_few, _choose_run, _choose_device, _choose_device))
    removed, not_before_s = choose(new, rng)
    new.remove(removed)
    tasks = [new.problem.task[name] for name in sorted(removed | left_out)]
    rng.shuffle(tasks)
    if (order := rng.choice((None, _deadline, _most_energy, _most_memory))) is not None:
        tasks.sort(key=order)
    return new, {task.name for task in tasks if not new.insert(task, not_before_s)}


def _deadline(task: Task) -> float:
    return task.deadline_s


def _most_energy(task: Task) -> float:
    return -min((cost.extra_j for cost in task.costs.values()), default=0.0)


def _most_memory(task: Task) -> float:
    return -max((cost.memory_bytes for cost in task.costs.values()), default=0.0)


Removal = tuple[set[str], Mapping[str, float]]


def _choose_few(here: PartialSchedule, rng: random.Random) -> Removal:
    """Choose some tasks of one to three devices."""
    rows = list(here.list_rows().values())
    chosen = rng.sample(rows, min(len(rows), rng.choice((1, 2, 2, 3))))
    tasks = [one.task for row in chosen for one in row]
    return set(rng.sample(tasks, min(len(tasks), rng.randint(_FEWEST, _MOST)))), {}


def _choose_run(here: PartialSchedule, rng: random.Random) -> Removal:
    """Choose consecutive tasks of two devices: a single one would only leave its own gap."""
    rows, chosen = list(here.list_rows().values()), set()
    for row in rng.sample(rows, min(len(rows), 2)):
        count = min(len(row), rng.randint(_FEWEST, _MOST) // 2)
        at = rng.randrange(len(row) - count + 1)
        chosen |= {one.task for one in row[at : at + count]}
    return chosen, {}


def _choose_device(here: PartialSchedule, rng: random.Random) -> Removal:
    """Choose all tasks of a device, and some elsewhere that would take less there.

    A device with a charger may wait for it: awake too soon, it is empty when the charger comes.
    """
    rows, tasks = here.list_rows(), here.problem.task
    host = rng.choice(list(rows))
    guests = [
        one.task
        for name, row in rows.items()
        if name != host
        for one in row
        if (cost := tasks[one.task].costs.get(host))
        and cost.extra_j < tasks[one.task].costs[name].extra_j
    ]
    chosen = rng.sample(guests, min(len(guests), rng.randint(1, _MOST_GUESTS)))
    windows = here.problem.device[host].windows
    waits = bool(windows) and rng.random() < _WAITING_SHARE
    not_before_s = {host: rng.uniform(0.0, windows[-1].end_s)} if waits else {}
    return {*chosen, *(one.task for one in rows[host])}, not_before_s
