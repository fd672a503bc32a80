"""A plan made better by taking some tasks out and placing them anew, for as long as there is time.

For hundreds of tasks, where asking the solver for everything at once leads nowhere in a minute.
Taken out are some tasks of a few machines, or all of one machine and some that would like to be
there; a plan that is no worse is kept, now and then one that is a little worse too.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from joulecast.uses.plan.board import Board
from joulecast.uses.plan.place import Rank
from joulecast.uses.plan.problem import Problem, Slots, Task

_LEAST, _MOST = 3, 14
_MOST_GUESTS = 4
_WAITING_SHARE = 0.5
# At first a plan may be so much worse and still be followed; less and less until the end.
_PATIENCE = 0.002


def improve(
    problem: Problem, slots: Slots, until_s: float, now: Callable[[], float], seed: int = 0
) -> Slots:
    """The best plan that is met on the way."""
    rng, begun_s = random.Random(seed), now()
    best = here = Board(problem, slots)
    left_out = {task.name for task in problem.tasks} - {slot.task for slot in slots}
    best_rank = here_rank = _rank(here, left_out)
    while (at_s := now()) < until_s:
        new, new_out = _renew(here, left_out, rng)
        new_rank = _rank(new, new_out)
        patience = _PATIENCE * (until_s - at_s) / (until_s - begun_s) * rng.random()
        if new_rank[0] <= here_rank[0] and new_rank[1] < here_rank[1] * (1 + patience):
            here, here_rank, left_out = new, new_rank, new_out
        if new_rank < best_rank:
            best, best_rank = new, new_rank
    return best.list_slots()


def _rank(board: Board, left_out: set[str]) -> Rank:
    """Lower is better: less is left out by priority, then less energy."""
    return float(sum(board.problem.task[name].priority for name in left_out)), board.energy_j


def _renew(here: Board, left_out: set[str], rng: random.Random) -> tuple[Board, set[str]]:
    """Some tasks taken out and placed anew; the new plan, and who is left out of it."""
    new, problem = here.copy(), here.problem
    gone = rng.choice((_take_few, _take_neighbours, _take_all, _take_all))(new, rng)
    tasks = [problem.task[name] for name in sorted(gone | left_out)]
    rng.shuffle(tasks)
    order = rng.choice((None, _by_deadline, _by_joules, _by_size))
    if order is not None:
        tasks.sort(key=order)
    placed = {task.name for task in tasks if new.place(task)}
    new.close_until({})
    return new, (gone | left_out) - placed


def _by_deadline(task: Task) -> float:
    return task.deadline_s


def _by_joules(task: Task) -> float:
    return -min((cost.extra_j for cost in task.costs.values()), default=0.0)


def _by_size(task: Task) -> float:
    return -max((cost.memory_bytes for cost in task.costs.values()), default=0.0)


def _take_few(board: Board, rng: random.Random) -> set[str]:
    """Some of a few machines."""
    names = board.list_used()
    chosen = rng.sample(names, min(len(names), rng.choice((1, 2, 2, 3))))
    tasks = [task for name in chosen for task in board.list_tasks(name)]
    return board.take_out(rng.sample(tasks, min(len(tasks), rng.randint(_LEAST, _MOST))))


def _take_neighbours(board: Board, rng: random.Random) -> set[str]:
    """Neighbours in time: whoever takes one of them out alone leaves a gap."""
    names = board.list_used()
    gone: set[str] = set()
    for name in rng.sample(names, min(len(names), 2)):
        tasks = board.list_tasks(name)
        count = min(len(tasks), rng.randint(_LEAST, _MOST) // 2)
        at = rng.randrange(len(tasks) - count + 1)
        gone |= set(tasks[at : at + count])
    return board.take_out(gone)


def _take_all(board: Board, rng: random.Random) -> set[str]:
    """All of one machine, and some that run elsewhere and would take less there.

    One that is charged may wait for that: awake too soon, it is empty when its charger comes.
    """
    names, tasks = board.list_used(), board.problem.task
    if not names:
        return set()
    host = rng.choice(names)
    guests = [
        task
        for name in names
        if name != host
        for task in board.list_tasks(name)
        if (cost := tasks[task].costs.get(host)) and cost.extra_j < tasks[task].costs[name].extra_j
    ]
    chosen = rng.sample(guests, min(len(guests), rng.randint(1, _MOST_GUESTS)))
    windows = board.problem.machine[host].windows
    if windows and rng.random() < _WAITING_SHARE:
        board.close_until({host: rng.uniform(0.0, windows[-1].to_s)})
    return board.take_out({*board.list_tasks(host), *chosen})
