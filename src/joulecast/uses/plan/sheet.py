"""What a model of CP-SAT is written on: its variables by name, and how numbers become whole.

Times are whole ticks, joules whole units small enough not to matter. Given is a problem whose
times already lie on ticks (ticks.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from joulecast.uses.plan.problem import Machine, Problem

# Units in all joules of the tasks, and in a full battery; and the most that may ever add up.
_UNITS, _BATTERY_UNITS, _MOST_UNITS = 1e11, 1e12, 1e17
# What a battery may lack, as a share of it: between what replays call strict and harmless.
_FORGIVEN = 1.5e-6


class Sheet:
    """The variables of a model.

    Attributes:
        start: When each task begins.
        placed: By task and machine, whether it runs there.
        first: When each machine wakes; ``last`` when its last task ends.
        unit_j: Joules that count as one.
    """

    def __init__(self, model: Any, problem: Problem, tick_s: float, horizon_s: float) -> None:
        self.model, self.problem, self.tick_s = model, problem, tick_s
        self.ticks = self.to_ticks(horizon_s)
        self.start: dict[str, Any] = {}
        self.placed: dict[tuple[str, str], Any] = {}
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.unit_j = self._choose_unit(self._sum_most() / _UNITS, problem.machines)

    def to_ticks(self, at_s: float) -> int:
        """How many ticks that is."""
        return round(at_s / self.tick_s)

    def find_deadline(self, at_s: float) -> int:
        """The last tick that a task may take."""
        return self.ticks if math.isinf(at_s) else min(self.ticks, self.to_ticks(at_s))

    def list_here(self, machine: Machine) -> list[tuple[str, int, Any]]:
        """Tasks that may run on a machine: name, ticks there, whether."""
        return [
            (task.name, self.to_ticks(task.costs[machine.name].duration_s), placed)
            for task in self.problem.tasks
            if (placed := self.placed.get((task.name, machine.name))) is not None
        ]

    def find_ends(self, machine: Machine) -> tuple[Any, Any]:
        """When a machine wakes, and when its last task ends."""
        return self.first[machine.name], self.last[machine.name]

    def find_battery_unit(self, machine: Machine) -> float:
        """Joules that count as one in a machine's battery."""
        assert machine.battery is not None
        return self._choose_unit(machine.battery.capacity_j / _BATTERY_UNITS, (machine,))

    def find_room(self, machine: Machine, held_j: float) -> int:
        """Units above the reserve."""
        assert machine.battery is not None
        room_j = held_j - machine.battery.reserve_j + _FORGIVEN * machine.battery.capacity_j
        return math.floor(room_j / self.find_battery_unit(machine))

    def _sum_most(self) -> float:
        """Joules of all tasks, each where it takes most."""
        machine = self.problem.machine
        costs = ([c.energy_j(machine[m]) for m, c in t.costs.items()] for t in self.problem.tasks)
        return sum(max(most, default=0.0) for most in costs) or 1.0

    def _choose_unit(self, least_j: float, machines: Iterable[Machine]) -> float:
        """Joules of a unit: as small as is wished, and so large that no sum overflows."""
        flows = sum(
            machine.awake_w + sum(window.power_w for window in machine.windows)
            for machine in machines
        )
        most_j = flows * self.ticks * self.tick_s + self._sum_most()
        return max(least_j, most_j / _MOST_UNITS)
