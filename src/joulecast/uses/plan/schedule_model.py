"""Model the problem in CP-SAT: which device runs each task, and when.

    placed[i, m]         task i runs on device m: an optional interval
    start[i]             when task i starts
    first[m], last[m]    when device m wakes, and when its last task ends
    energy               sum extra_j * placed + sum awake_w * (last - first)

CP-SAT counts in integers: times are time steps, energies whole units. Batteries are modelled by
``ChargeModel``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import MissingError
from joulecast.uses.plan.problem import PlanDevice, Problem, Schedule, Task, TaskCost
from joulecast.uses.plan.relaxation import list_shares
from joulecast.uses.plan.time_grid import MEMORY_PARTS, TimeGrid

# Units in the energy of all tasks and in a battery, and the largest sum.
_ENERGY_UNITS, _BATTERY_UNITS, _MAX_UNITS = 1e11, 1e12, 1e17
# Tasks of a device up to which each gets a lane.
_MAX_LANED = 30
_SHARE_PARTS = 2**12
_EQUAL = 1e-9


@dataclass(frozen=True)
class SolverResult:
    """CP-SAT's best schedule, its bound on the objective, and whether they meet.

    Attributes:
        schedule: None where none was found.
    """

    schedule: Schedule | None
    bound: float
    is_optimal: bool = False
    is_infeasible: bool = False


class ScheduleModel:
    """The variables and constraints of a problem on a time grid, without batteries."""

    def __init__(self, problem: Problem, grid: TimeGrid) -> None:
        self.cp = import_solver()
        self.model = model = self.cp.CpModel()
        self.problem, self.grid = problem, grid
        self.placed = {(t.name, m): model.new_bool_var("") for t in problem.tasks for m in t.costs}
        self.start = {task.name: self._add_start(task) for task in problem.tasks}
        self.first, self.last = (
            {device.name: model.new_int_var(0, grid.horizon, "") for device in problem.devices}
            for _ in range(2)
        )
        self._most_j = self._sum_most()
        self._unit_j = self._choose_unit(self._most_j / _ENERGY_UNITS, problem.devices)
        self.battery_unit_j = {
            device.name: self._choose_unit(device.battery.capacity_j / _BATTERY_UNITS, (device,))
            for device in problem.devices
            if device.battery
        }
        for task in problem.tasks:
            model.add_at_most_one(self.placed[task.name, name] for name in task.costs)
        for device in problem.devices:
            self._add_device(device)

    def solve(
        self, objective: str, limit_s: float, hint: Schedule, workers: int, gap_share: float = 0.0
    ) -> SolverResult:
        """Optimise an objective: ``priority`` of the running tasks, ``energy`` or ``starts``."""
        self.model.minimize(
            -self._sum_priority()
            if objective == "priority"
            else self._sum_energy()
            if objective == "energy"
            else sum(self.start.values())
        )
        self._add_hints(hint)
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.05, limit_s)
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 1
        solver.parameters.relative_gap_limit = gap_share
        solver.parameters.linearization_level = 2
        status = solver.solve(self.model)
        value, bound = solver.objective_value, solver.best_objective_bound
        scaled = bound * self._unit_j if objective == "energy" else bound
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return SolverResult(None, scaled, is_infeasible=status == self.cp.INFEASIBLE)
        is_optimal = status == self.cp.OPTIMAL and abs(value - bound) <= _EQUAL * abs(value)
        return SolverResult(self._read_schedule(solver), scaled, is_optimal)

    def require_priority(self, tasks: Iterable[str]) -> None:
        """Require that at least as much runs as these tasks, by priority."""
        self.model.add(self._sum_priority() >= self.problem.priority_of(tasks))

    def require_span(self, device: str, span_s: float) -> None:
        """Require that a device is awake for at most this long."""
        self.model.add(self.last[device] - self.first[device] <= self.grid.count(span_s))

    def list_tasks(self, device: PlanDevice) -> list[tuple[Task, TaskCost, int, Any]]:
        """Return the tasks that may run on a device: task, cost, time steps, whether placed."""
        name = device.name
        rows = [(task, task.costs[name]) for task in self.problem.tasks if name in task.costs]
        return [(t, c, self.grid.count(c.duration_s), self.placed[t.name, name]) for t, c in rows]

    def _add_start(self, task: Task) -> Any:
        release = self.grid.count(task.release_s)
        return self.model.new_int_var(release, max(release, self._find_deadline(task)), "")

    def _find_deadline(self, task: Task) -> int:
        return min(self.grid.horizon, self.grid.count(task.deadline_s))

    def _add_device(self, device: PlanDevice) -> None:
        model, tasks = self.model, self.list_tasks(device)
        first, last = self.first[device.name], self.last[device.name]
        model.add(first <= last)
        intervals = []
        for task, _, steps, placed in tasks:
            start = self.start[task.name]
            intervals.append(model.new_optional_fixed_size_interval_var(start, steps, placed, ""))
            model.add(start + steps <= self._find_deadline(task)).only_enforce_if(placed)
            model.add(first <= start).only_enforce_if(placed)
            model.add(last >= start + steps).only_enforce_if(placed)
        if device.max_parallel == 1:
            model.add_no_overlap(intervals)
        elif device.max_parallel < len(tasks):
            model.add_cumulative(intervals, [1] * len(tasks), device.max_parallel)
        if device.shares_memory:
            shares = [min(2.0, cost.memory_bytes / device.memory_bytes) for _, cost, _, _ in tasks]
            sizes = [round(share * MEMORY_PARTS) for share in shares]
            model.add_cumulative(intervals, sizes, MEMORY_PARTS)
        # Implied by the intervals, but only by all of them at once: bounds are far better with it.
        for shares in list_shares(device, [cost for _, cost, _, _ in tasks]):
            parts = [math.floor(_SHARE_PARTS * share) for share in shares]
            busy = sum(p * steps * x for p, (_, _, steps, x) in zip(parts, tasks, strict=True))
            model.add(busy <= _SHARE_PARTS * (last - first))
        if 1 < device.max_parallel < len(tasks) <= _MAX_LANED:
            self._add_lanes(device)

    def _add_lanes(self, device: PlanDevice) -> None:
        """Give each task a lane, none of them longer than the device is awake.

        The intervals imply this, but CP-SAT sees it only by trying start times: ten problems of
        10 x 5 had six proofs without lanes and nine with them.
        """
        model, tasks = self.model, self.list_tasks(device)
        lanes = [[model.new_bool_var("") for _ in tasks] for _ in range(device.max_parallel)]
        for lane in lanes:
            busy = sum(steps * on for (_, _, steps, _), on in zip(tasks, lane, strict=True))
            model.add(busy <= self.last[device.name] - self.first[device.name])
        for at, (_, _, _, placed) in enumerate(tasks):
            model.add(sum(lane[at] for lane in lanes) == placed)

    def _sum_energy(self) -> Any:
        total = 0
        for device in self.problem.devices:
            idle = round(device.awake_w * self.grid.step_s / self._unit_j)
            for _, cost, steps, placed in self.list_tasks(device):
                # A task's own energy is exact; only idle energy, and sharing it, is rounded.
                total += (round(cost.energy_j(device) / self._unit_j) - idle * steps) * placed
            total += idle * (self.last[device.name] - self.first[device.name])
        return total

    def _sum_priority(self) -> Any:
        return sum(self.problem.task[task].priority * x for (task, _), x in self.placed.items())

    def _sum_most(self) -> float:
        """Return the energy of all tasks, each where it takes most."""
        device = self.problem.device
        costs = ([c.energy_j(device[m]) for m, c in t.costs.items()] for t in self.problem.tasks)
        return sum(max(row, default=0.0) for row in costs) or 1.0

    def _choose_unit(self, wish_j: float, devices: Iterable[PlanDevice]) -> float:
        """Return the joules of a unit: as small as wished, but no sum overflows."""
        most_w = sum(m.awake_w + sum(w.power_w for w in m.windows) for m in devices)
        most_j = most_w * self.grid.horizon * self.grid.step_s + self._most_j
        return max(wish_j, most_j / _MAX_UNITS)

    def _add_hints(self, hint: Schedule) -> None:
        self.model.clear_hints()
        where = {one.task: one.device for one in hint}
        for (task, device), placed in self.placed.items():
            self.model.add_hint(placed, where.get(task) == device)
        for one in hint:
            self.model.add_hint(self.start[one.task], self.grid.count(one.start_s))

    def _read_schedule(self, solver: Any) -> Schedule:
        return tuple(
            self.problem.assign(task, device, solver.value(self.start[task]) * self.grid.step_s)
            for (task, device), placed in self.placed.items()
            if solver.boolean_value(placed)
        )


def import_solver() -> Any:
    """Return CP-SAT's module, or raise MissingError if OR-tools is not installed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingError("planning needs OR-tools: pip install 'joulecast[plan]'") from error
    return cp_model
