"""What a person asks for: jobs and devices, as a file says them and before anything is estimated.

Seconds count from now. A device answers by a profile, or by a stated power and speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.budgets import RunLength
from joulecast.errors import InputError
from joulecast.uses.plan.problem import Battery


@dataclass(frozen=True)
class Job:
    """A net to be trained or run for some steps.

    Attributes:
        net: What the command line takes as NET.
        setup: Words of a Setup; the batch may be absent, then it is the net's own.
        steps: How many; 0 where ``epochs`` and ``samples`` say it.
        devices: Where it may run; everywhere where there are none.
        priority: Where not all can run, what is worth more runs.
    """

    name: str
    net: str
    steps: int = 0
    epochs: int = 0
    samples: int = 0
    setup: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] | None = None
    release_s: float = 0.0
    deadline_s: float = math.inf
    devices: tuple[str, ...] = ()
    priority: int = 1

    def count_steps(self, batch: int) -> int:
        """Return the number of steps of the whole job."""
        length = RunLength(self.steps or None, self.epochs or None, self.samples or None)
        return length.count_steps(batch)


@dataclass(frozen=True)
class Station:
    """A device that jobs can run on.

    Attributes:
        profile: A device's name, or a profile's key or file.
        power_w: Instead of a profile: what it draws while a job runs, with ``flops_per_s``.
        doubt_share: How far stated numbers may be off, one deviation.
        idle_w: What the meter sees while nothing runs; what the profile says where it is None.
        rest_w: What the meter does not see and the battery has to give: screen, memory, radio.
        asleep_w: What it draws before its first job.
        memory_bytes: What the profile says where it is None.
    """

    name: str
    profile: str = ""
    power_w: float | None = None
    flops_per_s: float | None = None
    doubt_share: float = 0.3
    battery: Battery | None = None
    idle_w: float | None = None
    rest_w: float = 0.0
    asleep_w: float = 0.0
    memory_bytes: float | None = None
    at_once: int = 1


@dataclass(frozen=True)
class Ask:
    """Everything that is asked for at once."""

    jobs: tuple[Job, ...]
    stations: tuple[Station, ...]

    def __post_init__(self) -> None:
        known = {station.name for station in self.stations}
        for job in self.jobs:
            if strange := [name for name in job.devices if name not in known]:
                raise InputError(
                    f"the job {job.name} names a device {strange[0]!r} that is not there: known "
                    f"are {', '.join(sorted(known))}"
                )
