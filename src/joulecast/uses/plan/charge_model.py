"""Add batteries to a CP-SAT model, lazily.

Charge is a straight line between events, so a charge that is too low at some time is one linear
inequality; but there are very many times. The model starts with one inequality per battery: all
energy until the last task ends was in it or came from the charger. Without a charger that is all.
Whatever else a replay finds violated is then forbidden, exactly and in all schedules:

    charge(t) >= reserve   <=>   for u = 0 and every u < t at which the battery could be full:
                                 held(u) + charged(u, t) - drawn(u, t) >= reserve
                                 with held(0) the charge now and held(u) the capacity
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from joulecast.uses.plan.problem import Battery, PlanDevice, Problem, Schedule
from joulecast.uses.plan.replay import Violation
from joulecast.uses.plan.schedule_model import ScheduleModel
from joulecast.uses.plan.time_grid import TimeGrid

# Share of a capacity that may be missing: between the replay's strict and harmless.
_TOLERANCE = 1.5e-6


class _Event(NamedTuple):
    """A time that moves with the schedule: its value there, its steps, and when it exists."""

    at_s: float
    name: tuple[str, ...]
    steps: Any
    conditions: tuple[Any, ...] = ()

    @property
    def is_now(self) -> bool:
        return self.name == ("now",)


class ChargeModel(ScheduleModel):
    """A schedule model with the battery constraints that are known so far."""

    def __init__(self, problem: Problem, grid: TimeGrid) -> None:
        super().__init__(problem, grid)
        self._known: set[tuple[str, tuple[str, ...], tuple[str, ...]]] = set()
        for device in problem.devices:
            if device.battery:
                self._add_battery(device, device.battery)

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
            key = (device.name, since.name, until.name)
            if key not in self._known and device.battery:
                self._known.add(key)
                done.add(device.name)
                self._keep_charge(device, device.battery, since, until)
        return bool(done)

    def _add_battery(self, device: PlanDevice, battery: Battery) -> None:
        """Limit the energy until the last task ends to the charge and what the charger gives."""
        model, unit_j, tasks = self.model, self.battery_unit_j[device.name], self.list_tasks(device)
        first, last = self.first[device.name], self.last[device.name]
        is_used = model.new_bool_var("")
        for _, _, _, placed in tasks:
            model.add_implication(placed, is_used)
        asleep, awake = (self._count_units(device, w) for w in (device.asleep_w, device.awake_w))
        drawn = asleep * first + awake * (last - first)
        for _, cost, _, placed in tasks:
            drawn += round(cost.extra_w * cost.duration_s / unit_j) * placed
        room = self._find_room(device, battery, battery.charge_j)
        model.add(drawn - self._sum_charged(device, 0, last) <= room).only_enforce_if(is_used)
        if not device.windows:
            return
        # Some task starts first and one ends last; else waiting would count as charging.
        for edge, is_last in ((first, False), (last, True)):
            chosen = [model.new_bool_var("") for _ in tasks]
            for (task, _, steps, placed), one in zip(tasks, chosen, strict=True):
                at = self.start[task.name] + (steps if is_last else 0)
                model.add(edge == at).only_enforce_if(one)
                model.add_implication(one, placed)
            model.add_bool_or([~is_used, *chosen])

    def _list_events(self, device: PlanDevice, schedule: Schedule) -> list[_Event]:
        """Return the events of a device; of equal times the most general comes first.

        ``first`` and ``last`` stand for whichever task that is in other schedules. Naming that task
        instead took a 10 x 5 problem from a proof in 6 s to none in 40 s.
        """
        here = [one for one in schedule if one.device == device.name]
        events = [
            _Event(0.0, ("now",), 0),
            _Event(min(one.start_s for one in here), ("first",), self.first[device.name]),
            _Event(max(one.end_s for one in here), ("last",), self.last[device.name]),
        ]
        for edge_s in (edge_s for w in device.windows for edge_s in (w.start_s, w.end_s)):
            events.append(_Event(edge_s, ("window", f"{edge_s}"), self.grid.count(edge_s)))
        for one in here:
            start, placed = self.start[one.task], (self.placed[one.task, device.name],)
            end = start + self.grid.count(one.end_s - one.start_s)
            events.append(_Event(one.start_s, ("start", one.task), start, placed))
            events.append(_Event(one.end_s, ("end", one.task), end, placed))
        return events

    def _keep_charge(
        self, device: PlanDevice, battery: Battery, since: _Event, until: _Event
    ) -> None:
        """Keep the charge at ``until`` above the reserve, if it was at most full at ``since``."""
        model, t, u = self.model, until.steps, since.steps
        holds, is_early, is_late, is_swapped = (model.new_bool_var("") for _ in range(4))
        # It need not hold while the device is asleep, nor where the two events swap places.
        missing = [~placed for placed in (*since.conditions, *until.conditions)]
        model.add_bool_or([holds, is_early, is_late, is_swapped, *missing])
        model.add(t < self.first[device.name]).only_enforce_if(is_early)
        model.add(t > self.last[device.name]).only_enforce_if(is_late)
        if since.is_now or since.name == until.name:
            model.add(is_swapped == 0)
        else:
            model.add(t <= u).only_enforce_if(is_swapped)
        held_j = battery.charge_j if since.is_now else battery.capacity_j
        needed = self._sum_drawn(device, since, until) - self._sum_charged(device, u, t)
        model.add(needed <= self._find_room(device, battery, held_j)).only_enforce_if(holds)

    def _sum_drawn(self, device: PlanDevice, since: _Event, until: _Event) -> Any:
        """Return at least what a device draws between two events, awake at the second."""
        model, t, u = self.model, until.steps, since.steps
        asleep, is_asleep = model.new_int_var(0, self.grid.horizon, ""), model.new_bool_var("")
        model.add(asleep <= self.first[device.name] - u).only_enforce_if(is_asleep)
        model.add(asleep == 0).only_enforce_if(~is_asleep)
        drawn = self._count_units(device, device.awake_w) * (t - u)
        drawn -= self._count_units(device, device.awake_w - device.asleep_w) * asleep
        cuts_start, cuts_end = since.name not in (("now",), ("first",)), until.name != ("last",)
        for task, cost, steps, placed in self.list_tasks(device):
            start = self.start[task.name]
            lengths: list[Any] = [steps]
            lengths += [t - start] if cuts_end else []
            lengths += [start + steps - u] if cuts_start else []
            lengths += [t - u] if cuts_end and cuts_start else []
            drawn += self._count_units(device, cost.extra_w) * self._overlap(placed, lengths)
        return drawn

    def _overlap(self, placed: Any, lengths: Sequence[Any]) -> Any:
        """Return at least the smallest of some lengths, or 0, for a task that is placed."""
        if len(lengths) == 1:
            return lengths[0] * placed
        inside = self.model.new_int_var(0, lengths[0], "")
        chosen = [self.model.new_bool_var("") for _ in lengths]
        self.model.add_bool_or([~placed, *chosen])
        for one, length in zip(chosen, lengths, strict=True):
            self.model.add(inside >= length).only_enforce_if(one)
        return inside

    def _sum_charged(self, device: PlanDevice, u: Any, t: Any) -> Any:
        """Return at most what the charger gives between two times."""
        charged: Any = 0
        for window in device.windows:
            start, end = self.grid.count(window.start_s), self.grid.count(window.end_s)
            inside, meets = self.model.new_int_var(0, end - start, ""), self.model.new_bool_var("")
            for length in (t - start, end - u, t - u):
                self.model.add(inside <= length).only_enforce_if(meets)
            self.model.add(inside == 0).only_enforce_if(~meets)
            charged += self._count_units(device, window.power_w) * inside
        return charged

    def _count_units(self, device: PlanDevice, power_w: float) -> int:
        """Return the battery units that a power takes in one time step."""
        return round(power_w * self.grid.step_s / self.battery_unit_j[device.name])

    def _find_room(self, device: PlanDevice, battery: Battery, held_j: float) -> int:
        """Return the battery units above the reserve."""
        room_j = held_j - battery.reserve_j + _TOLERANCE * battery.capacity_j
        return math.floor(room_j / self.battery_unit_j[device.name])
