"""From a problem to a plan that holds, with a bound on how much better any plan could be.

    round to ticks ──▶ place one by one ──▶ does everything run?  no: run as much as can be
                                                   │
        least energy:   ask ──▶ replay ──▶ holds? ─┴─ yes: done    the model knows of batteries
                         ▲                    │ no                 only what was met so far: each of
                         └──── forbid that ◀──┘ (and mend it)      its bounds bounds all plans
                                                   │
        as early as can be at that energy ─────────┴──▶ replay in real seconds

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
from joulecast.uses.plan.model import MANY, Timetable, name_point
from joulecast.uses.plan.place import mend, place_all, rank
from joulecast.uses.plan.problem import Machine, Problem, Slots, Task
from joulecast.uses.plan.relax import relax
from joulecast.uses.plan.replay import Break, Replay, replay
from joulecast.uses.plan.ticks import choose_tick, find_horizon, round_problem

Clock = Callable[[], float]
DEFAULT_LIMIT_S = 60.0
# CP-SAT's ways of searching help each other from eight on, whatever cores there are.
WORKERS = 8
# Of what is left of the time: one asking may take so much while more may have to be asked.
_ASKING_SHARE = 0.6
_TIDYING_S = 2.0
# A plan this near to the best is searched on for a few seconds only.
ENOUGH, _EXACT_S = 1e-3, 5.0
_IMPROVING_SHARE = 0.6
# Whole units make energies differ by about this much.
_SAME = 1e-6
_MOST_MARGINS = 5


@dataclass(frozen=True)
class Solution:
    """A plan that holds.

    Attributes:
        left_out: Names of tasks that do not run.
        bound_j: No plan that runs as much takes less than this.
        is_best: Whether no plan takes less; ``is_most``: whether no plan runs more.
        asked: How often the solver was asked.
        tick_s: Tasks begin at whole multiples of this.
    """

    slots: Slots
    left_out: tuple[str, ...]
    replay: Replay
    bound_j: float
    is_best: bool
    is_most: bool
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
    until_s = now() + limit_s
    for _ in range(_MOST_MARGINS):
        found = _Search(problem, until_s, workers, now).run()
        if not found.replay.breaks:
            break
        # Ticks made a task draw a little slower than it does: keep that much more in reserve.
        problem = _add_margin(problem, found.replay.breaks)
    return found


class _Search:
    """One search on ticks: the model, the best plan so far, and the time that is left."""

    def __init__(self, problem: Problem, until_s: float, workers: int, now: Clock) -> None:
        self._real, self._until_s, self._workers, self._now = problem, until_s, workers, now
        self._horizon_s = find_horizon(problem)
        self._tick_s = choose_tick(self._horizon_s)
        self._problem = _drop_hopeless(round_problem(problem, self._tick_s))
        self._model = Timetable(self._problem, self._tick_s, self._horizon_s)
        relaxed = relax(self._problem, self._count_worth(self._problem.tasks), self._horizon_s)
        self._best = place_all(self._problem, relaxed.liked if relaxed else {})
        self._asked = 0

    def run(self) -> Solution:
        is_most = len(self._best) == len(self._problem.tasks)
        if not is_most:
            _, is_most = self._ask("running", _ASKING_SHARE)
            is_most = is_most or len(self._best) == len(self._problem.tasks)
        running = [self._problem.task[slot.task] for slot in self._best]
        self._model.keep_running(slot.task for slot in self._best)
        relaxed = relax(self._problem, self._count_worth(running), self._horizon_s)
        if sum(len(task.costs) for task in self._problem.tasks) > MANY:
            improving_s = self._now() + _IMPROVING_SHARE * (self._until_s - self._now())
            self._best = improve(self._problem, self._best, improving_s, self._now)
        bound_j, is_best = self._ask("energy", 1.0, relaxed.bound_j if relaxed else -math.inf)
        energy_j = replay(self._problem, self._best).energy_j
        self._model.keep_places(self._best, energy_j)
        # Time that is over is not over for a few tidying seconds where everything is known.
        self._until_s = max(self._until_s, self._now() + (_TIDYING_S if is_best else 0.0))
        self._ask("early", 1.0, most_s=_TIDYING_S)
        return self._report(bound_j, is_best, is_most)

    @staticmethod
    def _count_worth(tasks: Iterable[Task]) -> float:
        return float(sum(task.priority for task in tasks))

    def _ask(
        self, aim: str, share: float, bound: float = -math.inf, most_s: float = math.inf
    ) -> tuple[float, bool]:
        """Ask until a plan holds or time is over: the best bound, and whether it is met.

        While batteries may still break a plan, one that is nearly best is good enough to learn
        from. A plan that holds is then followed to the very best, but not for long: the last
        thousandth can take forever, and no estimate is that good.
        """
        end_s = min(self._now() + most_s, self._now() + share * (self._until_s - self._now()))
        charged = any(machine.windows for machine in self._problem.machines)
        stage = "learn" if charged else "exact"
        while (left_s := end_s - self._now()) > 0:
            asking_s = {"learn": max(1.0, _ASKING_SHARE * left_s), "exact": _EXACT_S}.get(
                stage, left_s
            )
            gap_share = 0.0 if stage == "exact" or aim == "running" else ENOUGH
            found = self._model.solve(
                aim, self._best, min(left_s, asking_s), self._workers, gap_share
            )
            self._asked += 1
            bound = max(bound, found.bound)
            if found.slots is None:
                break
            lived = replay(self._problem, found.slots)
            if not lived.breaks:
                self._take(found.slots, aim)
                if found.is_best or self._meets(aim, bound):
                    return bound, True
                if stage != "learn" and self._meets(aim, bound, ENOUGH):
                    break
                stage = "exact" if stage == "learn" else "rest"
                continue
            if aim == "early":
                break
            self._take(mend(self._problem, found.slots), aim)
            stage = "learn"
            if not self._forbid(lived.breaks, found.slots):
                break
        return bound, self._meets(aim, bound)

    def _take(self, slots: Slots, aim: str) -> None:
        """Keep a plan that holds where it is no worse."""
        new, old = rank(self._problem, slots), rank(self._problem, self._best)
        same = new[0] == old[0] and math.isclose(new[1], old[1], rel_tol=_SAME)
        earlier = sum(slot.end_s for slot in slots) < sum(slot.end_s for slot in self._best)
        if (new < old and not same) or (same and aim == "early" and earlier):
            self._best = slots

    def _meets(self, aim: str, bound: float, within: float = _SAME) -> bool:
        worth, energy_j = rank(self._problem, self._best)
        value = {"running": worth, "energy": energy_j}.get(aim, math.inf)
        return value <= bound + within * abs(bound)

    def _forbid(self, breaks: tuple[Break, ...], slots: Slots) -> bool:
        """Say the lowest moment of each battery to the model; False where it knew them all."""
        lowest: dict[str, Break] = {}
        for one in breaks:
            if one.kind == "battery" and one.missing > getattr(
                lowest.get(one.machine), "missing", 0
            ):
                lowest[one.machine] = one
        new = [self._forbid_one(one, slots) for one in lowest.values()]
        return any(new)

    def _forbid_one(self, one: Break, slots: Slots) -> bool:
        machine = self._problem.machine[one.machine]
        since, until = (name_point(machine, slots, at_s) for at_s in (one.since_s, one.at_s))
        return self._model.forbid(machine, since, until)

    def _report(self, bound_j: float, is_best: bool, is_most: bool) -> Solution:
        real = self._real
        slots = tuple(
            real.make_slot(real.task[slot.task], slot.machine, slot.start_s) for slot in self._best
        )
        running = {slot.task for slot in slots}
        left_out = tuple(task.name for task in real.tasks if task.name not in running)
        lived = replay(real, slots)
        least_j = lived.energy_j if is_best else min(max(0.0, bound_j), lived.energy_j)
        return Solution(
            slots, left_out, lived, least_j, is_best, is_most, self._asked, self._tick_s
        )


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


def _add_margin(problem: Problem, breaks: tuple[Break, ...]) -> Problem:
    most = {one.machine: 0.0 for one in breaks}
    for one in breaks:
        most[one.machine] = max(most[one.machine], 1.01 * one.missing)
    machines = tuple(_raise_reserve(m, most.get(m.name, 0.0)) for m in problem.machines)
    return replace(problem, machines=machines)


def _raise_reserve(machine: Machine, margin_j: float) -> Machine:
    if not machine.battery or not margin_j:
        return machine
    reserve_j = min(machine.battery.capacity_j, machine.battery.reserve_j + margin_j)
    return replace(machine, battery=replace(machine.battery, reserve_j=reserve_j))
