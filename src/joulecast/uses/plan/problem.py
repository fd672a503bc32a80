"""The question in numbers: what tasks take on machines, and what a machine's battery allows.

    draw of a machine = awake_w + Σ over its running tasks of extra_j / duration_s     while awake
                      = asleep_w                                     before its first task starts

A machine is awake from the start of its first task to the end of its last. ``awake_w`` is what it
draws then without any task, so a task's ``extra_j`` is only what it takes above that: alone, a task
takes ``extra_j + awake_w · duration_s``; between tasks ``awake_w`` flows on; and of tasks at once
nobody pays for it twice. Nothing here knows of nets, profiles or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from joulecast.errors import InputError


@dataclass(frozen=True)
class Window:
    """A time in which a charger gives ``power_w``, seconds from now."""

    from_s: float
    to_s: float
    power_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s < math.inf:
            raise InputError(
                f"a charging window from {self.from_s:g} to {self.to_s:g} s: it must begin now or "
                "later and end after that"
            )
        if not 0 < self.power_w < math.inf:
            raise InputError(f"a charger of {self.power_w:g} W: give watts above 0")


@dataclass(frozen=True)
class Battery:
    """Joules: what it holds full, what it holds now, and what must always be left."""

    capacity_j: float
    charge_j: float
    reserve_j: float = 0.0
    windows: tuple[Window, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.capacity_j < math.inf:
            raise InputError(f"a battery of {self.capacity_j:g} J: give one above 0")
        for name, value in (("charge", self.charge_j), ("reserve", self.reserve_j)):
            if not 0 <= value <= self.capacity_j:
                raise InputError(
                    f"a {name} of {value:g} J in a battery of {self.capacity_j:g} J: give a share "
                    "from 0% to 100%"
                )
        for one, two in zip(self.windows, self.windows[1:], strict=False):
            if two.from_s < one.to_s:
                raise InputError("charging windows overlap or are out of order: join or sort them")


@dataclass(frozen=True)
class Machine:
    """What tasks run on; without a battery it hangs on the mains."""

    name: str
    awake_w: float = 0.0
    asleep_w: float = 0.0
    memory_bytes: float = math.inf
    at_once: int = 1
    battery: Battery | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.asleep_w <= self.awake_w < math.inf:
            raise InputError(
                f"{self.name} draws {self.asleep_w:g} W asleep and {self.awake_w:g} W awake: give "
                "no less awake than asleep, and nothing below 0"
            )
        if self.at_once < 1:
            raise InputError(f"{self.name} runs {self.at_once} jobs at once: give 1 or more")

    def share_memory(self, cost: Cost) -> float:
        """The share of its memory that a task takes."""
        return cost.memory_bytes / self.memory_bytes if self.memory_bytes else math.inf

    @property
    def windows(self) -> tuple[Window, ...]:
        """When its battery is charged."""
        return self.battery.windows if self.battery else ()


@dataclass(frozen=True)
class Cost:
    """What a task takes on a machine.

    Attributes:
        extra_j: Above what the machine draws anyway.
        drawn_s: Seconds in which it draws ``extra_j``, where they are fewer than ``duration_s``: a
            task that is given more time than it needs still draws as fast as it does.
    """

    duration_s: float
    extra_j: float
    memory_bytes: float = 0.0
    drawn_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.duration_s < math.inf and 0 <= self.extra_j < math.inf):
            raise InputError(
                f"a task of {self.duration_s:g} s and {self.extra_j:g} J cannot be planned: give "
                "seconds above 0 and joules from 0 on"
            )

    @property
    def extra_w(self) -> float:
        """What it draws at most, above what the machine draws anyway."""
        return self.extra_j / (self.drawn_s or self.duration_s)

    def energy_j(self, machine: Machine) -> float:
        """What the machine draws while this task runs alone on it."""
        return self.extra_j + machine.awake_w * self.duration_s


@dataclass(frozen=True)
class Task:
    """What shall run, once and in one go; ``costs`` by machine, only where it may run."""

    name: str
    costs: Mapping[str, Cost]
    release_s: float = 0.0
    deadline_s: float = math.inf
    priority: int = 1


@dataclass(frozen=True)
class Slot:
    """When and where a task runs."""

    task: str
    machine: str
    start_s: float
    end_s: float


Slots = tuple[Slot, ...]


@dataclass(frozen=True)
class Problem:
    """Tasks and machines, each with a name of its own."""

    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        for what, rows in (("machines", self.machines), ("tasks", self.tasks)):
            names = [row.name for row in rows]
            if len(set(names)) < len(names):
                raise InputError(f"two {what} share a name: give each its own")
        known = {machine.name for machine in self.machines}
        for task in self.tasks:
            if strange := set(task.costs) - known:
                raise InputError(f"{task.name} names a machine {strange.pop()!r} that is not there")

    @cached_property
    def machine(self) -> dict[str, Machine]:
        """Machines by their names."""
        return {machine.name: machine for machine in self.machines}

    @cached_property
    def task(self) -> dict[str, Task]:
        """Tasks by their names."""
        return {task.name: task for task in self.tasks}

    def make_slot(self, task: Task, machine: str, start_s: float) -> Slot:
        """A task on a machine from a moment on, for as long as it takes there."""
        return Slot(task.name, machine, start_s, start_s + task.costs[machine].duration_s)
