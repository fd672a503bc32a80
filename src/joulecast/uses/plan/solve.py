"""Find the schedule that runs most, then takes least energy, with a lower bound on the energy.

    round to time steps -> relaxation: lower bound, who runs where -> insert tasks one by one
      -> CP-SAT: maximise priority, then minimise energy      CP-SAT knows of batteries only what
           solve -> replay -> valid? -> done                  was violated so far, so each of its
             ^                | no                            bounds is a bound on all schedules
             +--- forbid it --+
      -> each device alone: earliest starts at that energy -> replay in seconds

Large problems are left to large-neighbourhood search, which is far faster there than CP-SAT.
Optimal means: among schedules that start at whole time steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from joulecast.errors import InputError
from joulecast.uses.plan.charge_model import ChargeModel
from joulecast.uses.plan.improvement import improve
from joulecast.uses.plan.insertion import PartialSchedule, insert_rest, repair
from joulecast.uses.plan.problem import Problem, Schedule, Task
from joulecast.uses.plan.relaxation import relax
from joulecast.uses.plan.replay import STRICT, Replay, replay
from joulecast.uses.plan.schedule_model import import_solver
from joulecast.uses.plan.time_grid import round_to_grid

DEFAULT_LIMIT_S = 60.0
# CP-SAT's search strategies help each other from eight on, whatever the number of cores.
WORKERS = 8
# A schedule this close to the bound is improved for a few more seconds only.
GOOD_GAP_SHARE = 1e-3
_EXACT_S = 5.0
# Shares of the remaining time: for one CP-SAT call while more may follow, and for the relaxation.
_CALL_SHARE = 0.6
# Time kept for the earliest starts, as a share of the limit, at most so many seconds.
_TAIL_SHARE, _TAIL_S = 0.1, 2.0
# Share of the time for large-neighbourhood search, by the pairs of task and device.
_IMPROVEMENT_SHARES = {2000: 1.0, 150: 0.2, 0: 0.0}
# Integers make equal energies differ by about this share.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Solution:
    """A valid schedule.

    Attributes:
        left_out: Names of tasks that do not run.
        lower_bound_j: No schedule that runs as much takes less.
        is_optimal: Whether no schedule takes less.
        runs_most: Whether no schedule runs more, by priority.
        timed_out: Whether the time limit ended the search.
        calls: How often CP-SAT was called.
        time_step_s: Tasks start at multiples of it.
    """

    schedule: Schedule
    left_out: tuple[str, ...]
    replay: Replay
    lower_bound_j: float
    is_optimal: bool
    runs_most: bool
    timed_out: bool
    calls: int
    time_step_s: float

    @property
    def energy_j(self) -> float:
        """Return the energy of all devices while awake."""
        return self.replay.energy_j

    @property
    def gap_share(self) -> float:
        """Return how much less an optimal schedule could take at most, as a share."""
        return max(0.0, 1.0 - self.lower_bound_j / self.energy_j) if self.energy_j else 0.0


def solve(
    problem: Problem,
    limit_s: float = DEFAULT_LIMIT_S,
    workers: int = WORKERS,
    now: Callable[[], float] = time.monotonic,
) -> Solution:
    """Return the schedule that runs most by priority, then takes least energy, then starts first.

    Args:
        problem: Tasks and devices.
        limit_s: Time after which the best schedule so far is returned.
        workers: Threads of the solver.
        now: A clock.

    Raises:
        MissingError: OR-tools is not installed.
        InputError: There are no tasks or no devices.
    """
    if not problem.tasks or not problem.devices:
        raise InputError("there is nothing to plan: give at least one job and one device")
    import_solver()
    return _Search(problem, limit_s, workers, now).run()


class _Search:
    """The best schedule so far and the remaining time."""

    def __init__(
        self, original: Problem, limit_s: float, workers: int, now: Callable[[], float]
    ) -> None:
        self._original, self._workers, self._now = original, workers, now
        self._end_s = now() + limit_s - min(_TAIL_S, _TAIL_SHARE * limit_s)
        rounded, self._grid = round_to_grid(original)
        self._problem = _drop_impossible(rounded)
        self._calls, self._timed_out = 0, False
        self._best: Schedule = ()

    def run(self) -> Solution:
        possible = [task.name for task in self._problem.tasks if task.costs]
        pairs = sum(len(task.costs) for task in self._problem.tasks)
        share = next(share for least, share in _IMPROVEMENT_SHARES.items() if pairs >= least)
        bound_j, is_optimal = self._relax(possible), False
        model = ChargeModel(self._problem, self._grid) if share < 1 else None
        runs_most = len(self._best) == len(possible)
        if model and not runs_most:
            _, runs_most = self._optimise(model, "priority", _CALL_SHARE)
        end_s = self._now() + share * self._left_s()
        self._best = improve(self._problem, self._best, end_s, self._now)
        runs_most = runs_most or len(self._best) == len(possible)
        if len(self._best) < len(possible):
            bound_j = self._relax([one.task for one in self._best])
        self._timed_out = True
        if model:
            model.require_priority(one.task for one in self._best)
            bound_j, is_optimal = self._optimise(model, "energy", 1.0, bound_j)
        self._start_early()
        return self._report(bound_j, is_optimal, runs_most)

    def _left_s(self) -> float:
        return self._end_s - self._now()

    def _relax(self, tasks: Sequence[str]) -> float:
        """Return a lower bound for schedules that run as much; try its devices for a first one."""
        horizon_s = self._grid.horizon * self._grid.step_s
        found = relax(self._problem, self._problem.priority_of(tasks), horizon_s)
        where = found.device if found else {}
        partial = PartialSchedule(self._problem)
        for task in sorted(self._problem.tasks, key=lambda task: (-task.priority, task.deadline_s)):
            partial.insert(_restrict(task, (where.get(task.name, ""),)))
        self._keep(insert_rest(self._problem, partial.schedule))
        return found.bound_j if found else -math.inf

    def _optimise(
        self, model: ChargeModel, objective: str, share: float, bound: float = -math.inf
    ) -> tuple[float, bool]:
        """Solve until a schedule is valid or time is over: the bound, and whether it is met.

        While batteries may still be violated, a schedule that is nearly optimal is good enough to
        learn from. A valid one is then improved to the optimum, but not for long: the last
        thousandth can take forever, and no estimate is that good.
        """
        end_s = self._now() + share * self._left_s()
        is_valid = not any(device.windows for device in self._problem.devices)
        self._timed_out = True
        while (left_s := end_s - self._now()) > 0:
            if is_valid and self._meets(objective, bound):
                return bound, True
            is_good = is_valid and self._meets(objective, bound, GOOD_GAP_SHARE)
            limit_s = _EXACT_S if is_good else left_s * (1.0 if is_valid else _CALL_SHARE)
            gap_share = 0.0 if is_good or objective != "energy" else GOOD_GAP_SHARE
            result = model.solve(
                objective, min(left_s, max(1.0, limit_s)), self._best, self._workers, gap_share
            )
            self._calls += 1
            if result.is_infeasible:
                raise RuntimeError("CP-SAT found a valid schedule infeasible")
            bound = max(bound, result.bound)
            if result.schedule is None:
                break
            # Violations that are all known already are within the tolerance of integers, or final.
            strict = replay(self._problem, result.schedule, STRICT).violations
            is_valid = not model.forbid(strict, result.schedule)
            is_harmless = not replay(self._problem, result.schedule).violations
            is_kept = is_valid and is_harmless
            self._keep(result.schedule if is_kept else repair(self._problem, result.schedule))
            if is_kept and result.is_optimal:
                return bound, True
            if is_valid and (is_good or not is_harmless):
                self._timed_out = False
                break
        return bound, self._meets(objective, bound)

    def _start_early(self) -> None:
        """Start every task as early as possible on its device at no more energy."""
        end_s, used = self._now() + _TAIL_S, dict.fromkeys(one.device for one in self._best)
        for at, name in enumerate(used):
            here = tuple(one for one in self._best if one.device == name)
            if any(one.start_s > self._problem.task[one.task].release_s for one in here):
                rest = tuple(one for one in self._best if one.device != name)
                limit_s = (end_s - self._now()) / (len(used) - at)
                self._best = rest + self._start_device_early(name, here, self._now() + limit_s)

    def _start_device_early(self, name: str, here: Schedule, end_s: float) -> Schedule:
        tasks = tuple(_restrict(self._problem.task[one.task], (name,)) for one in here)
        part = Problem((self._problem.device[name],), tasks)
        model = ChargeModel(part, self._grid)
        model.require_priority(one.task for one in here)
        span_s = max(one.end_s for one in here) - min(one.start_s for one in here)
        model.require_span(name, span_s)
        while (left_s := end_s - self._now()) > 0:
            found = model.solve("starts", left_s, here, self._workers).schedule
            if found is None:
                break
            if not model.forbid(replay(part, found, STRICT).violations, found):
                return here if replay(part, found).violations else found
        return here

    def _keep(self, schedule: Schedule) -> None:
        """Replace the best schedule by a better valid one."""
        new, old = rank(self._problem, schedule), rank(self._problem, self._best)
        is_same = new[0] == old[0] and math.isclose(new[1], old[1], rel_tol=_EQUAL)
        if new < old and not is_same:
            self._best = schedule

    def _meets(self, objective: str, bound: float, within: float = _EQUAL) -> bool:
        value = rank(self._problem, self._best)[objective == "energy"]
        return value <= bound + within * abs(bound)

    def _report(self, bound_j: float, is_optimal: bool, runs_most: bool) -> Solution:
        """Return the schedule with the original durations: what held on the grid holds there."""
        problem = self._original
        exact = tuple(problem.assign(one.task, one.device, one.start_s) for one in self._best)
        # There may be room for one more between time steps; then optimality is not known.
        schedule = insert_rest(problem, exact)
        is_optimal = is_optimal and len(schedule) == len(exact)
        replayed = replay(problem, schedule)
        if replayed.violations:
            raise RuntimeError(f"a schedule on the time grid is invalid: {replayed.violations[0]}")
        energy_j = replayed.energy_j
        running = {one.task for one in schedule}
        return Solution(
            schedule,
            tuple(task.name for task in problem.tasks if task.name not in running),
            replayed,
            energy_j if is_optimal else min(max(0.0, bound_j), energy_j),
            is_optimal,
            runs_most,
            self._timed_out and not is_optimal,
            self._calls,
            self._grid.step_s,
        )


def rank(problem: Problem, schedule: Schedule) -> tuple[float, float]:
    """Return how good a schedule is, lower is better: priority that runs, then energy."""
    priority = problem.priority_of(one.task for one in schedule)
    return -float(priority), replay(problem, schedule).energy_j


def _restrict(task: Task, devices: Sequence[str] | set[str]) -> Task:
    return replace(task, costs={m: cost for m, cost in task.costs.items() if m in devices})


def _drop_impossible(problem: Problem) -> Problem:
    """Drop devices on which a task does not fit even alone: too little memory or time."""

    def possible(task: Task) -> list[str]:
        return [
            name
            for name, cost in task.costs.items()
            if cost.memory_bytes <= problem.device[name].memory_bytes
            and task.release_s + cost.duration_s <= task.deadline_s
        ]

    return replace(problem, tasks=tuple(_restrict(task, possible(task)) for task in problem.tasks))
