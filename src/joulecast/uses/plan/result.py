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
from joulecast.uses.plan.costs import Costs, JobCost, make_problem
from joulecast.uses.plan.problem import Machine, Problem, Slot
from joulecast.uses.plan.replay import MachineRun
from joulecast.uses.plan.solve import DEFAULT_LIMIT_S, Solution, solve

Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What shall happen.

    Attributes:
        problem: The numbers that it was planned with: upper bounds where a confidence was asked.
        solution: Slots, their replay, and how good they are.
        costs: What the estimates say of every job on every device.
        left_out: Jobs that do not run, and why.
        confidence: With which each job stays below the joules and seconds planned for it.
        now: When second 0 is.
    """

    problem: Problem
    solution: Solution
    costs: Costs
    left_out: tuple[LeftOut, ...]
    confidence: float
    now: datetime

    @property
    def basis(self) -> str:
        """The weakest provenance that it rests on."""
        return weakest_provenance(cost.basis for cost in self._list_costs())

    @property
    def covers(self) -> tuple[str, ...]:
        """What the meters behind it see."""
        return tuple(sorted({cost.covers for cost in self._list_costs()}))

    @property
    def interval_j(self) -> tuple[float, float]:
        """Where the energy of all is with 95 %: as if all jobs were off together, which is safe."""
        idle_j = sum(run.idle_j - run.shared_j for run in self.solution.replay.runs.values())
        lows, highs = zip(*(cost.interval_j for cost in self._list_costs()), strict=True)
        return max(0.0, sum(lows) + idle_j), sum(highs) + idle_j

    @property
    def expected_j(self) -> float:
        """The energy of all jobs as estimated, and what flows between them."""
        idle_j = sum(run.idle_j - run.shared_j for run in self.solution.replay.runs.values())
        return sum(cost.energy_j for cost in self._list_costs()) + idle_j

    def _list_costs(self) -> list[JobCost]:
        return [self.costs[slot.task][slot.machine] for slot in self.solution.slots]

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
            "now": self.now.isoformat(),
            "confidence": self.confidence,
            "basis": self.basis if found.slots else None,
            "covers": list(self.covers),
            "planned_energy_j": found.energy_j,
            "energy_j": self.expected_j if found.slots else 0.0,
            "interval_j": list(self.interval_j) if found.slots else [0.0, 0.0],
            "idle_j": sum(run.idle_j for run in found.replay.runs.values()),
            "lower_bound_j": found.bound_j,
            "gap_share": found.gap_share,
            "is_best": found.is_best,
            "runs_most": found.is_most,
            "tick_s": found.tick_s,
        }
        data["devices"] = [self._describe_run(*row) for row in self.list_runs()]
        data["left_out"] = [_describe_left_out(one) for one in self.left_out]
        return data

    def _describe_run(self, machine: Machine, run: MachineRun) -> Json:
        battery = machine.battery
        return {
            "device": machine.name,
            "energy_j": run.energy_j,
            "idle_j": run.idle_j,
            "shared_idle_j": run.shared_j,
            "awake_w": machine.awake_w,
            "jobs": [self._describe_slot(machine, run, slot) for slot in run.slots],
            "charge": [[m.at_s, m.charge_j / battery.capacity_j] for m in run.moments]
            if battery
            else None,
        }

    def _describe_slot(self, machine: Machine, run: MachineRun, slot: Slot) -> Json:
        cost = self.costs[slot.task][machine.name]
        planned = self.problem.task[slot.task].costs[machine.name]
        return {
            "job": slot.task,
            "start_s": slot.start_s,
            "end_s": slot.end_s,
            "start": (self.now + timedelta(seconds=slot.start_s)).isoformat(),
            "end": (self.now + timedelta(seconds=slot.end_s)).isoformat(),
            "planned_energy_j": planned.energy_j(machine),
            **cost.to_dict(),
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
        now: When second 0 is.
        confidence: With which each job shall stay below what is planned for it.
        limit_s: Seconds that may pass until the best plan so far is taken.
    """
    problem = make_problem(ask, costs, profiles, confidence)
    solution = solve(problem, limit_s)
    left_out = tuple(blame(problem, solution.slots, name) for name in solution.left_out)
    return Plan(problem, solution, costs, left_out, confidence, now)


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
