"""What a model of CP-SAT knows of batteries.

One constraint is there from the beginning: all that a machine draws until its last task ends comes
from its charge and its charger. That is all where there is no charger. Where there is, charge may
be too low in between, or the battery full and the charger useless; such a moment is forbidden when
a replay has met it (``forbid``), exactly:

    L(t) >= reserve   <=>   for u = 0 and every u at which it could be full, u < t:
                            held(u) + charged(u, t) - drawn(u, t) >= reserve
                            with held(0) the charge now and held(u) the capacity
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.uses.plan.problem import Battery, Machine, Slot, Slots
from joulecast.uses.plan.replay import Break
from joulecast.uses.plan.sheet import Sheet


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


class Batteries:
    """The batteries of a model, and which of their moments it knows already."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet, self._model = sheet, sheet.model
        self._known: set[tuple[str, Point, Point]] = set()

    def add(self, machine: Machine, battery: Battery) -> None:
        """All that flows out until the last task ends was in it, or came from its charger."""
        sheet, (first, last) = self._sheet, self._sheet.find_ends(machine)
        unit_j, used = sheet.find_battery_unit(machine), self._model.new_bool_var("")
        for _, _, here in sheet.list_here(machine):
            self._model.add_implication(here, used)
        asleep, awake = (
            round(w * sheet.tick_s / unit_j) for w in (machine.asleep_w, machine.awake_w)
        )
        out = asleep * first + awake * (last - first)
        for task, _, here in sheet.list_here(machine):
            cost = sheet.problem.task[task].costs[machine.name]
            out += round(cost.extra_w * cost.duration_s / unit_j) * here
        room = sheet.find_room(machine, battery.charge_j)
        given = self._charge(machine, 0, last)
        self._model.add(out - given <= room).only_enforce_if(used)
        if machine.windows:
            self._tie_ends(machine, used)

    def _tie_ends(self, machine: Machine, used: Any) -> None:
        """Some task begins first and some ends last: where a charger helps, waiting would too."""
        first, last = self._sheet.find_ends(machine)
        for end, late in ((first, False), (last, True)):
            chosen = []
            for task, length, here in self._sheet.list_here(machine):
                one = self._model.new_bool_var("")
                moment = self._sheet.start[task] + (length if late else 0)
                self._model.add(end == moment).only_enforce_if(one)
                self._model.add_implication(one, here)
                chosen.append(one)
            self._model.add_bool_or([~used, *chosen])

    # -- what is added when it is met

    def forbid_breaks(self, breaks: Iterable[Break], slots: Slots) -> bool:
        """Forbid the lowest moment of each battery that is not known; False where all were."""
        done: set[str] = set()
        for one in sorted(breaks, key=lambda one: -one.missing):
            if one.kind == "battery" and one.machine not in done:
                machine = self._sheet.problem.machine[one.machine]
                ends = (name_point(machine, slots, at_s) for at_s in (one.since_s, one.at_s))
                if self._forbid(machine, *ends):
                    done.add(one.machine)
        return bool(done)

    def _forbid(self, machine: Machine, since: Point, until: Point) -> bool:
        """Never again too low at ``until`` after ``since``; False where that was said before."""
        assert machine.battery is not None
        if (machine.name, since, until) in self._known:
            return False
        self._known.add((machine.name, since, until))
        model, battery = self._model, machine.battery
        (u, needs_u), (t, needs_t) = (self._find(machine, point) for point in (since, until))
        first, last = self._sheet.find_ends(machine)
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
        model.add(out <= self._sheet.find_room(machine, held_j)).only_enforce_if(holds)
        return True

    def _draw(self, machine: Machine, since: Point, until: Point) -> Any:
        """At least what a machine draws between two moments, the second of which it is awake at."""
        sheet, model, unit_j = self._sheet, self._model, self._sheet.find_battery_unit(machine)
        u, t = (self._find(machine, point)[0] for point in (since, until))
        before, after = since.kind in ("begin", "first"), until.kind == "last"
        first, _ = sheet.find_ends(machine)
        awake, saved = (
            round(machine.awake_w * sheet.tick_s / unit_j),
            round((machine.awake_w - machine.asleep_w) * sheet.tick_s / unit_j),
        )
        asleep, sleeps = model.new_int_var(0, sheet.ticks, ""), model.new_bool_var("")
        model.add(asleep <= first - u).only_enforce_if(sleeps)
        model.add(asleep == 0).only_enforce_if(~sleeps)
        out = awake * (t - u) - saved * asleep
        for task, length, here in sheet.list_here(machine):
            cost = sheet.problem.task[task].costs[machine.name]
            step = round(cost.extra_w * sheet.tick_s / unit_j)
            if before and after:
                out += step * length * here
                continue
            # Whoever starts after u, or ends before t, has fewer ways of being cut off by them.
            start, ways = sheet.start[task], [length]
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
        sheet, given = self._sheet, 0
        unit_j = sheet.find_battery_unit(machine)
        for window in machine.windows:
            opens, closes = sheet.to_ticks(window.from_s), sheet.to_ticks(window.to_s)
            inside = self._model.new_int_var(0, closes - opens, "")
            meets = self._model.new_bool_var("")
            for most in (t - opens, closes - u, t - u):
                self._model.add(inside <= most).only_enforce_if(meets)
            self._model.add(inside == 0).only_enforce_if(~meets)
            given += round(window.power_w * sheet.tick_s / unit_j) * inside
        return given

    def _find(self, machine: Machine, point: Point) -> tuple[Any, list[Any]]:
        """When a point is, and what must be so that it is there at all."""
        sheet = self._sheet
        if point.kind in ("start", "end"):
            task = sheet.problem.task[str(point.which)]
            length = sheet.to_ticks(task.costs[machine.name].duration_s)
            here = sheet.placed[task.name, machine.name]
            return sheet.start[task.name] + (length if point.kind == "end" else 0), [here]
        if point.kind in ("first", "last"):
            ends = sheet.first if point.kind == "first" else sheet.last
            return ends[machine.name], []
        if point.kind == "begin":
            return 0, []
        window = machine.windows[int(point.which)]
        return sheet.to_ticks(window.from_s if point.kind == "opens" else window.to_s), []


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
