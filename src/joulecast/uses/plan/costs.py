"""What every job would take on every device: estimates → the numbers that a plan is made of.

    joules of a job = steps · joules a step + rest_w · seconds      what the device draws meanwhile
    upper bound     = the joules and the seconds that it stays below with the wanted confidence

The estimate of a step holds the idle power of whatever its meter covers; what the meter does not
see is ``rest_w``. Steps share their error, so it grows with their number. Joules and seconds have
bounds of their own; seconds of an estimator that says none are taken to be as unsure as joules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from joulecast.estimators import DEFAULT, open_profile
from joulecast.estimators.looks import find_idle
from joulecast.kinds import network_work, peak_memory
from joulecast.records import Network, Profile, Setup
from joulecast.uses.plan.ask import Ask, Job, Station
from joulecast.uses.plan.problem import Cost, Machine, Problem, Task

LEVEL = 0.95
_STATED = "modelled"


@dataclass(frozen=True)
class JobCost:
    """What a job takes on a device, told by an estimate.

    Attributes:
        energy_j: What the device draws while the job runs alone.
        width: Deviation of its logarithm; ``width_s`` that of the seconds.
        basis: The weakest provenance it rests on.
        covers: What the meter behind it sees.
        unseen_share: Share of the energy in layers that were never profiled.
    """

    energy_j: float
    duration_s: float
    width: float
    memory_bytes: float
    basis: str
    covers: str
    unseen_share: float = 0.0
    width_s: float = 0.0

    def bound(self, confidence: float) -> tuple[float, float]:
        """Joules and seconds that each stays below with a confidence; means for an even chance."""
        z = NormalDist().inv_cdf(confidence)
        return self.energy_j * math.exp(z * self.width), self.duration_s * math.exp(
            z * self.width_s
        )

    @property
    def interval_j(self) -> tuple[float, float]:
        """Where the joules are with 95 %."""
        return self.bound(0.5 - LEVEL / 2)[0], self.bound(0.5 + LEVEL / 2)[0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "energy_j": self.energy_j,
            "interval_j": list(self.interval_j),
            "duration_s": self.duration_s,
            "memory_bytes": self.memory_bytes,
            "basis": self.basis,
            "covers": self.covers,
            "unseen_share": self.unseen_share,
        }


Costs = Mapping[str, Mapping[str, JobCost]]
"""By job, by device; only where the job may run."""


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
    pairs = [nets[job.name] for job in jobs]
    answers = open_profile(profile, estimator).ask(pairs, LEVEL).each if jobs else ()
    costs: dict[str, JobCost] = {}
    for job, answer in zip(jobs, answers, strict=True):
        steps, seconds = job.count_steps(nets[job.name][1].batch), answer.duration_s
        width = _find_width(answer.energy_j, answer.interval_j)
        known_s = answer.duration_interval_s
        costs[job.name] = JobCost(
            steps * (answer.energy_j + station.rest_w * seconds),
            steps * seconds,
            width,
            answer.peak_memory_bytes,
            answer.basis,
            answer.covers,
            answer.unseen_share,
            width if known_s is None else _find_width(seconds, known_s),
        )
    return costs


def _find_width(mean: float, interval: tuple[float, float]) -> float:
    """Deviation of the logarithm behind a log-normal interval."""
    return math.log(interval[1] / mean) / NormalDist().inv_cdf(0.5 + LEVEL / 2)


def _state_cost(station: Station, job: Job, network: Network, setup: Setup) -> JobCost:
    """By a stated power and speed: FLOPs / flops_per_s seconds at power_w."""
    flops = network_work(network, setup).total.flops
    duration_s = job.count_steps(setup.batch) * flops / (station.flops_per_s or 1.0)
    energy_j = duration_s * ((station.power_w or 0.0) + station.rest_w)
    size_bytes, covers = peak_memory(network, setup), "what was stated"
    doubt = station.doubt_share
    return JobCost(energy_j, duration_s, doubt, size_bytes, _STATED, covers, width_s=doubt)


def make_problem(
    ask: Ask, costs: Costs, profiles: Mapping[str, Profile], confidence: float = 0.5
) -> Problem:
    """The numbers that a plan is made of, with upper bounds at a confidence."""
    machines = {
        station.name: make_machine(station, profiles.get(station.name)) for station in ask.stations
    }
    tasks = tuple(
        Task(
            job.name,
            {
                name: make_cost(machines[name], cost, confidence)
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
        idle_w = (find_idle(profile.observations) or 0.0) if idle_w is None else idle_w
        known_bytes = profile.device.memory_bytes or math.inf
        memory_bytes = known_bytes if memory_bytes is None else memory_bytes
    return Machine(
        station.name,
        (idle_w or 0.0) + station.rest_w,
        station.asleep_w,
        math.inf if memory_bytes is None else memory_bytes,
        station.at_once,
        station.battery,
    )


def make_cost(machine: Machine, cost: JobCost, confidence: float) -> Cost:
    """What a job takes above what its device draws anyway; never less than that."""
    energy_j, duration_s = cost.bound(confidence)
    extra_j = max(0.0, energy_j - machine.awake_w * duration_s)
    return Cost(duration_s, extra_j, cost.memory_bytes)
