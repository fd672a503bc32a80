"""From a problem to a plan that holds, with a bound on how much better any plan could be.

    round to ticks ──▶ place one by one ──▶ does everything run?  no: run as much as can be
                                                   │
        least energy:   ask ──▶ replay ──▶ holds? ─┴─ yes: done    the model knows of batteries
                         ▲                    │ no                 only what was met so far: each of
                         └──── forbid that ◀──┘ (and mend it)      its bounds bounds all plans
                                                   │
        every machine as early as can be at that energy ──▶ replay in real seconds

When the time is over, the best plan that held is given, with the best bound. "Best" is meant among
plans that begin at whole ticks and give every task its time rounded up to ticks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from joulecast.errors import InputError
from joulecast.uses.plan.improve import improve
from joulecast.uses.plan.model import MANY, Timetable
from joulecast.uses.plan.place import mend, place_all, place_rest, rank
from joulecast.uses.plan.problem import Problem, Slots, Task
from joulecast.uses.plan.relax import relax
from joulecast.uses.plan.replay import STRICT, Replay, replay
from joulecast.uses.plan.ticks import put_on_ticks
from joulecast.uses.plan.tidy import tidy

Clock = Callable[[], float]
DEFAULT_LIMIT_S = 60.0
# CP-SAT's ways of searching help each other from eight on, whatever cores there are.
WORKERS = 8
# Of what is left of the time: one asking may take so much while more may have to be asked.
_ASKING_SHARE = 0.6
_TIDYING_S, _TIDYING_SHARE = 2.0, 0.1
# A plan this near to the best is searched on for a few seconds only.
ENOUGH, _EXACT_S = 1e-3, 5.0
# From so many pairs of task and machine on.
_IMPROVING_SHARES = {MANY: 0.9, 150: 0.2, 0: 0.0}
# Whole units make energies differ by about this much.
_SAME = 1e-6


@dataclass(frozen=True)
class Solution:
    """A plan that holds.

    Attributes:
        left_out: Names of tasks that do not run.
        bound_j: No plan that runs as much takes less than this.
        is_best: Whether no plan takes less; ``is_most``: whether no plan runs more.
        timed_out: Whether the search was cut off; else it was near enough to stop.
        asked: How often the solver was asked.
        tick_s: Tasks begin at whole multiples of this.
    """

    slots: Slots
    left_out: tuple[str, ...]
    replay: Replay
    bound_j: float
    is_best: bool
    is_most: bool
    timed_out: bool
    asked: int
    tick_s: float

    @property
    def energy_j(self) -> float:
        """What machines draw while they are awake."""
        return self.replay.energy_j

    @property
    def gap_share(self) -> float:
        """How much better the best plan could be, as a share of this one's energy."""
        return max(0.0, 1.0 - self.bound_j / self.energy_j) if self.energy_j else 0.0


def solve(
    problem: Problem,
    limit_s: float = DEFAULT_LIMIT_S,
    workers: int = WORKERS,
    now: Clock = time.monotonic,
) -> Solution:
    """The plan that runs most by priority, then takes least energy, then is earliest.

    Args:
        problem: Tasks and machines.
        limit_s: Seconds that may pass; the best plan until then is given.
        workers: Threads of the solver.
        now: A clock.

    Raises:
        MissingError: OR-tools is not installed.
        InputError: There is nothing to plan.
    """
    if not problem.tasks or not problem.machines:
        raise InputError("there is nothing to plan: give at least one job and one device")
    return _Search(problem, now() + limit_s, workers, now).run()


class _Search:
    """One search on ticks: the model, the best plan so far, and the time that is left."""

    def __init__(self, real: Problem, until_s: float, workers: int, now: Clock) -> None:
        self._real, self._workers, self._now = real, workers, now
        # The last of the time is for tidying.
        self._until_s = until_s - min(_TIDYING_S, _TIDYING_SHARE * (until_s - now()))
        rounded, self._tick_s, self._horizon_s = put_on_ticks(real)
        self._problem = _drop_hopeless(rounded)
        self._model = Timetable(self._problem, self._tick_s, self._horizon_s)
        relaxed = relax(self._problem, self._count_worth(self._problem.tasks), self._horizon_s)
        self._best = place_all(self._problem, relaxed.liked if relaxed else {})
        self._asked, self._timed_out = 0, False

    def run(self) -> Solution:
        is_most = len(self._best) == len(self._problem.tasks)
        if not is_most:
            _, is_most = self._ask("running", _ASKING_SHARE)
            is_most = is_most or len(self._best) == len(self._problem.tasks)
        running = [self._problem.task[slot.task] for slot in self._best]
        self._model.keep_running(slot.task for slot in self._best)
        relaxed = relax(self._problem, self._count_worth(running), self._horizon_s)
        improving_s = self._choose_share() * (self._until_s - self._now())
        self._best = improve(self._problem, self._best, self._now() + improving_s, self._now)
        bound_j, is_best = self._ask("energy", 1.0, relaxed.bound_j if relaxed else -math.inf)
        # Whatever time is over, tidying has its own.
        self._best = tidy(
            self._problem,
            self._tick_s,
            self._best,
            self._now() + _TIDYING_S,
            self._workers,
            self._now,
        )
        return self._report(bound_j, is_best, is_most)

    def _choose_share(self) -> float:
        """What of the time is for improving: the solver alone is best at few tasks only."""
        pairs = sum(len(task.costs) for task in self._problem.tasks)
        return next(share for least, share in _IMPROVING_SHARES.items() if pairs >= least)

    @staticmethod
    def _count_worth(tasks: Iterable[Task]) -> float:
        return float(sum(task.priority for task in tasks))

    def _ask(self, aim: str, share: float, bound: float = -math.inf) -> tuple[float, bool]:
        """Ask until a plan holds or time is over: the best bound, and whether it is met.

        While batteries may still break a plan, one that is nearly best is good enough to learn
        from. A plan that holds is then followed to the very best, but not for long: the last
        thousandth can take forever, and no estimate is that good.
        """
        end_s = self._now() + share * (self._until_s - self._now())
        charged = any(machine.windows for machine in self._problem.machines)
        stage = "learn" if charged else "exact"
        self._timed_out = True
        while (left_s := end_s - self._now()) > 0:
            asking_s = {"learn": max(1.0, _ASKING_SHARE * left_s), "exact": _EXACT_S}.get(
                stage, left_s
            )
            gap_share = 0.0 if stage == "exact" or aim == "running" else ENOUGH
            found = self._model.solve(
                aim, self._best, min(left_s, asking_s), self._workers, gap_share
            )
            self._asked += 1
            if found.is_impossible:
                raise RuntimeError("the solver calls impossible what a plan at hand does")
            bound = max(bound, found.bound)
            if found.slots is None:
                break
            # What is strictly held is held; what is nearly held where the model can do no better.
            lived = replay(self._problem, found.slots, STRICT)
            if self._model.forbid_breaks(lived.breaks, found.slots):
                self._take(mend(self._problem, found.slots))
                stage = "learn"
            elif replay(self._problem, found.slots).breaks:
                self._take(mend(self._problem, found.slots))
                self._timed_out = False
                break
            else:
                self._take(found.slots)
                if found.is_best or self._meets(aim, bound):
                    return bound, True
                if stage != "learn" and self._meets(aim, bound, ENOUGH):
                    self._timed_out = False
                    break
                stage = "exact" if stage == "learn" else "rest"
        return bound, self._meets(aim, bound)

    def _take(self, slots: Slots) -> None:
        """Keep a plan that holds where it is better."""
        new, old = rank(self._problem, slots), rank(self._problem, self._best)
        same = new[0] == old[0] and math.isclose(new[1], old[1], rel_tol=_SAME)
        if new < old and not same:
            self._best = slots

    def _meets(self, aim: str, bound: float, within: float = _SAME) -> bool:
        worth, energy_j = rank(self._problem, self._best)
        value = {"running": worth, "energy": energy_j}.get(aim, math.inf)
        return value <= bound + within * abs(bound)

    def _report(self, bound_j: float, is_best: bool, is_most: bool) -> Solution:
        """The plan in real seconds, in which all holds that held on ticks."""
        real = self._real
        slots = tuple(
            real.make_slot(real.task[slot.task], slot.machine, slot.start_s) for slot in self._best
        )
        # Between ticks there may be room for one more; then nothing is known of what is best.
        filled = place_rest(real, slots)
        is_best = is_best and len(filled) == len(slots)
        lived = replay(real, filled)
        if lived.breaks:
            raise RuntimeError(f"a plan that held on ticks does not hold: {lived.breaks[0]}")
        least_j = lived.energy_j if is_best else min(max(0.0, bound_j), lived.energy_j)
        known = (least_j, is_best, is_most, self._timed_out and not is_best)
        left_out = _list_left_out(real, filled)
        return Solution(filled, left_out, lived, *known, self._asked, self._tick_s)


def _list_left_out(problem: Problem, slots: Slots) -> tuple[str, ...]:
    running = {slot.task for slot in slots}
    return tuple(task.name for task in problem.tasks if task.name not in running)


def _drop_hopeless(problem: Problem) -> Problem:
    """Without places where a task could not be even alone: too little memory, or too slow."""
    tasks = tuple(
        replace(
            task,
            costs={
                name: cost
                for name, cost in task.costs.items()
                if cost.memory_bytes <= problem.machine[name].memory_bytes
                and task.release_s + cost.duration_s <= task.deadline_s
            },
        )
        for task in problem.tasks
    )
    return replace(problem, tasks=tasks)
