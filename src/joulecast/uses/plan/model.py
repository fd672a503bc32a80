"""The question as CP-SAT takes it; the only room that knows OR-tools.

Times are whole ticks, joules whole units small enough not to matter. Given is a problem whose
times already lie on ticks (ticks.py).

    placed[i, m]      task i runs on machine m: an optional interval of its length there
    first, last       of each machine: when it wakes, and when its last task ends
    energy            Σ extra · placed + Σ awake_w · (last - first)

Of batteries the model holds one constraint from the beginning: all that a machine draws until its
last task ends comes from its charge and its charger. That is all where there is no charger. Where
there is, charge may be too low in between, or the battery full and the charger useless; such a
moment is forbidden when a replay has met it (``forbid``), exactly:

    L(t) >= reserve   <=>   for u = 0 and every u at which it could be full, u < t:
                            held(u) + charged(u, t) - drawn(u, t) >= reserve
                            with held(0) the charge now and held(u) the capacity
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import MissingError
from joulecast.uses.plan.problem import Battery, Machine, Problem, Slot, Slots

# Units in all joules of the tasks, and in a full battery; and the most that may ever add up.
_UNITS, _BATTERY_UNITS, _MOST_UNITS = 1e9, 1e11, 1e17
# What rounding may add up to, as a share of a battery: less than a replay complains of.
_FORGIVEN = 1e-6
_SAME = 1e-9
_MEMORY_UNIT = 2**20
# Places of all tasks from which on a model is large.
MANY = 2000


@dataclass(frozen=True)
class Point:
    """A moment that moves with the plan.

    Attributes:
        kind: ``begin`` (now); ``first`` and ``last`` of a machine; ``start`` and ``end`` of a task;
            ``opens`` and ``closes`` of a charging window.
        which: The task's name or the window's number.
    """

    kind: str
    which: str | int = ""


@dataclass(frozen=True)
class Found:
    """What the solver says: its best plan, a bound on what any plan reaches, whether they meet."""

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
        self._problem, self._tick_s = problem, tick_s
        self._ticks = round(horizon_s / tick_s)
        self._model = self._solver.CpModel()
        self._start: dict[str, Any] = {}
        self._placed: dict[tuple[str, str], Any] = {}
        self._first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._known: set[tuple[str, Point, Point]] = set()
        self._unit_j = self._choose_unit(self._sum_most() / _UNITS, problem.machines)
        self._add_tasks()
        for machine in problem.machines:
            self._add_machine(machine)
        self._energy = self._sum_energy()

    def _sum_most(self) -> float:
        """Joules of all tasks, each where it takes most."""
        machine = self._problem.machine
        costs = ([c.energy_j(machine[m]) for m, c in t.costs.items()] for t in self._problem.tasks)
        return sum(max(most, default=0.0) for most in costs) or 1.0

    def _choose_unit(self, least_j: float, machines: Iterable[Machine]) -> float:
        """Joules of a unit: as small as is wished, and so large that no sum overflows."""
        flows = sum(
            machine.awake_w + sum(window.power_w for window in machine.windows)
            for machine in machines
        )
        most_j = flows * self._ticks * self._tick_s + self._sum_most()
        return max(least_j, most_j / _MOST_UNITS)

    def _battery_unit(self, machine: Machine) -> float:
        assert machine.battery is not None
        return self._choose_unit(machine.battery.capacity_j / _BATTERY_UNITS, (machine,))

    def _room(self, machine: Machine, held_j: float) -> int:
        """Units above the reserve."""
        assert machine.battery is not None
        room_j = held_j - machine.battery.reserve_j + _FORGIVEN * machine.battery.capacity_j
        return math.floor(room_j / self._battery_unit(machine))

    # -- what is always there

    def _add_tasks(self) -> None:
        for task in self._problem.tasks:
            earliest, latest = self._to_ticks(task.release_s), self._deadline(task.deadline_s)
            start = self._model.new_int_var(earliest, max(earliest, latest), "")
            self._start[task.name] = start
            for name, cost in task.costs.items():
                here = self._model.new_bool_var("")
                self._placed[task.name, name] = here
                end = start + self._to_ticks(cost.duration_s)
                self._model.add(end <= latest).only_enforce_if(here)
            self._model.add_at_most_one(self._placed[task.name, name] for name in task.costs)

    def _add_machine(self, machine: Machine) -> None:
        tasks = [task for task in self._problem.tasks if machine.name in task.costs]
        spans = [self._add_interval(task.name, machine.name) for task in tasks]
        if machine.at_once == 1:
            self._model.add_no_overlap(spans)
        elif machine.at_once < len(spans):
            self._model.add_cumulative(spans, [1] * len(spans), machine.at_once)
        sizes = [math.ceil(t.costs[machine.name].memory_bytes / _MEMORY_UNIT) for t in tasks]
        if machine.at_once > 1 and machine.memory_bytes < math.inf:
            room = math.floor(machine.memory_bytes / _MEMORY_UNIT)
            self._model.add_cumulative(spans, sizes, room)
        if machine.awake_w or machine.battery:
            self._add_waking(machine)
        if machine.battery:
            self._add_battery(machine, machine.battery)

    def _add_interval(self, task: str, machine: str) -> Any:
        cost = self._problem.task[task].costs[machine]
        length = self._to_ticks(cost.duration_s)
        start, here = self._start[task], self._placed[task, machine]
        return self._model.new_optional_fixed_size_interval_var(start, length, here, "")

    def _add_waking(self, machine: Machine) -> None:
        first, last = (self._model.new_int_var(0, self._ticks, "") for _ in range(2))
        self._first[machine.name], self._last[machine.name] = first, last
        self._model.add(first <= last)
        busy = []
        for task, length, here in self._list_here(machine):
            self._model.add(first <= self._start[task]).only_enforce_if(here)
            self._model.add(last >= self._start[task] + length).only_enforce_if(here)
            busy.append(length * here)
        # Follows from the rest, but only from all of it at once: bounds are far better with it.
        self._model.add(machine.at_once * (last - first) >= sum(busy))
        if machine.at_once > 1 and machine.memory_bytes < math.inf:
            room = math.floor(machine.memory_bytes / _MEMORY_UNIT)
            sized = [
                math.ceil(self._problem.task[t].costs[machine.name].memory_bytes / _MEMORY_UNIT)
                * length
                * here
                for t, length, here in self._list_here(machine)
            ]
            self._model.add(room * (last - first) >= sum(sized))

    def _add_battery(self, machine: Machine, battery: Battery) -> None:
        """All that flows out until the last task ends was in it, or came from its charger."""
        unit_j, (first, last) = self._battery_unit(machine), self._ends(machine)
        used = self._model.new_bool_var("")
        for _, _, here in self._list_here(machine):
            self._model.add_implication(here, used)
        asleep, awake = (
            round(w * self._tick_s / unit_j) for w in (machine.asleep_w, machine.awake_w)
        )
        out = asleep * first + awake * (last - first)
        for task, _, here in self._list_here(machine):
            extra_j = self._problem.task[task].costs[machine.name].extra_j
            out += round(extra_j / unit_j) * here
        room = self._room(machine, battery.charge_j)
        given = self._charge(machine, 0, last)
        self._model.add(out - given <= room).only_enforce_if(used)
        if machine.windows:
            self._tie_ends(machine, used)

    def _tie_ends(self, machine: Machine, used: Any) -> None:
        """Some task begins first and some ends last: where a charger helps, waiting would too."""
        first, last = self._ends(machine)
        for end, late in ((first, False), (last, True)):
            chosen = []
            for task, length, here in self._list_here(machine):
                one = self._model.new_bool_var("")
                moment = self._start[task] + (length if late else 0)
                self._model.add(end == moment).only_enforce_if(one)
                self._model.add_implication(one, here)
                chosen.append(one)
            self._model.add_bool_or([~used, *chosen])

    def _sum_energy(self) -> Any:
        total: Any = 0
        for machine in self._problem.machines:
            waiting = round(machine.awake_w * self._tick_s / self._unit_j)
            for task, length, here in self._list_here(machine):
                energy_j = self._problem.task[task].costs[machine.name].energy_j(machine)
                # A task's own joules are exact; what is rounded is waiting, and sharing it.
                total += (round(energy_j / self._unit_j) - waiting * length) * here
            if machine.awake_w:
                first, last = self._ends(machine)
                total += waiting * (last - first)
        return total

    # -- what is added when it is met

    def forbid(self, machine: Machine, since: Point, until: Point) -> bool:
        """Never again too low at ``until`` after ``since``; False where that was said before."""
        assert machine.battery is not None
        if (machine.name, since, until) in self._known:
            return False
        self._known.add((machine.name, since, until))
        model, battery = self._model, machine.battery
        (u, needs_u), (t, needs_t) = (self._find(machine, point) for point in (since, until))
        first, last = self._ends(machine)
        holds, early, late, turned = (model.new_bool_var("") for _ in range(4))
        # It need not hold where the machine sleeps at that moment, or the moments change places.
        model.add_bool_or([holds, early, late, turned, *(~need for need in needs_u + needs_t)])
        model.add(t < first).only_enforce_if(early)
        model.add(t > last).only_enforce_if(late)
        if since.kind == "begin" or (since.kind, until.kind) == ("first", "first"):
            model.add(turned == 0)
        else:
            model.add(t <= u).only_enforce_if(turned)
        held_j = battery.charge_j if since.kind == "begin" else battery.capacity_j
        out = self._draw(machine, since, until) - self._charge(machine, u, t)
        room = self._room(machine, held_j)
        model.add(out <= room).only_enforce_if(holds)
        return True

    def _draw(self, machine: Machine, since: Point, until: Point) -> Any:
        """At least what a machine draws between two moments, the second of which it is awake at."""
        model, unit_j = self._model, self._battery_unit(machine)
        u, t = (self._find(machine, point)[0] for point in (since, until))
        before, after = since.kind in ("begin", "first"), until.kind == "last"
        first, _ = self._ends(machine)
        awake, saved = (
            round(machine.awake_w * self._tick_s / unit_j),
            round((machine.awake_w - machine.asleep_w) * self._tick_s / unit_j),
        )
        asleep, sleeps = model.new_int_var(0, self._ticks, ""), model.new_bool_var("")
        model.add(asleep <= first - u).only_enforce_if(sleeps)
        model.add(asleep == 0).only_enforce_if(~sleeps)
        out = awake * (t - u) - saved * asleep
        for task, length, here in self._list_here(machine):
            cost = self._problem.task[task].costs[machine.name]
            step = round(cost.extra_j / cost.duration_s * self._tick_s / unit_j)
            if before and after:
                out += step * length * here
                continue
            # Whoever starts after u, or ends before t, has fewer ways of being cut off by them.
            start, ways = self._start[task], [length]
            ways += [] if after else [t - start]
            ways += [] if before else [start + length - u]
            ways += [] if before or after else [t - u]
            out += step * self._overlap(length, here, ways)
        return out

    def _overlap(self, length: int, here: Any, ways: Sequence[Any]) -> Any:
        """At least the ticks that a task has between two moments, if it runs there.

        That is the least of some numbers, or nothing: it is enough to be above one of them.
        """
        model = self._model
        inside = model.new_int_var(0, length, "")
        chosen = [model.new_bool_var("") for _ in ways]
        model.add_bool_or([~here, *chosen])
        for one, way in zip(chosen, ways, strict=True):
            model.add(inside >= way).only_enforce_if(one)
        return inside

    def _charge(self, machine: Machine, u: Any, t: Any) -> Any:
        """At most what the charger gives between two moments."""
        unit_j, given = self._battery_unit(machine), 0
        for window in machine.windows:
            opens, closes = self._to_ticks(window.from_s), self._to_ticks(window.to_s)
            inside = self._model.new_int_var(0, closes - opens, "")
            meets = self._model.new_bool_var("")
            for most in (t - opens, closes - u, t - u):
                self._model.add(inside <= most).only_enforce_if(meets)
            self._model.add(inside == 0).only_enforce_if(~meets)
            given += round(window.power_w * self._tick_s / unit_j) * inside
        return given

    def _find(self, machine: Machine, point: Point) -> tuple[Any, list[Any]]:
        """When a point is, and what must be so that it is there at all."""
        if point.kind in ("start", "end"):
            task = self._problem.task[str(point.which)]
            length = self._to_ticks(task.costs[machine.name].duration_s)
            here = self._placed[task.name, machine.name]
            return self._start[task.name] + (length if point.kind == "end" else 0), [here]
        if point.kind in ("first", "last"):
            ends = self._first if point.kind == "first" else self._last
            return ends[machine.name], []
        if point.kind == "begin":
            return 0, []
        window = machine.windows[int(point.which)]
        return self._to_ticks(window.from_s if point.kind == "opens" else window.to_s), []

    # -- asking

    def keep_running(self, tasks: Iterable[str]) -> None:
        """From now on at least as much must run as these, by their priorities."""
        worth = sum(self._problem.task[name].priority for name in tasks)
        self._model.add(self._worth() >= worth)

    def keep_places(self, slots: Slots, energy_j: float) -> None:
        """From now on tasks stay on their machines, and take no more than this."""
        chosen = {(slot.task, slot.machine) for slot in slots}
        for pair, here in self._placed.items():
            self._model.add(here == (pair in chosen))
        # What rounding coefficients may have added is forgiven.
        forgiven = self._ticks * len(self._problem.machines) + len(self._placed)
        self._model.add(self._energy <= math.ceil(energy_j / self._unit_j) + forgiven)

    def solve(self, aim: str, hint: Slots, limit_s: float, workers: int, gap_share: float) -> Found:
        """The best plan by an aim: ``running`` (as much as can be), ``energy``, ``early``."""
        model, starts = self._model, sum(self._start.values())
        model.minimize({"running": -self._worth(), "energy": self._energy, "early": starts}[aim])
        self._give_hint(hint)
        solver = self._solver.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.05, limit_s)
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 1
        solver.parameters.relative_gap_limit = gap_share
        if len(self._placed) > MANY:
            # Looking at every choice before the search would take all of the time.
            solver.parameters.cp_model_probing_level = 0
        status = solver.solve(model)
        cp = self._solver
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            impossible = status == cp.INFEASIBLE
            return Found(None, self._scale(aim, solver), impossible, impossible)
        value, bound = solver.objective_value, solver.best_objective_bound
        is_best = status == cp.OPTIMAL and abs(value - bound) <= _SAME * abs(value)
        return Found(self._read(solver), self._scale(aim, solver), is_best)

    def _scale(self, aim: str, solver: Any) -> float:
        """The bound in joules, or as it is."""
        bound = float(solver.best_objective_bound)
        return bound * self._unit_j if aim == "energy" else bound

    def _worth(self) -> Any:
        return sum(
            self._problem.task[task].priority * here for (task, _), here in self._placed.items()
        )

    def _give_hint(self, slots: Slots) -> None:
        self._model.clear_hints()
        where = {slot.task: slot for slot in slots}
        for (task, machine), here in self._placed.items():
            slot = where.get(task)
            self._model.add_hint(here, slot is not None and slot.machine == machine)
        for slot in slots:
            self._model.add_hint(self._start[slot.task], self._to_ticks(slot.start_s))

    def _read(self, solver: Any) -> Slots:
        return tuple(
            self._problem.make_slot(
                self._problem.task[task], machine, solver.value(self._start[task]) * self._tick_s
            )
            for (task, machine), here in self._placed.items()
            if solver.boolean_value(here)
        )

    # -- numbers

    def _ends(self, machine: Machine) -> tuple[Any, Any]:
        return self._first[machine.name], self._last[machine.name]

    def _list_here(self, machine: Machine) -> list[tuple[str, int, Any]]:
        """Tasks that may run on a machine: name, ticks there, whether."""
        return [
            (task.name, self._to_ticks(task.costs[machine.name].duration_s), placed)
            for task in self._problem.tasks
            if (placed := self._placed.get((task.name, machine.name))) is not None
        ]

    def _to_ticks(self, at_s: float) -> int:
        return round(at_s / self._tick_s)

    def _deadline(self, at_s: float) -> int:
        return min(self._ticks, self._ticks if math.isinf(at_s) else self._to_ticks(at_s))


def name_point(machine: Machine, slots: Iterable[Slot], at_s: float) -> Point:
    """What moves a moment of a plan."""
    fixed = {
        **{window.from_s: Point("opens", at) for at, window in enumerate(machine.windows)},
        **{window.to_s: Point("closes", at) for at, window in enumerate(machine.windows)},
    }
    here = [slot for slot in slots if slot.machine == machine.name]
    moving = {
        **{slot.start_s: Point("start", slot.task) for slot in here},
        **{slot.end_s: Point("end", slot.task) for slot in here},
    }
    known = {**moving, **fixed}
    if here:
        # The ends of a machine stand for whichever task is there in other plans.
        known[min(slot.start_s for slot in here)] = Point("first")
        known[max(slot.end_s for slot in here)] = Point("last")
    known[0.0] = Point("begin")
    nearest = min(known, key=lambda found_s: abs(found_s - at_s))
    return known[nearest]
