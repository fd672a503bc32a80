"""The question as CP-SAT takes it; the only room that knows OR-tools.

    placed[i, m]      task i runs on machine m: an optional interval of its length there
    first, last       of each machine: when it wakes, and when its last task ends
    energy            Σ extra · placed + Σ awake_w · (last - first)

Numbers are whole (sheet.py); what batteries allow is said in batteries.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import MissingError
from joulecast.uses.plan.batteries import Batteries
from joulecast.uses.plan.packing import list_shares
from joulecast.uses.plan.problem import Machine, Problem, Slot, Slots
from joulecast.uses.plan.replay import Break
from joulecast.uses.plan.sheet import Sheet
from joulecast.uses.plan.ticks import MEMORY_PARTS

_SAME = 1e-9
# Tasks of a machine up to which its lanes are told apart.
_FEW = 30
_INSTANT_S = 1e-6
# Places of all tasks from which on a model is large.
MANY = 2000


@dataclass(frozen=True)
class Found:
    """What the solver says: its best plan, a bound on what any plan reaches, whether they meet.

    Attributes:
        slots: None where it found no plan.
        is_impossible: Whether it has shown that there is none.
    """

    slots: Slots | None
    bound: float
    is_best: bool
    is_impossible: bool = False


def import_solver() -> Any:
    """CP-SAT, or what to install."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingError("planning needs OR-tools: pip install 'joulecast[plan]'") from error
    return cp_model


class Timetable:
    """A CP-SAT model of a problem on ticks, to which constraints are added as they are met."""

    def __init__(self, problem: Problem, tick_s: float, horizon_s: float) -> None:
        self._solver = import_solver()
        self._model = self._solver.CpModel()
        self._problem = problem
        self._sheet = Sheet(self._model, problem, tick_s, horizon_s)
        self._batteries = Batteries(self._sheet)
        self._lanes: dict[str, dict[tuple[str, int], Any]] = {}
        self._add_tasks()
        for machine in problem.machines:
            self._add_machine(machine)
        self._energy = self._sum_energy()

    # -- what is always there

    def _add_tasks(self) -> None:
        sheet = self._sheet
        for task in self._problem.tasks:
            earliest = sheet.to_ticks(task.release_s)
            latest = sheet.find_deadline(task.deadline_s)
            start = self._model.new_int_var(earliest, max(earliest, latest), "")
            sheet.start[task.name] = start
            for name, cost in task.costs.items():
                here = self._model.new_bool_var("")
                sheet.placed[task.name, name] = here
                end = start + sheet.to_ticks(cost.duration_s)
                self._model.add(end <= latest).only_enforce_if(here)
            self._model.add_at_most_one(sheet.placed[task.name, name] for name in task.costs)

    def _add_machine(self, machine: Machine) -> None:
        tasks = [task for task in self._problem.tasks if machine.name in task.costs]
        spans = [self._add_interval(task.name, machine.name) for task in tasks]
        if machine.at_once == 1:
            self._model.add_no_overlap(spans)
        elif machine.at_once < len(spans):
            self._model.add_cumulative(spans, [1] * len(spans), machine.at_once)
        if _shares_memory(machine):
            sizes = [self._count_parts(task.name, machine) for task in tasks]
            self._model.add_cumulative(spans, sizes, MEMORY_PARTS)
        if machine.awake_w or machine.battery:
            self._add_waking(machine)
        if machine.battery:
            self._batteries.add(machine, machine.battery)

    def _add_interval(self, task: str, machine: str) -> Any:
        cost, sheet = self._problem.task[task].costs[machine], self._sheet
        length = sheet.to_ticks(cost.duration_s)
        start, here = sheet.start[task], sheet.placed[task, machine]
        return self._model.new_optional_fixed_size_interval_var(start, length, here, "")

    def _count_parts(self, task: str, machine: Machine) -> int:
        """Of a machine's memory: whole already, and more than all of it where it is too much."""
        share = machine.share_memory(self._problem.task[task].costs[machine.name])
        return round(min(2.0, share) * MEMORY_PARTS)

    def _add_waking(self, machine: Machine) -> None:
        sheet = self._sheet
        first, last = (self._model.new_int_var(0, sheet.ticks, "") for _ in range(2))
        sheet.first[machine.name], sheet.last[machine.name] = first, last
        self._model.add(first <= last)
        here = sheet.list_here(machine)
        for task, length, placed in here:
            self._model.add(first <= sheet.start[task]).only_enforce_if(placed)
            self._model.add(last >= sheet.start[task] + length).only_enforce_if(placed)
        # Follows from the rest, but only from all of it at once: bounds are far better with it.
        costs = [self._problem.task[task].costs[machine.name] for task, _, _ in here]
        whole = machine.at_once * MEMORY_PARTS
        for shares in list_shares(machine, costs):
            sized = zip(here, shares, strict=True)
            busy = sum(round(whole * share) * length * at for (_, length, at), share in sized)
            self._model.add(whole * (last - first) >= busy)
        if 1 < machine.at_once < len(here) <= _FEW:
            self._add_lanes(machine)

    def _add_lanes(self, machine: Machine) -> None:
        """Tasks that run at once are on lanes of their own, each no longer than the machine is up.

        This too follows from the rest, but only by trying starts: how well lengths share out among
        lanes, which the last thousandth of the energy hangs on, is seen without any.
        """
        here, model = self._sheet.list_here(machine), self._model
        (first, last), lanes = self._sheet.find_ends(machine), range(machine.at_once)
        on = {(task, lane): model.new_bool_var("") for task, _, _ in here for lane in lanes}
        self._lanes[machine.name] = on
        for task, _, placed in here:
            model.add(sum(on[task, lane] for lane in lanes) == placed)
        for lane in lanes:
            model.add(sum(length * on[task, lane] for task, length, _ in here) <= last - first)

    def _sum_energy(self) -> Any:
        sheet, total = self._sheet, 0
        for machine in self._problem.machines:
            waiting = round(machine.awake_w * sheet.tick_s / sheet.unit_j)
            for task, length, here in sheet.list_here(machine):
                energy_j = self._problem.task[task].costs[machine.name].energy_j(machine)
                # A task's own joules are exact; what is rounded is waiting, and sharing it.
                total += (round(energy_j / sheet.unit_j) - waiting * length) * here
            if machine.awake_w:
                first, last = sheet.find_ends(machine)
                total += waiting * (last - first)
        return total

    # -- what is added later

    def forbid_breaks(self, breaks: Iterable[Break], slots: Slots) -> bool:
        """Never again what a replay met; False where nothing of it was new."""
        return self._batteries.forbid_breaks(breaks, slots)

    def keep_running(self, tasks: Iterable[str]) -> None:
        """From now on at least as much must run as these, by their priorities."""
        worth = sum(self._problem.task[name].priority for name in tasks)
        self._model.add(self._worth() >= worth)

    def keep_awake_at_most(self, machine: Machine, span_s: float) -> None:
        """From now on a machine is awake for no longer than this."""
        if machine.awake_w:
            first, last = self._sheet.find_ends(machine)
            self._model.add(last - first <= self._sheet.to_ticks(span_s))

    # -- asking

    def solve(self, aim: str, hint: Slots, limit_s: float, workers: int, gap_share: float) -> Found:
        """The best plan by an aim: ``running`` (as much as can be), ``energy``, ``early``."""
        model, starts = self._model, sum(self._sheet.start.values())
        model.minimize({"running": -self._worth(), "energy": self._energy, "early": starts}[aim])
        self._give_hint(hint)
        solver = self._solver.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.05, limit_s)
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 1
        solver.parameters.relative_gap_limit = gap_share
        solver.parameters.linearization_level = 2
        if len(self._sheet.placed) > MANY:
            # Looking at every choice before the search would take all of the time.
            solver.parameters.cp_model_probing_level = 0
        status = solver.solve(model)
        cp = self._solver
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return Found(None, self._scale(aim, solver), False, status == cp.INFEASIBLE)
        value, bound = solver.objective_value, solver.best_objective_bound
        is_best = status == cp.OPTIMAL and abs(value - bound) <= _SAME * abs(value)
        return Found(self._read(solver), self._scale(aim, solver), is_best)

    def _scale(self, aim: str, solver: Any) -> float:
        """The bound in joules, or as it is."""
        bound = float(solver.best_objective_bound)
        return bound * self._sheet.unit_j if aim == "energy" else bound

    def _worth(self) -> Any:
        placed = self._sheet.placed.items()
        return sum(self._problem.task[task].priority * here for (task, _), here in placed)

    def _give_hint(self, slots: Slots) -> None:
        self._model.clear_hints()
        where = {slot.task: slot for slot in slots}
        for (task, machine), here in self._sheet.placed.items():
            slot = where.get(task)
            self._model.add_hint(here, slot is not None and slot.machine == machine)
        for slot in slots:
            start = self._sheet.start[slot.task]
            self._model.add_hint(start, self._sheet.to_ticks(slot.start_s))
        for name, on in self._lanes.items():
            lane_of = _find_lanes([slot for slot in slots if slot.machine == name])
            for (task, lane), here in on.items():
                self._model.add_hint(here, lane_of.get(task) == lane)

    def _read(self, solver: Any) -> Slots:
        sheet = self._sheet
        return tuple(
            self._problem.make_slot(
                self._problem.task[task], machine, solver.value(sheet.start[task]) * sheet.tick_s
            )
            for (task, machine), here in sheet.placed.items()
            if solver.boolean_value(here)
        )


def _find_lanes(slots: Iterable[Slot]) -> dict[str, int]:
    """Each on the first lane that is free when it begins."""
    ends: list[float] = []
    found = {}
    for slot in sorted(slots, key=lambda slot: slot.start_s):
        free = [lane for lane, end_s in enumerate(ends) if end_s <= slot.start_s + _INSTANT_S]
        lane = free[0] if free else len(ends)
        ends[lane : lane + 1] = [slot.end_s]
        found[slot.task] = lane
    return found


def _shares_memory(machine: Machine) -> bool:
    return machine.at_once > 1 and 0 < machine.memory_bytes < math.inf
