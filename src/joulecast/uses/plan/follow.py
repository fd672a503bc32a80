"""A plan followed when jobs take other times than planned: the same order on the same devices.

Who was to begin when another ended begins when it ends, but not before its release; the others
begin at their time, or as soon after it as there is room.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.uses.plan.problem import Machine, Problem, Slot, Slots


def follow(problem: Problem, slots: Slots, near_s: float) -> Slots:
    """The slots of a plan with the durations of another problem.

    Args:
        problem: The same tasks and machines, with other costs.
        slots: The plan.
        near_s: Whoever begins so soon after another ends was to follow it.
    """
    ordered = sorted(slots, key=lambda slot: (slot.start_s, slot.end_s))
    lived: dict[str, Slot] = {}
    for slot in ordered:
        task, machine = problem.task[slot.task], problem.machine[slot.machine]
        company = [one for one in ordered if one.machine == slot.machine and one.task in lived]
        leaders = [lived[one.task] for one in company if abs(one.end_s - slot.start_s) <= near_s]
        wish_s = min((one.end_s for one in leaders), default=slot.start_s)
        beside = [lived[one.task] for one in company]
        start_s = _find_room(problem, machine, beside, slot, max(wish_s, task.release_s))
        lived[slot.task] = problem.make_slot(task, slot.machine, start_s)
    return tuple(lived.values())


def _find_room(
    problem: Problem, machine: Machine, beside: Sequence[Slot], slot: Slot, from_s: float
) -> float:
    """The first moment from which on there is room; those beside began before or then."""

    def size(one: Slot) -> float:
        return problem.task[one.task].costs[machine.name].memory_bytes

    for at_s in sorted({from_s, *(one.end_s for one in beside if one.end_s > from_s)}):
        company = [one for one in beside if one.end_s > at_s]
        fits = sum(map(size, company)) + size(slot) <= machine.memory_bytes
        if fits and len(company) < machine.at_once:
            return at_s
    raise RuntimeError(f"{slot.task} never fits on {machine.name}")
