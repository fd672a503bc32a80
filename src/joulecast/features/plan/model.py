"""Find the schedule that runs most, then takes least energy, then starts first, by CP-SAT.

    placed[i, m]         job i runs on device m: an optional interval
    start[i]             when job i starts
    first[m], last[m]    when device m wakes, and when its last job ends
    energy               sum extra_j * placed + sum awake_w * (last - first)

CP-SAT counts in integers: times are whole time steps, energies whole units. One model is solved for
three objectives in turn: the priority of what runs, energy, early starts. Batteries are added as
they are needed. Charge is a straight line between events, so a charge that is too low at some time
is one linear inequality; but there are very many times. The model starts with one inequality per
battery: all energy until the last job ends was in it or came from the charger. Without a charger
that is all. Whatever else a replay finds violated is then forbidden, exactly and in all schedules:

    charge(t) >= reserve   <=>   for u = 0 and every u < t at which the battery could be full:
                                 held(u) + charged(u, t) - drawn(u, t) >= reserve
                                 with held(0) the charge now and held(u) the capacity

So CP-SAT's bound is always a bound on all schedules. Optimal means: among schedules that start at
whole time steps.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from joulecast.features.plan.problem import (
    Assignment,
    ChargingWindow,
    Job,
    JobCost,
    PlanDevice,
    Problem,
    Schedule,
)
from joulecast.features.plan.replay import STRICT, Replay, Violation, replay, replay_device
from joulecast.system.errors import InputError, MissingError

GOOD_GAP_SHARE = 1e-3
"""A schedule this close to the bound is improved for a few more seconds only."""
_EXACT_S = 5.0
# If the whole model takes too long, so many devices are optimised at a time, each time for so long.
_PART_DEVICES, _PART_S, _WHOLE_SHARE = 3, 2.0, 0.6
# CP-SAT's search strategies help each other from eight on, whatever the number of cores.
_WORKERS = 8
# Shares of the time left: to fit most jobs in, and for one call of CP-SAT while more may follow.
_PRIORITY_SHARE, _CALL_SHARE = 0.6, 0.5
# Time kept for the earliest starts, as a share of the limit, at most so many seconds.
_TAIL_SHARE, _TAIL_S = 0.1, 2.0
# Integers make equal energies differ by about this share.
_EQUAL = 1e-6
# Share of a battery that may be missing: between the replay's strict and harmless.
_TOLERANCE = 1.5e-6
# Units in the energy of all jobs and in a battery, and the largest sum.
_ENERGY_UNITS, _BATTERY_UNITS, _MAX_UNITS = 1e11, 1e12, 1e17
# Parts of a memory: a power of two, so that halves and quarters are whole.
_MEMORY_PARTS, _SHARE_PARTS = 2**20, 2**12
# Jobs of a device up to which each gets a lane.
_MAX_LANED = 30
_MAX_STEPS = 200_000
# Of a time step, so that 3.0000000001 steps are three.
_NEAR = 1e-6


@dataclass(frozen=True)
class Solution:
    """A valid schedule; none that runs as much takes less than ``lower_bound_j``.

    ``runs_most`` says that none runs more, by priority.
    """

    schedule: Schedule
    left_out: tuple[str, ...]
    replay: Replay
    lower_bound_j: float
    is_optimal: bool
    runs_most: bool
    timed_out: bool
    time_step_s: float

    @property
    def energy_j(self) -> float:
        return self.replay.energy_j

    @property
    def gap_share(self) -> float:
        """How much less an optimal schedule could take at most, as a share."""
        return max(0.0, 1.0 - self.lower_bound_j / self.energy_j) if self.energy_j else 0.0


def solve(
    problem: Problem,
    limit_s: float = 60.0,
    workers: int = _WORKERS,
    now: Callable[[], float] = time.monotonic,
) -> Solution:
    """Return the schedule that runs most by priority, then takes least energy, then starts first.

    After ``limit_s`` of the clock ``now`` it is the best so far.
    """
    if not problem.jobs or not problem.devices:
        raise InputError("there is nothing to plan: give at least one job and one device")
    end_s = now() + limit_s - min(_TAIL_S, _TAIL_SHARE * limit_s)
    rounded, grid = round_to_grid(problem)
    model = ScheduleModel(rounded, grid, workers, now)
    best = place_rest(rounded, ())
    runs_most = len(best) == sum(bool(job.costs) for job in rounded.jobs)
    if not runs_most:
        priority_end_s = now() + _PRIORITY_SHARE * (end_s - now())
        best, bound, _ = _optimise(model, "priority", best, priority_end_s)
        runs_most = -bound <= (1 + _EQUAL) * rounded.priority_of(best)
    model.require_priority(best)
    has_parts = len(rounded.devices) > _PART_DEVICES
    whole_end_s = now() + (_WHOLE_SHARE if has_parts else 1.0) * (end_s - now())
    best, bound_j, timed_out = _optimise(model, "energy", best, whole_end_s)
    if timed_out and has_parts:
        best = _improve_parts(model, best, end_s)
    is_optimal = replay(rounded, best).energy_j <= (1 + _EQUAL) * bound_j
    model.fix_devices(best)
    best, *_ = _optimise(model, "starts", best, now() + _TAIL_S)
    # What holds on whole time steps holds with the original durations, and there may be room for
    # one more between time steps; then optimality is not known.
    exact = tuple(problem.assign(one.job, one.device, one.start_s) for one in best)
    schedule = place_rest(problem, exact)
    replayed, running = replay(problem, schedule), {one.job for one in schedule}
    if replayed.violations:
        raise RuntimeError(f"a schedule on the time grid is invalid: {replayed.violations[0]}")
    is_optimal = is_optimal and len(schedule) == len(exact)
    return Solution(
        schedule,
        tuple(job.name for job in problem.jobs if job.name not in running),
        replayed,
        replayed.energy_j if is_optimal else min(max(0.0, bound_j), replayed.energy_j),
        is_optimal,
        runs_most,
        timed_out and not is_optimal,
        grid.step_s,
    )


def place_rest(problem: Problem, schedule: Schedule) -> Schedule:
    """Place each job that does not run where it adds least energy, then as early as it fits.

    This gives CP-SAT a valid schedule to improve, and one to return if its time is over.
    """
    here: dict[str, list[Assignment]] = {device.name: [] for device in problem.devices}
    for one in schedule:
        here[one.device].append(one)
    running = {one.job for one in schedule}
    for job in sorted(problem.jobs, key=lambda job: (-job.priority, job.deadline_s)):
        if job.name in running:
            continue
        best, chosen = (math.inf, math.inf), None
        for extra_j, name in sorted((cost.extra_j, name) for name, cost in job.costs.items()):
            device, others = problem.device[name], here[name]
            first_s = min((one.start_s for one in others), default=math.inf)
            last_s = max((one.end_s for one in others), default=-math.inf)
            for one in list_starts(problem, device, others, job):
                awake_s = max(last_s, one.end_s) - min(first_s, one.start_s)
                longer_s = awake_s - (last_s - first_s if others else 0.0)
                added = extra_j + device.awake_w * longer_s, one.end_s
                if added >= best:
                    continue
                if not replay_device(problem, device, [*others, one], STRICT).violations:
                    best, chosen = added, one
        if chosen is not None:
            here[chosen.device].append(chosen)
    return tuple(one for row in here.values() for one in row)


def list_starts(
    problem: Problem, device: PlanDevice, others: Sequence[Assignment], job: Job
) -> list[Assignment]:
    """Return a job at its release, beside each other job, and at edges of charging windows."""
    duration_s = job.costs[device.name].duration_s
    edges_s = {edge_s for one in others for edge_s in (one.start_s, one.end_s)}
    edges_s |= {edge_s for w in device.windows for edge_s in (w.start_s, w.end_s)}
    edges_s |= {job.deadline_s} if job.deadline_s < math.inf else set()
    starts_s = {job.release_s, *edges_s, *(edge_s - duration_s for edge_s in edges_s)}
    allowed = sorted(start_s for start_s in starts_s if start_s >= job.release_s)
    return [problem.assign(job.name, device.name, start_s) for start_s in allowed]


def _optimise(
    model: ScheduleModel, objective: str, best: Schedule, end_s: float
) -> tuple[Schedule, float, bool]:
    """Solve, replay and forbid until a schedule is valid: (schedule, bound, whether timed out).

    While batteries may still be violated, a schedule that is nearly optimal is good enough to learn
    from. A valid one is then improved to the optimum, but not for long: the last thousandth can
    take forever, and no estimate is that good.
    """
    problem, now, bound = model.problem, model.now, -math.inf
    gap_share = GOOD_GAP_SHARE if objective == "energy" else 0.0
    may_learn, hint, timed_out = any(device.windows for device in problem.devices), best, True
    while (left_s := end_s - now()) > 0:
        limit_s = max(min(left_s, 1.0), left_s * _CALL_SHARE) if may_learn else left_s
        found, found_bound, is_finished, is_met = model.solve(objective, limit_s, hint, gap_share)
        bound = max(bound, found_bound)
        if found is None:
            break
        # Violations that are all known already are within the tolerance of integers, or final.
        is_new = model.forbid(replay(problem, found, STRICT).violations, found)
        is_valid = not replay(problem, found).violations
        schedule = found if is_valid else _repair(model, found, end_s)
        if _is_better(problem, schedule, best):
            best = schedule
        # A schedule that violates a battery is near a good one.
        may_learn, hint = is_new, found if is_new else best
        if is_new:
            continue
        if is_met or not is_valid:
            return best, bound, False
        if is_finished:
            gap_share, timed_out = 0.0, False
            end_s = min(end_s, now() + _EXACT_S)
    return best, bound, timed_out


def _repair(model: ScheduleModel, schedule: Schedule, end_s: float) -> Schedule:
    """Schedule each device whose battery is violated anew, then place what no longer fits.

    CP-SAT finds good assignments to devices long before all batteries hold, and one device is a
    small model: 30 jobs on 8 devices took 551 kJ instead of 701 kJ (20 deterministic time units).
    """
    problem, kept = model.problem, tuple[Assignment, ...]()
    for device in problem.devices:
        here = tuple(one for one in schedule if one.device == device.name)
        if replay_device(problem, device, here, STRICT).violations:
            part = model.restrict({device.name}, {one.job for one in here})
            count, here = len(here), place_rest(part.problem, ())
            if len(here) < count and len(problem.devices) > 1:
                here, *_ = _optimise(part, "priority", here, min(end_s, model.now() + _PART_S))
        kept += here
    return place_rest(problem, kept)


def _improve_parts(model: ScheduleModel, best: Schedule, end_s: float) -> Schedule:
    """Optimise a few devices at a time, the others fixed: CP-SAT is far faster on small models."""
    rng, names = random.Random(0), [device.name for device in model.problem.devices]
    while (at_s := model.now()) < end_s:
        chosen = set(rng.sample(names, _PART_DEVICES))
        elsewhere = tuple(one for one in best if one.device not in chosen)
        here = tuple(one for one in best if one.device in chosen)
        part = model.restrict(chosen, model.problem.job.keys() - {one.job for one in elsewhere})
        part.require_priority(here)
        found, *_ = _optimise(part, "energy", here, min(end_s, at_s + _PART_S))
        best = elsewhere + found
    return best


def _is_better(problem: Problem, new: Schedule, old: Schedule) -> bool:
    """Return whether a schedule runs more, takes less energy, or starts earlier, in that order."""
    more = problem.priority_of(new) - problem.priority_of(old)
    if more:
        return more > 0
    new_j, old_j = (replay(problem, one).energy_j for one in (new, old))
    if not math.isclose(new_j, old_j, rel_tol=_EQUAL):
        return new_j < old_j
    return sum(one.start_s for one in new) < sum(one.start_s for one in old)


# ---------------------------------------------------------------------------------------------
# Whole time steps


@dataclass(frozen=True)
class TimeGrid:
    """A time step, and how many of them any schedule can need."""

    step_s: float
    horizon: int

    def count(self, duration_s: float) -> int:
        """Return the nearest whole number of steps, at most the horizon's."""
        return round(min(duration_s / self.step_s, self.horizon))


def round_to_grid(problem: Problem) -> tuple[Problem, TimeGrid]:
    """Return a problem on whole time steps, rounded to the safe side, and the grid.

    Jobs get a little longer, start later and are due earlier; charging windows get shorter. A
    job's energy stays, but its battery must deliver the power for the longer time, so the true
    charge is never below the rounded one. Devices on which a job does not fit even alone are
    dropped: too little memory or time.
    """
    horizon_s, digits = _find_horizon(problem), (1, 2, 5)
    steps = (float(f"{digit}e{power}") for power in range(-3, 12) for digit in digits)
    step_s = next(step_s for step_s in steps if horizon_s / step_s <= _MAX_STEPS)

    def up(at_s: float) -> float:
        return math.ceil(at_s / step_s - _NEAR) * step_s

    def down(at_s: float) -> float:
        return at_s if math.isinf(at_s) else math.floor(at_s / step_s + _NEAR) * step_s

    devices = []
    for device in problem.devices:
        if device.battery:
            times = [(up(w.start_s), down(w.end_s), w.power_w) for w in device.windows]
            windows = tuple(ChargingWindow(*row) for row in times if row[0] < row[1])
            device = replace(device, battery=replace(device.battery, windows=windows))
        devices.append(device)
    jobs = []
    for job in problem.jobs:
        release_s, deadline_s, costs = up(job.release_s), down(job.deadline_s), {}
        for name, cost in job.costs.items():
            most_bytes, size_bytes = problem.device[name].memory_bytes, cost.memory_bytes
            if 0 < most_bytes < math.inf:
                part_bytes = most_bytes / _MEMORY_PARTS
                size_bytes = math.ceil(size_bytes / part_bytes) * part_bytes
            duration_s = max(step_s, up(cost.duration_s))
            if size_bytes <= most_bytes and release_s + duration_s <= deadline_s:
                drawn_s = cost.drawn_s or cost.duration_s
                costs[name] = JobCost(duration_s, cost.extra_j, size_bytes, drawn_s)
        jobs.append(replace(job, costs=costs, release_s=release_s, deadline_s=deadline_s))
    rounded = Problem(tuple(devices), tuple(jobs))
    return rounded, TimeGrid(step_s, max(1, math.ceil(_find_horizon(rounded) / step_s - _NEAR)))


def _find_horizon(problem: Problem) -> float:
    """Return when everything is over: the last deadline, or all jobs one after another."""
    deadlines_s = {job.deadline_s for job in problem.jobs}
    if math.inf not in deadlines_s:
        return max(deadlines_s)
    begin_s = [job.release_s for job in problem.jobs]
    begin_s += [window.end_s for device in problem.devices for window in device.windows]
    longest_s = [max((c.duration_s for c in t.costs.values()), default=0.0) for t in problem.jobs]
    return max(max(begin_s) + sum(longest_s), *(deadlines_s - {math.inf}), 1.0)


# ---------------------------------------------------------------------------------------------
# The model


class _Event(NamedTuple):
    """A time that moves with the schedule: its value there, its steps, and when it exists."""

    at_s: float
    name: str
    steps: Any
    conditions: tuple[Any, ...] = ()


class ScheduleModel:
    """The variables and constraints of a problem on a time grid."""

    def __init__(
        self, problem: Problem, grid: TimeGrid, workers: int, now: Callable[[], float]
    ) -> None:
        try:
            from ortools.sat.python import cp_model
        except ImportError as error:
            raise MissingError("planning needs OR-tools: pip install 'joulecast[plan]'") from error
        self.cp: Any = cp_model
        self.model = model = self.cp.CpModel()
        self.problem, self.grid, self.workers, self.now = problem, grid, workers, now
        self._known: set[tuple[str, str, str]] = set()
        self.placed = {(t.name, m): model.new_bool_var("") for t in problem.jobs for m in t.costs}
        self.start = {}
        for job in problem.jobs:
            release = grid.count(job.release_s)
            most = max(release, grid.count(job.deadline_s))
            self.start[job.name] = model.new_int_var(release, most, "")
            model.add_at_most_one(self.placed[job.name, name] for name in job.costs)
        self.first, self.last = (
            {device.name: model.new_int_var(0, grid.horizon, "") for device in problem.devices}
            for _ in range(2)
        )
        # The jobs that may run on a device: job, cost, time steps, whether placed.
        self.jobs: dict[str, list[tuple[Job, JobCost, int, Any]]] = {
            device.name: [
                (job, cost, grid.count(cost.duration_s), self.placed[job.name, device.name])
                for job in problem.jobs
                if (cost := job.costs.get(device.name))
            ]
            for device in problem.devices
        }
        costs = ([c.energy_j(problem.device[m]) for m, c in t.costs.items()] for t in problem.jobs)
        most_j = sum(max(row, default=0.0) for row in costs) or 1.0

        def choose_unit(wish_j: float, devices: Iterable[PlanDevice]) -> float:
            """Return the joules of a unit: as small as wished, but no sum overflows."""
            most_w = sum(m.awake_w + sum(w.power_w for w in m.windows) for m in devices)
            return max(wish_j, (most_w * grid.horizon * grid.step_s + most_j) / _MAX_UNITS)

        self._unit_j = choose_unit(most_j / _ENERGY_UNITS, problem.devices)
        self._battery_unit_j = {
            device.name: choose_unit(device.battery.capacity_j / _BATTERY_UNITS, (device,))
            for device in problem.devices
            if device.battery
        }
        priorities = (problem.job[job].priority * x for (job, _), x in self.placed.items())
        self._priority: Any = sum(priorities)
        self._energy: Any = 0
        for device in problem.devices:
            self._add_device(device)
            if device.battery:
                self._add_battery(device)

    def restrict(self, devices: set[str], jobs: set[str]) -> ScheduleModel:
        """Return the model of some jobs on some devices."""
        part = self.problem.restrict(devices, jobs)
        return ScheduleModel(part, self.grid, self.workers, self.now)

    def solve(
        self, objective: str, limit_s: float, hint: Schedule, gap_share: float = 0.0
    ) -> tuple[Schedule | None, float, bool, bool]:
        """Optimise an objective: ``priority`` of the running jobs, ``energy`` or ``starts``.

        Return the schedule, if one was found, the bound on the objective, whether the schedule is
        within the allowed gap, and whether it meets the bound.
        """
        goals = {"priority": -self._priority, "energy": self._energy}
        self.model.minimize(goals.get(objective, sum(self.start.values())))
        self._hint(hint)
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.05, limit_s)
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = 1
        solver.parameters.relative_gap_limit = gap_share
        solver.parameters.linearization_level = 2
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            raise RuntimeError("CP-SAT found a valid schedule infeasible")
        value, bound = solver.objective_value, solver.best_objective_bound
        scaled = bound * self._unit_j if objective == "energy" else bound
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None, scaled, False, False
        schedule = tuple(
            self.problem.assign(job, device, solver.value(self.start[job]) * self.grid.step_s)
            for (job, device), placed in self.placed.items()
            if solver.boolean_value(placed)
        )
        is_finished = status == self.cp.OPTIMAL
        is_met = is_finished and abs(value - bound) <= 1e-9 * abs(value)
        return schedule, scaled, is_finished, is_met

    def _hint(self, schedule: Schedule) -> None:
        """Start from a schedule; without hints for all of these CP-SAT often does not find it."""
        model, count, by_job = self.model, self.grid.count, {one.job: one for one in schedule}
        model.clear_hints()
        for (job, device), placed in self.placed.items():
            model.add_hint(placed, job in by_job and by_job[job].device == device)
        for job, start in self.start.items():
            one = by_job.get(job)
            model.add_hint(start, count(one.start_s if one else self.problem.job[job].release_s))
        for name in self.jobs:
            here = [one for one in schedule if one.device == name]
            model.add_hint(self.first[name], count(min((o.start_s for o in here), default=0.0)))
            model.add_hint(self.last[name], count(max((o.end_s for o in here), default=0.0)))

    def require_priority(self, schedule: Schedule) -> None:
        """Require that at least as much runs as in a schedule, by priority."""
        self.model.add(self._priority >= self.problem.priority_of(schedule))

    def fix_devices(self, schedule: Schedule) -> None:
        """Require the devices of a schedule, each awake for no longer than in it."""
        where = {one.job: one.device for one in schedule}
        for (job, device), placed in self.placed.items():
            self.model.add(placed == (where.get(job) == device))
        for name in set(where.values()):
            here = [one for one in schedule if one.device == name]
            span_s = max(one.end_s for one in here) - min(one.start_s for one in here)
            self.model.add(self.last[name] - self.first[name] <= self.grid.count(span_s))

    def forbid(self, violations: Iterable[Violation], schedule: Schedule) -> bool:
        """Forbid the lowest new charge of each battery in all schedules; False if none is new."""
        done: set[str] = set()
        for one in sorted(violations, key=lambda one: -one.missing):
            if one.kind != "battery" or one.device in done:
                continue
            device = self.problem.device[one.device]
            events = self._list_events(device, schedule)
            since, until = (
                min(events, key=lambda event: abs(event.at_s - at_s))
                for at_s in (one.full_s, one.at_s)
            )
            if (key := (device.name, since.name, until.name)) not in self._known:
                self._known.add(key)
                done.add(device.name)
                self._keep_charge(device, since, until)
        return bool(done)

    def _add_device(self, device: PlanDevice) -> None:
        model, jobs = self.model, self.jobs[device.name]
        first, last = self.first[device.name], self.last[device.name]
        model.add(first <= last)
        idle, intervals = round(device.awake_w * self.grid.step_s / self._unit_j), []
        self._energy += idle * (last - first)
        for job, cost, steps, placed in jobs:
            # A job's own energy is exact; only idle energy, and sharing it, is rounded.
            self._energy += (round(cost.energy_j(device) / self._unit_j) - idle * steps) * placed
            start, deadline = self.start[job.name], self.grid.count(job.deadline_s)
            intervals.append(model.new_optional_fixed_size_interval_var(start, steps, placed, ""))
            model.add(start + steps <= deadline).only_enforce_if(placed)
            model.add(first <= start).only_enforce_if(placed)
            model.add(last >= start + steps).only_enforce_if(placed)
        each, parallel = 1.0 / device.max_parallel, device.max_parallel
        shares = [[each] * len(jobs)]
        if parallel == 1:
            model.add_no_overlap(intervals)
        elif parallel < len(jobs):
            model.add_cumulative(intervals, [1] * len(jobs), parallel)
        if parallel > 1 and 0 < device.memory_bytes < math.inf:
            memory = [cost.memory_bytes / device.memory_bytes for _, cost, _, _ in jobs]
            sizes = [round(share * _MEMORY_PARTS) for share in memory]
            model.add_cumulative(intervals, sizes, _MEMORY_PARTS)
            # Jobs of more than half of the memory exclude each other; two others may be parallel.
            shares += [memory, [1.0 if share > 0.5 else each * (share == 0.5) for share in memory]]
        # Implied by the intervals, but only by all of them at once: bounds are far better with it.
        for row in shares:
            parts = [math.floor(_SHARE_PARTS * share) for share in row]
            busy = sum(p * steps * x for p, (_, _, steps, x) in zip(parts, jobs, strict=True))
            model.add(busy <= _SHARE_PARTS * (last - first))
        if 1 < parallel < len(jobs) <= _MAX_LANED:
            # No lane is longer than the device is awake. CP-SAT sees that only by trying start
            # times: ten problems of 10 x 5 had six proofs without lanes and nine with them.
            lanes = [[model.new_bool_var("") for _ in jobs] for _ in range(parallel)]
            for lane in lanes:
                busy = sum(steps * on for (_, _, steps, _), on in zip(jobs, lane, strict=True))
                model.add(busy <= last - first)
            for at, (_, _, _, placed) in enumerate(jobs):
                model.add(sum(lane[at] for lane in lanes) == placed)

    def _add_battery(self, device: PlanDevice) -> None:
        """Limit the energy until the last job ends to the charge and what the charger gives."""
        model, name, is_used = self.model, device.name, self.model.new_bool_var("")
        first, last = self.first[name], self.last[name]
        for _, _, _, placed in self.jobs[name]:
            model.add_implication(placed, is_used)
        self._keep_charge(device, _Event(0.0, "now", 0), _Event(0.0, "last", last, (is_used,)))
        # Some job starts first and one ends last; else waiting would count as charging.
        for edge, is_last in ((first, False), (last, True)) if device.windows else ():
            chosen = [model.new_bool_var("") for _ in self.jobs[name]]
            for (job, _, steps, placed), one in zip(self.jobs[name], chosen, strict=True):
                at = self.start[job.name] + (steps if is_last else 0)
                model.add(edge == at).only_enforce_if(one)
                model.add_implication(one, placed)
            model.add_bool_or([~is_used, *chosen])

    def _list_events(self, device: PlanDevice, schedule: Schedule) -> list[_Event]:
        """Return the events of a device; of equal times the most general comes first.

        ``first`` and ``last`` stand for whichever job that is in other schedules. Naming that job
        instead took a 10 x 5 problem from a proof in 6 s to none in 40 s.
        """
        here = [one for one in schedule if one.device == device.name]
        events = [
            _Event(0.0, "now", 0),
            _Event(min(one.start_s for one in here), "first", self.first[device.name]),
            _Event(max(one.end_s for one in here), "last", self.last[device.name]),
        ]
        for edge_s in (edge_s for w in device.windows for edge_s in (w.start_s, w.end_s)):
            events.append(_Event(edge_s, f"window {edge_s}", self.grid.count(edge_s)))
        for one in here:
            start, placed = self.start[one.job], (self.placed[one.job, device.name],)
            end = start + self.grid.count(one.end_s - one.start_s)
            events.append(_Event(one.start_s, f"start {one.job}", start, placed))
            events.append(_Event(one.end_s, f"end {one.job}", end, placed))
        return events

    def _keep_charge(self, device: PlanDevice, since: _Event, until: _Event) -> None:
        """Keep the charge at ``until`` above the reserve, if it was at most full at ``since``."""
        model, battery, t, u = self.model, device.battery, until.steps, since.steps
        assert battery is not None
        unit_j, first = self._battery_unit_j[device.name], self.first[device.name]

        def count_units(power_w: float) -> int:
            return round(power_w * self.grid.step_s / unit_j)

        # At least what the device draws between the two events, awake at the second.
        asleep = self._clip([first - u], self.grid.horizon)
        drawn = count_units(device.awake_w) * (t - u)
        drawn -= count_units(device.awake_w - device.asleep_w) * asleep
        for job, cost, steps, placed in self.jobs[device.name]:
            start = self.start[job.name]
            lengths = [t - start] if until.name != "last" else []
            lengths += [start + steps - u] if since.name not in ("now", "first") else []
            if not lengths:
                drawn += round(cost.extra_w * cost.duration_s / unit_j) * placed
                continue
            inside = model.new_int_var(0, steps, "")
            model.add(inside >= self._clip([steps, t - u, *lengths], steps)).only_enforce_if(placed)
            drawn += count_units(cost.extra_w) * inside
        # At most what the charger gives.
        for window in device.windows:
            start, end = self.grid.count(window.start_s), self.grid.count(window.end_s)
            inside = self._clip([end - start, t - start, end - u, t - u], end - start)
            drawn -= count_units(window.power_w) * inside
        held_j = battery.charge_j if since.name == "now" else battery.capacity_j
        room_j = held_j - battery.reserve_j + _TOLERANCE * battery.capacity_j
        # It need not hold while the device is asleep, nor where the two events swap places.
        holds, is_early, is_late, is_swapped = (model.new_bool_var("") for _ in range(4))
        missing = [~placed for placed in (*since.conditions, *until.conditions)]
        model.add_bool_or([holds, is_early, is_late, is_swapped, *missing])
        model.add(drawn <= math.floor(room_j / unit_j)).only_enforce_if(holds)
        model.add(t < first).only_enforce_if(is_early)
        model.add(t > self.last[device.name]).only_enforce_if(is_late)
        if since.name in ("now", until.name):
            model.add(is_swapped == 0)
        else:
            model.add(t <= u).only_enforce_if(is_swapped)

    def _clip(self, lengths: Sequence[Any], most: int) -> Any:
        """Return a variable for the least of some lengths, or 0 if that is negative."""
        least = self.model.new_int_var(-self.grid.horizon, most, "")
        clipped = self.model.new_int_var(0, most, "")
        self.model.add_min_equality(least, lengths)
        self.model.add_max_equality(clipped, [0, least])
        return clipped
