"""Define what is to be planned: jobs and devices, before anything is estimated.

Times are seconds from now.
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
    """A network to be trained, or run, for some steps.

    Attributes:
        net: Anything the command line takes as NET.
        setup: Fields of a ``Setup``; without ``batch`` the network's own batch size applies.
        checkpoint: Its repeated blocks are under activation checkpointing.
        steps: Number of steps; 0 where ``epochs`` and ``samples`` give it.
        devices: Devices that may run it; empty for all.
        priority: Jobs of higher priority run first where not all can.
    """

    name: str
    net: str
    steps: int = 0
    epochs: int = 0
    samples: int = 0
    setup: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] | None = None
    checkpoint: bool = False
    release_s: float = 0.0
    deadline_s: float = math.inf
    devices: tuple[str, ...] = ()
    priority: int = 1

    def count_steps(self, batch: int) -> int:
        """Return the number of steps of the whole job, with so many samples each."""
        length = RunLength(self.steps or None, self.epochs or None, self.samples or None)
        return length.count_steps(batch)


@dataclass(frozen=True)
class DeviceSpec:
    """A device that jobs can run on, by its profile or by a stated power and speed.

    Attributes:
        profile: A device's name, or a profile's key or file.
        power_w: Instead of a profile, with ``flops_per_s``: power while a job runs.
        launch_s: With ``flops_per_s``: time that a step takes at least for each of its kernels.
        uncertainty_share: Relative standard deviation of the stated numbers.
        idle_w: Metered power while nothing runs; None for the profile's.
        rest_w: Power that the battery supplies and the meter does not see: screen, radio.
        asleep_w: Power before the first job.
        memory_bytes: None for the profile's.
        max_parallel: Number of jobs that may run at the same time.
    """

    name: str
    profile: str = ""
    power_w: float | None = None
    flops_per_s: float | None = None
    launch_s: float = 20e-6
    uncertainty_share: float = 0.3
    battery: Battery | None = None
    idle_w: float | None = None
    rest_w: float = 0.0
    asleep_w: float = 0.0
    memory_bytes: float | None = None
    max_parallel: int = 1


@dataclass(frozen=True)
class PlanRequest:
    """Jobs and devices."""

    jobs: tuple[Job, ...]
    devices: tuple[DeviceSpec, ...]

    def __post_init__(self) -> None:
        known = {device.name for device in self.devices}
        for job in self.jobs:
            for name in job.devices:
                if name not in known:
                    raise InputError(
                        f"the job {job.name} names an unknown device {name!r}: give one of "
                        f"{', '.join(sorted(known))}"
                    )
