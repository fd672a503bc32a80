"""Placing tasks one by one, quickly and not always best: a first plan, and a mended one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from joulecast.uses.plan.board import NOTHING, Board, Stay
from joulecast.uses.plan.problem import Problem, Slot, Slots, Task
from joulecast.uses.plan.replay import replay

Rank = tuple[float, float]


_ORDERS: tuple[Callable[[Task], Any], ...] = (
    lambda task: (-task.priority, task.deadline_s, task.release_s),
    lambda task: (-task.priority, -_shortest(task)),
    lambda task: (-task.priority, task.deadline_s - task.release_s - _shortest(task)),
)


def place_all(problem: Problem, liked: Mapping[str, Collection[str]]) -> Slots:
    """The best plan of a few orders: the soonest due first, the longest, the least spare time.

    Args:
        problem: What it all is about.
        liked: Machines to try first, by task.
    """
    narrow = tuple(
        replace(
            task, costs={m: cost for m, cost in task.costs.items() if m in liked.get(task.name, ())}
        )
        for task in problem.tasks
    )
    plans = []
    for order in _ORDERS:
        first = place_in_order(problem, sorted(narrow, key=order))
        plans.append(place_rest(problem, first))
        if len(first) == 0:
            plans.append(place_in_order(problem, sorted(problem.tasks, key=order)))
    return min(plans, key=partial(rank, problem))


def place_rest(problem: Problem, slots: Slots) -> Slots:
    """Slots, and whoever finds a place beside them."""
    there = {slot.task for slot in slots}
    rest = [task for task in problem.tasks if task.name not in there]
    return place_in_order(problem, sorted(rest, key=_ORDERS[0]), slots)


def place_in_order(problem: Problem, tasks: Iterable[Task], slots: Slots = ()) -> Slots:
    """Slots, and one for each of these tasks that finds a place beside them."""
    board = Board(problem, slots)
    for task in tasks:
        board.place(task)
    return board.list_slots()


def mend(problem: Problem, slots: Slots) -> Slots:
    """What of a plan holds, task by task as they begin, and new places for the rest."""
    kept = Board(problem)
    for slot in sorted(slots, key=lambda slot: slot.start_s):
        stay = Stay(slot.start_s, slot.end_s, slot.task)
        if kept.fits(slot.machine, stay):
            kept.put(slot.machine, stay)
    return place_rest(problem, kept.list_slots())


def rank(problem: Problem, slots: Slots) -> Rank:
    """Lower is better: more runs by priority, then less energy."""
    worth = sum(problem.task[slot.task].priority for slot in slots)
    return -float(worth), replay(problem, slots).energy_j


def find_place(
    problem: Problem, slots: Slots, task: Task, ignored: Collection[str] = NOTHING
) -> Slot | None:
    """Where a task fits beside others, at least energy, then soonest; None where nowhere.

    Args:
        problem: What it all is about.
        slots: What runs already and stays.
        task: What shall run too.
        ignored: Kinds of breaks that do not matter.
    """
    found = Board(problem, slots).find_place(task, ignored)
    return problem.make_slot(task, found[0], found[1].start_s) if found else None


def _shortest(task: Task) -> float:
    return min((cost.duration_s for cost in task.costs.values()), default=0.0)
