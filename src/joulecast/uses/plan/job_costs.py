"""Estimate what every job takes on every device, and turn that into a scheduling problem.

    energy of a job = steps * energy of a step + rest_w * duration
    upper bound     = the energy and the duration that it stays below with the wanted confidence

The estimate of a step includes the idle power of whatever its meter covers; ``rest_w`` is the power
that the meter does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.estimators import AUTO, fit_profile
from joulecast.estimators.additive.observations import find_idle_power
from joulecast.estimators.forecast import RunForecast, forecast_run
from joulecast.kinds import network_work, peak_memory
from joulecast.records import Network, Profile, Setup
from joulecast.uses.plan.plan_request import DeviceSpec, Job, PlanRequest
from joulecast.uses.plan.problem import PlanDevice, Problem, Task, TaskCost

LEVEL = 0.95


@dataclass(frozen=True)
class JobCost:
    """What a job takes on a device.

    Attributes:
        run: Its energy and duration.
        provenance: The weakest provenance it rests on.
        covers: What the meter behind it covers; empty where the power was stated.
        unseen_share: Share of the energy in layers that were never measured.
    """

    run: RunForecast
    memory_bytes: float
    provenance: str
    covers: str
    unseen_share: float = 0.0


Costs = Mapping[str, Mapping[str, JobCost]]
"""By job, by device; only where the job may run."""
MakeCost = Callable[[PlanDevice, JobCost, float], TaskCost]


def estimate_jobs(
    request: PlanRequest,
    nets: Mapping[str, tuple[Network, Setup]],
    profiles: Mapping[str, Profile],
    estimator: str = AUTO,
) -> Costs:
    """Estimate each job on each device that may run it.

    Args:
        request: Jobs and devices.
        nets: The network and setup of each job.
        profiles: Profiles by device; devices with a stated power need none.
        estimator: Name of the estimator.
    """
    costs: dict[str, dict[str, JobCost]] = {job.name: {} for job in request.jobs}
    for device in request.devices:
        jobs = [job for job in request.jobs if not job.devices or device.name in job.devices]
        if device.name in profiles:
            rows = _estimate_by_profile(device, profiles[device.name], jobs, nets, estimator)
        else:
            rows = [_estimate_by_speed(device, job, *nets[job.name]) for job in jobs]
        for job, cost in zip(jobs, rows, strict=True):
            costs[job.name][device.name] = cost
    return costs


def make_problem(
    request: PlanRequest,
    costs: Costs,
    profiles: Mapping[str, Profile],
    confidence: float = 0.5,
    make_cost: MakeCost | None = None,
) -> Problem:
    """Return the scheduling problem with upper bounds at a confidence.

    Args:
        request: Jobs and devices.
        costs: What jobs take on devices.
        profiles: Profiles by device, for idle power and memory.
        confidence: Probability with which each job stays below its numbers.
        make_cost: How a job's cost becomes numbers; by default ``bound_cost``.
    """
    make_cost = make_cost or bound_cost
    devices = {spec.name: make_device(spec, profiles.get(spec.name)) for spec in request.devices}
    tasks = []
    for job in request.jobs:
        rows = costs[job.name].items()
        by_device = {name: make_cost(devices[name], cost, confidence) for name, cost in rows}
        tasks.append(Task(job.name, by_device, job.release_s, job.deadline_s, job.priority))
    return Problem(tuple(devices.values()), tuple(tasks))


def make_device(spec: DeviceSpec, profile: Profile | None) -> PlanDevice:
    """Return a device in numbers; what its specification omits comes from its profile."""
    idle_w, memory_bytes = spec.idle_w, spec.memory_bytes
    if profile is not None and idle_w is None:
        idle_w = find_idle_power(profile.observations)
    if profile is not None and memory_bytes is None:
        memory_bytes = profile.device.memory_bytes or math.inf
    memory_bytes = math.inf if memory_bytes is None else memory_bytes
    awake_w = (idle_w or 0.0) + spec.rest_w
    if spec.asleep_w > awake_w:
        raise InputError(
            f"[[device]] {spec.name}: asleep_w is {spec.asleep_w:g} W, above the {awake_w:g} W of "
            "idle_w + rest_w that it draws awake: lower asleep_w"
        )
    sizes = (memory_bytes, spec.max_parallel, spec.battery)
    return PlanDevice(spec.name, awake_w, spec.asleep_w, *sizes)


def bound_cost(device: PlanDevice, cost: JobCost, confidence: float) -> TaskCost:
    """Return numbers that a job stays below with a confidence, also beside others.

    Parallel jobs share idle power while they last, so a job of much energy in a short time shares
    least: its extra energy is the high energy less the idle energy of the short time.
    """
    shared = confidence if device.max_parallel == 1 else 1.0 - confidence
    return _make_cost(device, cost, confidence, shared)


def expect_cost(device: PlanDevice, cost: JobCost, probability: float) -> TaskCost:
    """Return a job's cost if its energy and duration are at this quantile."""
    return _make_cost(device, cost, probability, probability)


def _make_cost(device: PlanDevice, cost: JobCost, quantile: float, idle: float) -> TaskCost:
    """Return the cost above what the device draws anyway, never below 0."""
    run = cost.run
    idle_j = (device.awake_w - run.rest_w) * run.duration_quantile(idle)
    extra_j = max(0.0, run.device_quantile(quantile) - idle_j)
    return TaskCost(run.duration_quantile(quantile), extra_j, cost.memory_bytes)


def _estimate_by_profile(
    spec: DeviceSpec,
    profile: Profile,
    jobs: Sequence[Job],
    nets: Mapping[str, tuple[Network, Setup]],
    estimator: str,
) -> list[JobCost]:
    """Estimate all jobs of a device in one batch, which is far faster than one by one."""
    if not jobs:
        return []
    networks, setups = zip(*(nets[job.name] for job in jobs), strict=True)
    estimates = fit_profile(profile, estimator).estimate(networks, setups, LEVEL)
    costs = []
    for job, setup, one in zip(jobs, setups, estimates, strict=True):
        run = forecast_run(one, job.count_steps(setup.samples_per_step), spec.rest_w)
        origin = (one.provenance, one.covers, one.unseen_share)
        costs.append(JobCost(run, one.peak_memory_bytes, *origin))
    return costs


def _estimate_by_speed(spec: DeviceSpec, job: Job, network: Network, setup: Setup) -> JobCost:
    """Estimate a job by a stated power and speed.

    A step takes FLOPs / flops_per_s, but no less than launch_s for each of its kernels: small
    networks wait for the host. On an H200, steps of host-bound networks take 9 to 41 µs a kernel.
    """
    work = network_work(network, setup).total
    step_s = max(work.flops / (spec.flops_per_s or 1.0), work.launches * spec.launch_s)
    duration_s, log_sd = job.count_steps(setup.samples_per_step) * step_s, spec.uncertainty_share
    energy_j = duration_s * (spec.power_w or 0.0)
    run = RunForecast(energy_j, duration_s, log_sd, log_sd, spec.rest_w)
    return JobCost(run, peak_memory(network, setup), "modelled", "")
