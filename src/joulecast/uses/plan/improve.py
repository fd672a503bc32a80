"""A plan made better by taking some tasks out and placing them anew, for as long as there is time.

For hundreds of tasks, where asking the solver for everything at once leads nowhere in a minute.
Tasks are taken out of two or three machines, or all that take far more than they would elsewhere;
a plan that is no worse is kept, now and then one that is a little worse too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from joulecast.uses.plan.place import place_in_order, rank
from joulecast.uses.plan.problem import Problem, Slots

_LEAST, _MOST = 3, 14
# At first a plan may be so much worse and still be followed; less and less until the end.
_PATIENCE = 0.002


def improve(
    problem: Problem, slots: Slots, until_s: float, now: Callable[[], float], seed: int = 0
) -> Slots:
    """The best plan that is met on the way."""
    rng, begun_s = random.Random(seed), now()
    best = here = slots
    best_rank = here_rank = rank(problem, slots)
    while (at_s := now()) < until_s:
        new = _renew(problem, here, rng)
        new_rank = rank(problem, new)
        patience = _PATIENCE * (until_s - at_s) / (until_s - begun_s) * rng.random()
        if new_rank[0] <= here_rank[0] and new_rank[1] < here_rank[1] * (1 + patience):
            here, here_rank = new, new_rank
        if new_rank < best_rank:
            best, best_rank = new, new_rank
    return best


def _renew(problem: Problem, slots: Slots, rng: random.Random) -> Slots:
    """Some tasks of a few machines taken out and placed anew, in one order or another."""
    names = sorted({slot.machine for slot in slots})
    chosen = set(rng.sample(names, min(len(names), rng.choice((1, 2, 2, 3)))))
    there = [slot for slot in slots if slot.machine in chosen]
    count = min(len(there), rng.randint(_LEAST, _MOST))
    if rng.random() < 0.5:
        out = rng.sample(there, count)
    else:
        # Neighbours in time: whoever takes one of them out alone leaves a gap.
        ordered = sorted(there, key=lambda slot: slot.start_s)
        at = rng.randrange(len(ordered) - count + 1)
        out = ordered[at : at + count]
    gone = {slot.task for slot in out}
    left_out = {task.name for task in problem.tasks} - {slot.task for slot in slots}
    tasks = [problem.task[name] for name in sorted(gone | left_out)]
    rng.shuffle(tasks)
    if rng.random() < 0.5:
        tasks.sort(
            key=lambda task: -min((c.extra_j for c in task.costs.values()), default=math.inf)
        )
    kept = tuple(slot for slot in slots if slot.task not in gone)
    return place_in_order(problem, tasks, kept)
