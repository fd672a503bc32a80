"""A plan whose jobs begin no later than they must: every machine for itself, at no more energy.

When it is known who runs where, machines have nothing to do with each other: each is a small
problem, awake for no longer than it was, with the least sum of starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from joulecast.uses.plan.model import Timetable
from joulecast.uses.plan.problem import Machine, Problem, Slots
from joulecast.uses.plan.replay import STRICT, replay

_MOST_ASKED = 40


def tidy(
    problem: Problem,
    tick_s: float,
    slots: Slots,
    until_s: float,
    workers: int,
    now: Callable[[], float],
) -> Slots:
    """Tasks stay on their machines and begin as early as can be.

    Args:
        problem: On ticks.
        tick_s: Their length.
        slots: A plan of it that holds.
        until_s: When to stop; what is not tidied until then stays as it is.
        workers: Threads of the solver.
        now: A clock.
    """
    used = [m for m in problem.machines if any(slot.machine == m.name for slot in slots)]
    tidied: Slots = ()
    for left, machine in zip(range(len(used), 0, -1), used, strict=True):
        here = tuple(slot for slot in slots if slot.machine == machine.name)
        end_s = now() + (until_s - now()) / left
        tidied += _tidy_machine(problem, machine, tick_s, here, end_s, workers, now)
    return tidied


def _tidy_machine(
    problem: Problem,
    machine: Machine,
    tick_s: float,
    slots: Slots,
    until_s: float,
    workers: int,
    now: Callable[[], float],
) -> Slots:
    if all(slot.start_s <= problem.task[slot.task].release_s for slot in slots):
        return slots
    alone = _keep_only(problem, machine, slots)
    last_s = max(slot.end_s for slot in slots)
    model = Timetable(alone, tick_s, last_s)
    model.keep_running(slot.task for slot in slots)
    model.keep_awake_at_most(machine, last_s - min(slot.start_s for slot in slots))
    for _ in range(_MOST_ASKED):
        if (left_s := until_s - now()) <= 0:
            break
        found = model.solve("early", slots, left_s, workers, 0.0)
        if found.slots is None:
            break
        # What is strictly held is held; what is nearly held only where the model can do no better.
        if model.forbid_breaks(replay(alone, found.slots, STRICT).breaks, found.slots):
            continue
        return slots if replay(alone, found.slots).breaks else found.slots
    return slots


def _keep_only(problem: Problem, machine: Machine, slots: Slots) -> Problem:
    """The problem of one machine and what runs on it."""
    tasks = [problem.task[slot.task] for slot in slots]
    own = (replace(task, costs={machine.name: task.costs[machine.name]}) for task in tasks)
    return Problem((machine,), tuple(own))
