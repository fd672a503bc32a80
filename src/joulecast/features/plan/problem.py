"""Describe what is to be planned: jobs and devices as given, and the scheduling problem in numbers.

    power of a device = awake_w + sum over its running tasks of extra_j / duration_s    while awake
                      = asleep_w                                       before its first task starts
    energy of a job   = steps * energy of a step + rest_w * duration

A device is awake from the start of its first task to the end of its last. A task's ``extra_j`` is
what it adds to ``awake_w``: alone it takes ``extra_j + awake_w * duration_s``, and parallel tasks
share ``awake_w``. Times are seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from joulecast.features.budgets import RunLength
from joulecast.records import Network, Profile, Setup
from joulecast.system.errors import InputError

if TYPE_CHECKING:
    from joulecast.estimators.forecast import RunForecast

LEVEL = 0.95


@dataclass(frozen=True)
class ChargingWindow:
    """A period in which a charger delivers ``power_w``."""

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
        if any(two.start_s < one.end_s for one, two in pairwise(self.windows)):
            raise InputError("charging windows overlap: merge them")


@dataclass(frozen=True)
class PlanDevice:
    """A device that runs tasks, with a profile or a stated power and speed.

    Attributes:
        profile: A device's name, or a profile's key or file.
        power_w: Instead of a profile, with ``flops_per_s``: power while a job runs.
        launch_s: With ``flops_per_s``: time that a step takes at least for each of its kernels.
        uncertainty_share: Relative standard deviation of the stated numbers.
        idle_w: Metered power while nothing runs; None for the profile's.
        rest_w: Power that the battery supplies and the meter does not see: screen, radio.
        asleep_w: Power before the first job.
        battery: None on mains power.
    """

    name: str
    profile: str = ""
    power_w: float | None = None
    flops_per_s: float | None = None
    launch_s: float = 20e-6
    uncertainty_share: float = 0.3
    idle_w: float | None = None
    rest_w: float = 0.0
    asleep_w: float = 0.0
    memory_bytes: float = math.inf
    max_parallel: int = 1
    battery: Battery | None = None

    @property
    def awake_w(self) -> float:
        """Power from the first job to the last, whatever runs."""
        return (self.idle_w or 0.0) + self.rest_w

    @property
    def windows(self) -> tuple[ChargingWindow, ...]:
        """When the battery is charged."""
        return self.battery.windows if self.battery else ()

    def complete(self, profile: Profile | None) -> PlanDevice:
        """Return the device with the idle power and memory of its profile, unless stated."""
        from joulecast.estimators.additive.observations import find_idle_power

        found = self
        if profile is not None and self.idle_w is None:
            found = replace(found, idle_w=find_idle_power(profile.observations))
        if profile is not None and math.isinf(self.memory_bytes):
            found = replace(found, memory_bytes=profile.device.memory_bytes or math.inf)
        if found.asleep_w > found.awake_w:
            raise InputError(
                f"[[device]] {self.name}: asleep_w is {self.asleep_w:g} W, above the "
                f"{found.awake_w:g} W of idle_w + rest_w that it draws awake: lower asleep_w"
            )
        return found


@dataclass(frozen=True)
class Job:
    """A network to be trained, or run, for some steps.

    Attributes:
        net: Anything the command line takes as NET.
        steps: Number of steps; 0 where ``epochs`` and ``samples`` give it.
        setup: Fields of a ``Setup``; without ``batch`` the network's own batch size applies.
        checkpoint: Its repeated blocks are under activation checkpointing.
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

    def count_steps(self, samples_per_step: int) -> int:
        """Return the number of steps of the whole job."""
        length = RunLength(self.steps or None, self.epochs or None, self.samples or None)
        return length.count_steps(samples_per_step)


@dataclass(frozen=True)
class PlanRequest:
    """Jobs and devices."""

    jobs: tuple[Job, ...]
    devices: tuple[PlanDevice, ...]

    def __post_init__(self) -> None:
        known = sorted(device.name for device in self.devices)
        for job in self.jobs:
            if unknown := sorted(set(job.devices) - set(known)):
                raise InputError(
                    f"the job {job.name} names an unknown device {unknown[0]!r}: give one of "
                    f"{', '.join(known)}"
                )


@dataclass(frozen=True)
class JobCost:
    """What a job takes on a device; ``covers`` is empty where the power was stated."""

    run: RunForecast
    memory_bytes: float
    provenance: str
    covers: str
    unseen_share: float = 0.0


Costs = Mapping[str, Mapping[str, JobCost]]
"""By job, by device; only where the job may run."""


@dataclass(frozen=True)
class TaskCost:
    """Duration, energy above ``awake_w`` and memory of a task on a device.

    ``extra_j`` is drawn in ``drawn_s``, if that is given: rounding makes ``duration_s`` longer.
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
        """Power above ``awake_w``."""
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

    @cached_property
    def device(self) -> dict[str, PlanDevice]:
        """The devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def task(self) -> dict[str, Task]:
        """The tasks by name."""
        return {task.name: task for task in self.tasks}

    def assign(self, task: str, device: str, start_s: float) -> Assignment:
        """Return a task on a device from a start time on."""
        return Assignment(task, device, start_s, start_s + self.task[task].costs[device].duration_s)

    def restrict(self, devices: Container[str], tasks: Container[str]) -> Problem:
        """Return the problem of some tasks on some devices."""
        return Problem(
            tuple(device for device in self.devices if device.name in devices),
            tuple(
                replace(task, costs={m: cost for m, cost in task.costs.items() if m in devices})
                for task in self.tasks
                if task.name in tasks
            ),
        )

    def priority_of(self, schedule: Iterable[Assignment]) -> int:
        """Return the total priority of what runs."""
        return sum(self.task[one.task].priority for one in schedule)


def make_problem(
    request: PlanRequest, costs: Costs, quantile: float, is_bound: bool = False
) -> Problem:
    """Return the scheduling problem with energies and durations at a quantile.

    With ``is_bound`` they hold beside other jobs too, which share the idle power.
    """
    devices, tasks = {device.name: device for device in request.devices}, []
    for job in request.jobs:
        found = {}
        for name, cost in costs[job.name].items():
            run, device = cost.run, devices[name]
            # A job of much energy in a short time shares the least idle power with others.
            is_shared = is_bound and device.max_parallel > 1
            idle_s = run.duration_quantile(1.0 - quantile if is_shared else quantile)
            idle_j = (device.awake_w - run.rest_w) * idle_s
            extra_j = max(0.0, run.device_quantile(quantile) - idle_j)
            found[name] = TaskCost(run.duration_quantile(quantile), extra_j, cost.memory_bytes)
        tasks.append(Task(job.name, found, job.release_s, job.deadline_s, job.priority))
    return Problem(request.devices, tuple(tasks))


def estimate_jobs(
    request: PlanRequest,
    nets: Mapping[str, tuple[Network, Setup]],
    profiles: Mapping[str, Profile],
    estimator: str = "auto",
) -> Costs:
    """Estimate each job on each device that may run it.

    A device with a stated speed takes FLOPs / flops_per_s for a step, but no less than launch_s for
    each of its kernels: small networks wait for the host. On an H200, steps of host-bound networks
    take 9 to 41 µs a kernel.
    """
    from joulecast.estimators import fit_profile
    from joulecast.estimators.forecast import RunForecast, forecast_run
    from joulecast.operators import network_work, peak_memory

    costs: dict[str, dict[str, JobCost]] = {job.name: {} for job in request.jobs}
    for device in request.devices:
        jobs = [job for job in request.jobs if not job.devices or device.name in job.devices]
        steps = [job.count_steps(nets[job.name][1].samples_per_step) for job in jobs]
        profile, rest_w = profiles.get(device.name), device.rest_w
        if profile is not None and jobs:
            # In one batch, which is far faster than one by one.
            networks, setups = zip(*(nets[job.name] for job in jobs), strict=True)
            estimates = fit_profile(profile, estimator).estimate(networks, setups, LEVEL)
            for job, count, one in zip(jobs, steps, estimates, strict=True):
                run, origin = forecast_run(one, count, rest_w), (one.provenance, one.covers)
                cost = JobCost(run, one.peak_memory_bytes, *origin, one.unseen_share)
                costs[job.name][device.name] = cost
        elif profile is None:
            for job, count in zip(jobs, steps, strict=True):
                work, log_sd = network_work(*nets[job.name]).total, device.uncertainty_share
                step_s = work.flops / (device.flops_per_s or 1.0)
                duration_s = count * max(step_s, work.launches * device.launch_s)
                energy_j = duration_s * (device.power_w or 0.0)
                run = RunForecast(energy_j, duration_s, log_sd, log_sd, rest_w)
                cost = JobCost(run, peak_memory(*nets[job.name]), "modelled", "")
                costs[job.name][device.name] = cost
    return costs
