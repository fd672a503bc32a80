"""Define the scheduling problem in plain numbers: tasks, devices and their batteries.

    power of a device = awake_w + sum over its running tasks of extra_j / duration_s    while awake
                      = asleep_w                                       before its first task starts

A device is awake from the start of its first task to the end of its last. A task's ``extra_j`` is
what it adds to ``awake_w``: alone it takes ``extra_j + awake_w * duration_s``, and parallel tasks
share ``awake_w``. This module does not know networks, profiles or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from joulecast.errors import InputError


@dataclass(frozen=True)
class ChargingWindow:
    """A period in which a charger delivers ``power_w``, in seconds from now."""

    start_s: float
    end_s: float
    power_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < self.end_s < math.inf:
            raise InputError(
                f"a charging window from {self.start_s:g} s to {self.end_s:g} s: start it now or "
                "later, and end it after its start"
            )
        if not 0 < self.power_w < math.inf:
            raise InputError(f"a charger of {self.power_w:g} W: give a power above 0")


@dataclass(frozen=True)
class Battery:
    """A battery's capacity, its charge now, and the reserve that must remain."""

    capacity_j: float
    charge_j: float
    reserve_j: float = 0.0
    windows: tuple[ChargingWindow, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.capacity_j < math.inf:
            raise InputError(f"a battery of {self.capacity_j:g} J: give a capacity above 0")
        for name, value in (("charge", self.charge_j), ("reserve", self.reserve_j)):
            if not 0 <= value <= self.capacity_j:
                raise InputError(
                    f"a {name} of {value:g} J in a battery of {self.capacity_j:g} J: give a share "
                    "from 0% to 100%"
                )
        if any(two.start_s < one.end_s for one, two in pairwise(self.windows)):
            raise InputError("charging windows overlap or are not sorted: merge or sort them")

    def charging_w(self, at_s: float) -> float:
        """Return the charger's power at a time."""
        return sum(w.power_w for w in self.windows if w.start_s <= at_s < w.end_s)


@dataclass(frozen=True)
class PlanDevice:
    """A device that runs tasks; without a battery it is on mains power."""

    name: str
    awake_w: float = 0.0
    asleep_w: float = 0.0
    memory_bytes: float = math.inf
    max_parallel: int = 1
    battery: Battery | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.asleep_w <= self.awake_w < math.inf:
            raise InputError(
                f"{self.name} draws {self.asleep_w:g} W asleep and {self.awake_w:g} W awake: give "
                "powers of at least 0, and no more asleep than awake"
            )
        if self.max_parallel < 1:
            raise InputError(f"{self.name} runs {self.max_parallel} jobs at once: give 1 or more")

    @property
    def windows(self) -> tuple[ChargingWindow, ...]:
        """Return when the battery is charged."""
        return self.battery.windows if self.battery else ()

    @property
    def shares_memory(self) -> bool:
        """Return whether parallel tasks compete for memory."""
        return self.max_parallel > 1 and 0 < self.memory_bytes < math.inf


@dataclass(frozen=True)
class TaskCost:
    """Duration, energy and memory of a task on a device.

    Attributes:
        extra_j: Energy above ``awake_w``.
        drawn_s: Time in which ``extra_j`` is drawn, where rounding made ``duration_s`` longer.
    """

    duration_s: float
    extra_j: float
    memory_bytes: float = 0.0
    drawn_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.duration_s < math.inf and 0 <= self.extra_j < math.inf):
            raise InputError(
                f"a task of {self.duration_s:g} s and {self.extra_j:g} J cannot be planned: give a "
                "duration above 0 and an energy of at least 0"
            )

    @property
    def extra_w(self) -> float:
        """Return the power above ``awake_w``."""
        return self.extra_j / (self.drawn_s or self.duration_s)

    def energy_j(self, device: PlanDevice) -> float:
        """Return what the device draws while only this task runs."""
        return self.extra_j + device.awake_w * self.duration_s


@dataclass(frozen=True)
class Task:
    """Work that runs once, without interruption, on one of the devices in ``costs``."""

    name: str
    costs: Mapping[str, TaskCost]
    release_s: float = 0.0
    deadline_s: float = math.inf
    priority: int = 1


class Assignment(NamedTuple):
    """A task on a device from start to end."""

    task: str
    device: str
    start_s: float
    end_s: float


Schedule = tuple[Assignment, ...]


@dataclass(frozen=True)
class Problem:
    """Tasks and devices with unique names."""

    devices: tuple[PlanDevice, ...]
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        for what, rows in (("devices", self.devices), ("tasks", self.tasks)):
            if len({row.name for row in rows}) < len(rows):
                raise InputError(f"two {what} share a name: give each its own")
        for task in self.tasks:
            if unknown := set(task.costs) - set(self.device):
                raise InputError(f"{task.name} names an unknown device: {unknown.pop()!r}")

    @cached_property
    def device(self) -> dict[str, PlanDevice]:
        """Return the devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def task(self) -> dict[str, Task]:
        """Return the tasks by name."""
        return {task.name: task for task in self.tasks}

    def assign(self, task: str, device: str, start_s: float) -> Assignment:
        """Return a task on a device from a start time on."""
        duration_s = self.task[task].costs[device].duration_s
        return Assignment(task, device, start_s, start_s + duration_s)

    def priority_of(self, tasks: Iterable[str]) -> int:
        """Return the total priority of some tasks."""
        return sum(self.task[name].priority for name in tasks)
