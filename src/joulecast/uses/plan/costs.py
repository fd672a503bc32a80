"""What every job would take on every device: estimates → the numbers that a plan is made of.

    joules of a job = steps · joules a step + rest_w · seconds      what the device draws meanwhile
    upper bound     = the joules and the seconds that it stays below with the wanted confidence

The estimate of a step holds the idle power of whatever its meter covers; what the meter does not
see is ``rest_w``. Joules and seconds have bounds of their own (spread.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.estimators import DEFAULT, fit_profile
from joulecast.estimators.additive.decompose import find_idle_power
from joulecast.kinds import network_work, peak_memory
from joulecast.records import Network, Profile, Setup
from joulecast.uses.plan.ask import Ask, Job, Station
from joulecast.uses.plan.problem import Cost, Machine, Problem, Task
from joulecast.uses.plan.spread import Spread, spread_run

LEVEL = 0.95
_STATED = "modelled"


@dataclass(frozen=True)
class JobCost:
    """What a job takes on a device, told by an estimate.

    Attributes:
        spread: Its joules and seconds.
        provenance: The weakest provenance it rests on.
        covers: What the meter behind it sees; empty where its power was stated.
        unseen_share: Share of the energy in layers that were never profiled.
    """

    spread: Spread
    memory_bytes: float
    provenance: str
    covers: str
    unseen_share: float = 0.0


Costs = Mapping[str, Mapping[str, JobCost]]
"""By job, by device; only where the job may run."""
MakeCost = Callable[[Machine, JobCost, float], Cost]


def estimate_jobs(
    ask: Ask,
    nets: Mapping[str, tuple[Network, Setup]],
    profiles: Mapping[str, Profile],
    estimator: str = DEFAULT,
) -> Costs:
    """What each job takes on each device where it may run.

    Args:
        ask: Jobs and devices.
        nets: The network and setup of each job.
        profiles: What devices have learnt, by device; those with a stated power need none.
        estimator: Which method answers.
    """
    found: dict[str, dict[str, JobCost]] = {job.name: {} for job in ask.jobs}
    for station in ask.stations:
        jobs = [job for job in ask.jobs if not job.devices or station.name in job.devices]
        if station.name in profiles:
            rows = _ask_profile(station, profiles[station.name], jobs, nets, estimator)
        else:
            rows = {job.name: _state_cost(station, job, *nets[job.name]) for job in jobs}
        for name, cost in rows.items():
            found[name][station.name] = cost
    return found


def _ask_profile(
    station: Station,
    profile: Profile,
    jobs: Sequence[Job],
    nets: Mapping[str, tuple[Network, Setup]],
    estimator: str,
) -> dict[str, JobCost]:
    """All jobs of a device are asked about together: that is far quicker."""
    if not jobs:
        return {}
    networks, setups = zip(*(nets[job.name] for job in jobs), strict=True)
    answers = fit_profile(profile, estimator).estimate(networks, setups, LEVEL)
    costs: dict[str, JobCost] = {}
    for job, answer in zip(jobs, answers, strict=True):
        steps = job.count_steps(nets[job.name][1].batch)
        costs[job.name] = JobCost(
            spread_run(answer, steps, station.rest_w),
            answer.peak_memory_bytes,
            answer.provenance,
            answer.covers,
            answer.unseen_share,
        )
    return costs


def _state_cost(station: Station, job: Job, network: Network, setup: Setup) -> JobCost:
    """By a stated power and speed: FLOPs / flops_per_s seconds at power_w."""
    flops = network_work(network, setup).total.flops
    duration_s = job.count_steps(setup.batch) * flops / (station.flops_per_s or 1.0)
    device_j, doubt = duration_s * (station.power_w or 0.0), station.doubt_share
    spread = Spread(device_j, duration_s, doubt, doubt, station.rest_w)
    return JobCost(spread, peak_memory(network, setup), _STATED, "")


def make_problem(
    ask: Ask,
    costs: Costs,
    profiles: Mapping[str, Profile],
    confidence: float = 0.5,
    make: MakeCost | None = None,
) -> Problem:
    """The numbers that a plan is made of, with upper bounds at a confidence.

    Args:
        ask: Jobs and devices.
        costs: What jobs take on devices.
        profiles: What devices have learnt, for their idle power and memory.
        confidence: With which each job stays below its numbers.
        make: How a job's cost becomes a number; ``bound_cost`` where it is None.
    """
    machines = {
        station.name: make_machine(station, profiles.get(station.name)) for station in ask.stations
    }
    make = make or bound_cost
    tasks = tuple(
        Task(
            job.name,
            {
                name: make(machines[name], cost, confidence)
                for name, cost in costs[job.name].items()
            },
            job.release_s,
            job.deadline_s,
            job.priority,
        )
        for job in ask.jobs
    )
    return Problem(tuple(machines.values()), tasks)


def make_machine(station: Station, profile: Profile | None) -> Machine:
    """A device in numbers; what it does not say, its profile does."""
    idle_w, memory_bytes = station.idle_w, station.memory_bytes
    if profile is not None:
        idle_w = (find_idle_power(profile.observations) or 0.0) if idle_w is None else idle_w
        known_bytes = profile.device.memory_bytes or math.inf
        memory_bytes = known_bytes if memory_bytes is None else memory_bytes
    awake_w = (idle_w or 0.0) + station.rest_w
    if station.asleep_w > awake_w:
        raise InputError(
            f"[[device]] {station.name}: asleep_w is {station.asleep_w:g}, but awake it draws "
            f"{awake_w:g} W (idle_w + rest_w): give no more asleep than awake"
        )
    return Machine(
        station.name,
        awake_w,
        station.asleep_w,
        math.inf if memory_bytes is None else memory_bytes,
        station.at_once,
        station.battery,
    )


def bound_cost(machine: Machine, cost: JobCost, confidence: float) -> Cost:
    """Numbers that a job stays below with a confidence, also beside others.

    Jobs at once share idle power for as long as they last: a job that takes many joules in few
    seconds shares least. So what it takes above idle is its many joules less its few seconds' idle.
    """
    shared_share = confidence if machine.at_once == 1 else 1.0 - confidence
    return _make_cost(machine, cost, confidence, shared_share)


def expect_cost(machine: Machine, cost: JobCost, share: float) -> Cost:
    """What a job takes if its joules and seconds are where they stay below with this share."""
    return _make_cost(machine, cost, share, share)


def _make_cost(machine: Machine, cost: JobCost, share: float, idle_share: float) -> Cost:
    """What a job takes above what its device draws anyway; never less than that."""
    spread = cost.spread
    idle_w = machine.awake_w - spread.rest_w
    idle_j = idle_w * spread.find_seconds(idle_share)
    extra_j = max(0.0, spread.find_device(share) - idle_j)
    return Cost(spread.find_seconds(share), extra_j, cost.memory_bytes)
