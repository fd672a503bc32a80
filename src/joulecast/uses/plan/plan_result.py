"""Represent a finished plan: who runs when, its energy, batteries, and jobs left out.

The expected energy follows the schedule in its order while jobs take what is estimated; the ends of
its interval assume that the errors of all jobs have the same sign, which is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from joulecast.records import Profile, weakest_provenance
from joulecast.uses.plan.job_costs import LEVEL, Costs, JobCost, expect_cost, make_problem
from joulecast.uses.plan.left_out import LeftOut, explain_left_out
from joulecast.uses.plan.plan_request import PlanRequest
from joulecast.uses.plan.problem import Assignment, PlanDevice, Problem, Schedule
from joulecast.uses.plan.replay import DeviceRun, Replay, replay
from joulecast.uses.plan.solve import DEFAULT_LIMIT_S, Solution, solve

Json = dict[str, Any]
# A task that starts this many time steps after another ends was to follow it.
_NEXT_STEPS = 1.5


@dataclass(frozen=True)
class Scenario:
    """A schedule followed in its order while jobs take what another problem says."""

    problem: Problem
    replay: Replay


@dataclass(frozen=True)
class Plan:
    """Which job runs when on which device.

    Attributes:
        problem: The numbers it was planned with: upper bounds at ``confidence``.
        solution: The schedule, its replay and its lower bound.
        costs: Estimates of every job on every device.
        scenarios: The schedule with expected costs, and at both ends of the 95 % interval.
        left_out: Jobs that do not run, and why.
        confidence: Probability with which each job stays below its planned energy and duration.
        now: When second 0 is; local time without a time zone.
    """

    problem: Problem
    solution: Solution
    costs: Costs
    scenarios: tuple[Scenario, Scenario, Scenario]
    left_out: tuple[LeftOut, ...]
    confidence: float
    now: datetime

    @property
    def provenance(self) -> str:
        """Return the weakest provenance it rests on."""
        return weakest_provenance(self._cost(one).provenance for one in self.solution.schedule)

    @property
    def covers(self) -> tuple[str, ...]:
        """Return what the meters behind it cover."""
        covers = {self._cost(one).covers for one in self.solution.schedule}
        return tuple(sorted(covers - {""}))

    @property
    def stated_devices(self) -> tuple[str, ...]:
        """Return the devices in use that have a stated power and speed."""
        stated = (one.device for one in self.solution.schedule if not self._cost(one).covers)
        return tuple(dict.fromkeys(stated))

    @property
    def energy_j(self) -> float:
        """Return the expected energy of all devices while awake."""
        return self.scenarios[0].replay.energy_j

    @property
    def interval_j(self) -> tuple[float, float]:
        """Return the 95 % interval of the energy."""
        energies_j = [scenario.replay.energy_j for scenario in self.scenarios]
        return min(energies_j), max(energies_j)

    @property
    def idle_j(self) -> float:
        """Return the expected energy between jobs."""
        return sum(run.idle_j for run in self.scenarios[0].replay.runs.values())

    @property
    def shared_j(self) -> float:
        """Return the expected idle energy saved by running jobs in parallel."""
        return sum(run.shared_j for run in self.scenarios[0].replay.runs.values())

    def job_energy_j(self, one: Assignment) -> tuple[float, float, float]:
        """Return the energy of a device while only this job runs: expected, and both ends."""
        device = self.problem.device[one.device]
        costs = [scenario.problem.task[one.task].costs[one.device] for scenario in self.scenarios]
        mean_j, low_j, high_j = (cost.energy_j(device) for cost in costs)
        return mean_j, low_j, high_j

    def list_runs(self) -> list[tuple[PlanDevice, DeviceRun]]:
        """Return the devices in use with what they do."""
        runs = self.solution.replay.runs
        rows = [(device, runs[device.name]) for device in self.problem.devices]
        return [(device, run) for device, run in rows if run.assignments]

    def charge_share(self, device: PlanDevice, run: DeviceRun, at_s: float) -> float | None:
        """Return the state of charge at a time; None on mains power."""
        charge_j = run.charge_at(at_s)
        return (
            charge_j / device.battery.capacity_j
            if device.battery and charge_j is not None
            else None
        )

    def time_at(self, at_s: float) -> datetime:
        """Return the date of a second of the plan, with its time zone."""
        if self.now.tzinfo is not None:
            return self.now + timedelta(seconds=at_s)
        return (self.now.astimezone() + timedelta(seconds=at_s)).astimezone()

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        solution = self.solution
        return {
            "now": self.time_at(0.0).isoformat(),
            "confidence": self.confidence,
            "provenance": self.provenance if solution.schedule else None,
            "covers": list(self.covers),
            "planned_energy_j": solution.energy_j,
            "planned_lower_bound_j": solution.lower_bound_j,
            "energy_j": self.energy_j,
            "interval_j": list(self.interval_j),
            "idle_j": self.idle_j,
            "shared_idle_j": self.shared_j,
            "gap_share": solution.gap_share,
            "is_optimal": solution.is_optimal,
            "timed_out": solution.timed_out,
            "runs_most": solution.runs_most,
            "time_step_s": solution.time_step_s,
            "devices": [self._describe_run(*row) for row in self.list_runs()],
            "left_out": [job.to_dict() for job in self.left_out],
        }

    def _cost(self, one: Assignment) -> JobCost:
        return self.costs[one.task][one.device]

    def _describe_run(self, device: PlanDevice, run: DeviceRun) -> Json:
        battery, expected = device.battery, self.scenarios[0].replay.runs[device.name]
        charge = None
        if battery:
            charge = [[point.at_s, point.charge_j / battery.capacity_j] for point in run.charge]
        return {
            "device": device.name,
            "planned_energy_j": run.energy_j,
            "energy_j": expected.energy_j,
            "idle_j": expected.idle_j,
            "shared_idle_j": expected.shared_j,
            "awake_w": device.awake_w,
            "jobs": [self._describe_job(device, run, one) for one in run.assignments],
            "charge": charge,
            "reserve_share": battery.reserve_j / battery.capacity_j if battery else 0.0,
            "charging_windows": [
                [window.start_s, window.end_s] for window in (battery.windows if battery else ())
            ],
        }

    def _describe_job(self, device: PlanDevice, run: DeviceRun, one: Assignment) -> Json:
        cost, (mean_j, *interval_j) = self._cost(one), self.job_energy_j(one)
        return {
            "job": one.task,
            "start_s": one.start_s,
            "end_s": one.end_s,
            "start": self.time_at(one.start_s).isoformat(),
            "end": self.time_at(one.end_s).isoformat(),
            "planned_energy_j": self.problem.task[one.task].costs[device.name].energy_j(device),
            "energy_j": mean_j,
            "interval_j": interval_j,
            "duration_s": cost.run.duration_s,
            "memory_bytes": cost.memory_bytes,
            "provenance": cost.provenance,
            "covers": cost.covers or None,
            "unseen_share": cost.unseen_share,
            "charge_share": self.charge_share(device, run, one.end_s),
        }


def plan_jobs(
    request: PlanRequest,
    costs: Costs,
    profiles: Mapping[str, Profile],
    now: datetime,
    confidence: float = 0.5,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Plan:
    """Return the plan that runs most jobs by priority, then takes least energy, then starts first.

    Args:
        request: Jobs and devices.
        costs: What jobs take on devices, from ``estimate_jobs``.
        profiles: Profiles by device, for idle power and memory.
        now: When second 0 is; local time without a time zone.
        confidence: Probability with which each job stays below what is planned for it.
        limit_s: Time after which the best plan so far is returned.
    """
    problem = make_problem(request, costs, profiles, confidence)
    solution = solve(problem, limit_s)
    left_out = (explain_left_out(problem, solution.schedule, name) for name in solution.left_out)
    near_s = _NEXT_STEPS * solution.time_step_s
    scenarios = []
    for quantile in (0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2):
        other = make_problem(request, costs, profiles, quantile, expect_cost)
        followed = follow_schedule(other, solution.schedule, near_s)
        scenarios.append(Scenario(other, replay(other, followed)))
    mean, low, high = scenarios
    return Plan(problem, solution, costs, (mean, low, high), tuple(left_out), confidence, now)


def follow_schedule(problem: Problem, schedule: Schedule, near_s: float) -> Schedule:
    """Return a schedule with the durations of another problem, in the same order.

    A task that was to start when another ends does so, but not before its release; the others start
    at their time, or as soon after it as there is room.

    Args:
        problem: The same tasks and devices with other costs.
        schedule: What was planned.
        near_s: How soon after another a task starts that was to follow it.
    """
    ordered = sorted(schedule, key=lambda one: (one.start_s, one.end_s))
    done: dict[str, Assignment] = {}
    for one in ordered:
        before = [o for o in ordered if o.device == one.device and o.task in done]
        followed = [done[o.task].end_s for o in before if abs(o.end_s - one.start_s) <= near_s]
        wish_s = max(min(followed, default=one.start_s), problem.task[one.task].release_s)
        start_s = _find_room(problem, [done[o.task] for o in before], one, wish_s)
        done[one.task] = problem.assign(one.task, one.device, start_s)
    return tuple(done.values())


def _find_room(
    problem: Problem, before: Sequence[Assignment], one: Assignment, from_s: float
) -> float:
    """Return the first time with a lane and memory beside tasks that started before."""
    device = problem.device[one.device]
    for at_s in sorted({from_s, *(o.end_s for o in before if o.end_s > from_s)}):
        running = [o for o in before if o.end_s > at_s]
        costs = (problem.task[o.task].costs[device.name] for o in (*running, one))
        fits = sum(cost.memory_bytes for cost in costs) <= device.memory_bytes
        if fits and len(running) < device.max_parallel:
            return at_s
    raise RuntimeError(f"{one.task} does not fit on {device.name}")
