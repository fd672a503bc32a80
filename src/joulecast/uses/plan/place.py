"""Placing tasks one by one, quickly and not always best: a first plan, and a mended one.

A task goes where it adds least energy, there as early as can be, at one of the few moments that
matter: when it is released, when others end or begin, when a charger comes or goes. Every place is
tried by replaying its machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from joulecast.uses.plan.problem import Machine, Problem, Slot, Slots, Task
from joulecast.uses.plan.replay import STRICT, replay, replay_machine

NOTHING: frozenset[str] = frozenset()
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
    for task in tasks:
        found = find_place(problem, slots, task)
        slots = slots if found is None else (*slots, found)
    return slots


def mend(problem: Problem, slots: Slots) -> Slots:
    """What of a plan holds, task by task as they begin, and new places for the rest."""
    kept: Slots = ()
    for slot in sorted(slots, key=lambda slot: slot.start_s):
        same = [one for one in (*kept, slot) if one.machine == slot.machine]
        if not replay_machine(problem, problem.machine[slot.machine], same, STRICT).breaks:
            kept = (*kept, slot)
    return place_rest(problem, kept)


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
    best: tuple[float, float, Slot] | None = None
    for name, cost in sorted(task.costs.items(), key=lambda pair: pair[1].extra_j):
        # Nothing on this machine can be better: others only take more above their waking.
        if best is not None and cost.extra_j > best[0]:
            break
        machine = problem.machine[name]
        here = [slot for slot in slots if slot.machine == name]
        for added_j, slot in _list_places(problem, machine, here, task):
            if best is not None and (added_j, slot.end_s) >= best[:2]:
                break
            if _holds(problem, machine, here, slot, ignored):
                best = (added_j, slot.end_s, slot)
                break
    return best[2] if best else None


def _list_places(
    problem: Problem, machine: Machine, here: Sequence[Slot], task: Task
) -> list[tuple[float, Slot]]:
    """Slots that are worth trying, with what each adds in joules, the best first."""
    length_s = task.costs[machine.name].duration_s
    edges = {task.release_s, task.deadline_s - length_s}
    edges |= {edge for window in machine.windows for edge in (window.from_s, window.to_s)}
    edges |= {window.to_s - length_s for window in machine.windows}
    edges |= {slot.end_s for slot in here} | {slot.start_s - length_s for slot in here}
    starts = [at for at in edges if task.release_s <= at < float("inf")]
    slots = [problem.make_slot(task, machine.name, start_s) for start_s in starts]
    extra_j = task.costs[machine.name].extra_j
    first_s = min((slot.start_s for slot in here), default=math.inf)
    last_s = max((slot.end_s for slot in here), default=-math.inf)
    span_s = last_s - first_s if here else 0.0
    longer = [max(last_s, s.end_s) - min(first_s, s.start_s) - span_s for s in slots]
    added = [
        (extra_j + machine.awake_w * more_s, s) for more_s, s in zip(longer, slots, strict=True)
    ]
    return sorted(added, key=lambda pair: (pair[0], pair[1].end_s))


def _holds(
    problem: Problem, machine: Machine, here: Sequence[Slot], slot: Slot, ignored: Collection[str]
) -> bool:
    """Whether a slot breaks nothing that matters beside those of its machine."""
    if not ignored and not _has_room(problem, machine, here, slot):
        return False
    if not ignored and machine.battery is None:
        return True
    found = replay_machine(problem, machine, [*here, slot], STRICT).breaks
    return all(one.kind in ignored for one in found)


def _has_room(problem: Problem, machine: Machine, here: Sequence[Slot], slot: Slot) -> bool:
    """What needs no replay: it is in time, and neither too many nor too large for its company."""
    if slot.end_s > problem.task[slot.task].deadline_s:
        return False
    beside = [one for one in here if one.start_s < slot.end_s and slot.start_s < one.end_s]
    if beside and machine.at_once == 1:
        return False
    for at_s in (slot.start_s, *(one.start_s for one in beside if one.start_s > slot.start_s)):
        company = [one for one in beside if one.start_s <= at_s < one.end_s]
        sizes = (_size(problem, machine, one) for one in (*company, slot))
        if len(company) >= machine.at_once or sum(sizes) > machine.memory_bytes:
            return False
    return True


def _size(problem: Problem, machine: Machine, slot: Slot) -> float:
    return problem.task[slot.task].costs[machine.name].memory_bytes


def _shortest(task: Task) -> float:
    return min((cost.duration_s for cost in task.costs.values()), default=0.0)
