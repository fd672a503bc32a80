"""A finished plan: who runs when, what it takes, what batteries hold, who is left out and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from joulecast.records import Profile, weakest_provenance
from joulecast.uses.plan.ask import Ask
from joulecast.uses.plan.blame import LeftOut, blame
from joulecast.uses.plan.costs import LEVEL, Costs, JobCost, expect_cost, make_problem
from joulecast.uses.plan.follow import follow
from joulecast.uses.plan.problem import Machine, Problem, Slot
from joulecast.uses.plan.replay import MachineRun, Replay, replay
from joulecast.uses.plan.solve import DEFAULT_LIMIT_S, Solution, solve

Json = dict[str, Any]
_NEXT = 1.5


@dataclass(frozen=True)
class Outlook:
    """A plan followed in its order while jobs take what another problem says."""

    problem: Problem
    replay: Replay


@dataclass(frozen=True)
class Plan:
    """What shall happen.

    Attributes:
        problem: The numbers that it was planned with: upper bounds where a confidence was asked.
        solution: Slots, their replay, and how good they are.
        costs: What the estimates say of every job on every device.
        outlooks: The plan followed with what is expected of jobs, and with both ends of 95 %.
        left_out: Jobs that do not run, and why.
        confidence: With which each job stays below the joules and seconds planned for it.
        now: When second 0 is; without a zone it is the time of this machine's clock.
    """

    problem: Problem
    solution: Solution
    costs: Costs
    outlooks: tuple[Outlook, Outlook, Outlook]
    left_out: tuple[LeftOut, ...]
    confidence: float
    now: datetime

    @property
    def provenance(self) -> str:
        """The weakest provenance that it rests on."""
        return weakest_provenance(cost.provenance for cost in self._list_costs())

    @property
    def covers(self) -> tuple[str, ...]:
        """What the meters behind it see; those of stated powers there are none."""
        return tuple(sorted({cost.covers for cost in self._list_costs() if cost.covers}))

    @property
    def stated(self) -> tuple[str, ...]:
        """Devices that run something by a stated power and speed."""
        found = (slot.machine for slot in self.solution.slots if not self._cost(slot).covers)
        return tuple(dict.fromkeys(found))

    def tell_time(self, at_s: float) -> datetime:
        """When a second of the plan is, with its zone."""
        if self.now.tzinfo is not None:
            return self.now + timedelta(seconds=at_s)
        return (self.now.astimezone() + timedelta(seconds=at_s)).astimezone()

    @property
    def expected_j(self) -> float:
        """What devices draw while awake if every job takes what is expected of it."""
        return self.outlooks[0].replay.energy_j

    @property
    def interval_j(self) -> tuple[float, float]:
        """Where that is with 95 %: as if all jobs were off together, which is safe."""
        found = [outlook.replay.energy_j for outlook in self.outlooks]
        return min(found), max(found)

    @property
    def idle_j(self) -> float:
        """What of the expected energy flows between jobs."""
        return sum(run.idle_j for run in self.outlooks[0].replay.runs.values())

    @property
    def shared_j(self) -> float:
        """What jobs at once would pay twice if each were alone, as expected."""
        return sum(run.shared_j for run in self.outlooks[0].replay.runs.values())

    def job_j(self, slot: Slot) -> tuple[float, float, float]:
        """What a device draws while a job runs alone: expected, and both ends."""
        machine = self.problem.machine[slot.machine]
        mean, low, high = (
            outlook.problem.task[slot.task].costs[slot.machine].energy_j(machine)
            for outlook in self.outlooks
        )
        return mean, low, high

    def _list_costs(self) -> list[JobCost]:
        return [self._cost(slot) for slot in self.solution.slots]

    def _cost(self, slot: Slot) -> JobCost:
        return self.costs[slot.task][slot.machine]

    def list_runs(self) -> list[tuple[Machine, MachineRun]]:
        """Devices that have something to do."""
        runs = self.solution.replay.runs
        rows = [(machine, runs[machine.name]) for machine in self.problem.machines]
        return [(machine, run) for machine, run in rows if run.slots]

    def charge_share(self, machine: Machine, run: MachineRun, at_s: float) -> float | None:
        """What a battery holds at a moment, as a share; None on the mains."""
        held_j = run.charge_at(at_s)
        return (
            None if held_j is None or not machine.battery else held_j / machine.battery.capacity_j
        )

    def to_dict(self) -> Json:
        found = self.solution
        data: Json = {
            "now": self.tell_time(0.0).isoformat(),
            "confidence": self.confidence,
            "provenance": self.provenance if found.slots else None,
            "covers": list(self.covers),
            "planned_energy_j": found.energy_j,
            "planned_lower_bound_j": found.bound_j,
            "energy_j": self.expected_j,
            "interval_j": list(self.interval_j),
            "idle_j": self.idle_j,
            "shared_idle_j": self.shared_j,
            "gap_share": found.gap_share,
            "is_best": found.is_best,
            "timed_out": found.timed_out,
            "runs_most": found.is_most,
            "tick_s": found.tick_s,
        }
        data["devices"] = [self._describe_run(*row) for row in self.list_runs()]
        data["left_out"] = [_describe_left_out(one) for one in self.left_out]
        return data

    def _describe_run(self, machine: Machine, run: MachineRun) -> Json:
        battery, expected = machine.battery, self.outlooks[0].replay.runs[machine.name]
        return {
            "device": machine.name,
            "planned_energy_j": run.energy_j,
            "energy_j": expected.energy_j,
            "idle_j": expected.idle_j,
            "shared_idle_j": expected.shared_j,
            "awake_w": machine.awake_w,
            "jobs": [self._describe_slot(machine, run, slot) for slot in run.slots],
            "charge": [[m.at_s, m.charge_j / battery.capacity_j] for m in run.moments]
            if battery
            else None,
        }

    def _describe_slot(self, machine: Machine, run: MachineRun, slot: Slot) -> Json:
        cost, (mean_j, *ends_j) = self._cost(slot), self.job_j(slot)
        planned = self.problem.task[slot.task].costs[machine.name]
        return {
            "job": slot.task,
            "start_s": slot.start_s,
            "end_s": slot.end_s,
            "start": self.tell_time(slot.start_s).isoformat(),
            "end": self.tell_time(slot.end_s).isoformat(),
            "planned_energy_j": planned.energy_j(machine),
            "energy_j": mean_j,
            "interval_j": ends_j,
            "duration_s": cost.spread.duration_s,
            "memory_bytes": cost.memory_bytes,
            "provenance": cost.provenance,
            "covers": cost.covers or None,
            "unseen_share": cost.unseen_share,
            "charge_share": self.charge_share(machine, run, slot.end_s),
        }


def plan_jobs(
    ask: Ask,
    costs: Costs,
    profiles: Mapping[str, Profile],
    now: datetime,
    confidence: float = 0.5,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Plan:
    """The plan that runs most jobs, then takes least energy, then is earliest.

    Args:
        ask: Jobs and devices.
        costs: What jobs take on devices, from ``estimate_jobs``.
        profiles: What devices have learnt, for their idle power and memory.
        now: When second 0 is; without a zone it is the time of this machine's clock.
        confidence: With which each job shall stay below what is planned for it.
        limit_s: Seconds that may pass until the best plan so far is taken.
    """
    problem = make_problem(ask, costs, profiles, confidence)
    solution = solve(problem, limit_s)
    left_out = tuple(blame(problem, solution.slots, name) for name in solution.left_out)
    mean, low, high = (
        _follow(make_problem(ask, costs, profiles, share, expect_cost), solution)
        for share in (0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
    )
    return Plan(problem, solution, costs, (mean, low, high), left_out, confidence, now)


def _follow(problem: Problem, solution: Solution) -> Outlook:
    # Whoever follows another begins at the next tick.
    slots = follow(problem, solution.slots, _NEXT * solution.tick_s)
    return Outlook(problem, replay(problem, slots))


def _describe_left_out(one: LeftOut) -> Json:
    reasons = [
        {
            "device": reason.device,
            "reason": reason.kind,
            "missing": reason.missing if math.isfinite(reason.missing) else None,
            "unit": reason.unit,
            "alone": reason.alone,
        }
        for reason in one.reasons
    ]
    return {"job": one.job, "alone": one.alone, "reasons": reasons}
