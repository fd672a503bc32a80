"""Describe what is to be planned: jobs and devices as given, and the scheduling problem in numbers.

    [[job]]       name net steps | inferences | epochs samples, batch input precision optimizer
                  loss threads processor cuda_graphs accumulate compiled checkpoint inference,
                  release deadline devices priority
    [[device]]    name profile | power_w flops_per_s launch_s uncertainty, battery_wh charge
                  reserve charger_w idle_w rest_w asleep_w memory max_parallel
    [[device.charging]]   from to charger_w

Times in the file are durations from now (``2h``) or dates (``2030-05-01T22:00``, in the zone of
``now``, or local without one). Every error is one line that names table and key.

    power of a device = awake_w + sum over its running jobs of extra_j / duration_s    while awake
                      = asleep_w                                       before its first job starts
    energy of a job   = steps * energy of a step + rest_w * duration

A device is awake from the start of its first job to the end of its last. A job's ``extra_j`` is
what it adds to ``awake_w``: alone it takes ``extra_j + awake_w * duration_s``, and parallel jobs
share ``awake_w``. Times of records are seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from joulecast.features.arguments import MAX_COUNT, choose_setup_fields
from joulecast.features.estimate import find_run_length
from joulecast.features.run import RunLength
from joulecast.records import Network, Profile, Setup
from joulecast.system.errors import InputError
from joulecast.system.files import show_value
from joulecast.system.toml_tables import (
    Json,
    Parser,
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
    refuse_unknown,
)
from joulecast.system.units import JOULES_PER_WH, parse_bytes, parse_duration, parse_shape

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


@dataclass(frozen=True)
class Battery:
    """A battery's capacity, its charge now, and the reserve that must remain."""

    capacity_j: float
    charge_j: float
    reserve_j: float = 0.0
    windows: tuple[ChargingWindow, ...] = ()

    def __post_init__(self) -> None:
        if any(two.start_s < one.end_s for one, two in pairwise(self.windows)):
            raise InputError("charging windows overlap: merge them")


@dataclass(frozen=True)
class PlanDevice:
    """A device that runs jobs, with a profile or a stated power and speed.

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
                f"asleep_w is {self.asleep_w:g} W, above the {found.awake_w:g} W of idle_w + "
                "rest_w that it draws awake: lower asleep_w"
            )
        return found


@dataclass(frozen=True)
class JobCost:
    """Duration, energy above ``awake_w`` and memory of a job on a device.

    ``extra_j`` is drawn in ``drawn_s``, if that is given: rounding makes ``duration_s`` longer.
    """

    duration_s: float
    extra_j: float
    memory_bytes: float = 0.0
    drawn_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.duration_s < math.inf and 0 <= self.extra_j < math.inf):
            raise InputError(
                f"a job of {self.duration_s:g} s and {self.extra_j:g} J cannot be planned: give a "
                "duration above 0 and an energy of at least 0"
            )

    @property
    def extra_w(self) -> float:
        return self.extra_j / (self.drawn_s or self.duration_s)

    def energy_j(self, device: PlanDevice) -> float:
        """Return what the device draws while only this job runs."""
        return self.extra_j + device.awake_w * self.duration_s


@dataclass(frozen=True)
class JobForecast:
    """What a job may take on a device; ``covers`` is empty where the power was stated."""

    run: RunForecast
    memory_bytes: float
    provenance: str
    covers: str = ""
    unseen_share: float = 0.0

    def at(self, quantile: float, device: PlanDevice, is_bound: bool) -> JobCost:
        """Return the cost with energy and duration at a quantile.

        With ``is_bound`` they hold beside other jobs too, which share the idle power.
        """
        run = self.run
        # A job of much energy in a short time shares the least idle power with others.
        is_shared = is_bound and device.max_parallel > 1
        idle_s = run.duration_quantile(1.0 - quantile if is_shared else quantile)
        idle_j = (device.awake_w - run.rest_w) * idle_s
        extra_j = max(0.0, run.device_quantile(quantile) - idle_j)
        return JobCost(run.duration_quantile(quantile), extra_j, self.memory_bytes)


@dataclass(frozen=True)
class Job:
    """A network that is trained, or run, for some steps: once, without interruption.

    Attributes:
        costs: What to plan with on each device that may run it, at a quantile of the forecasts.
        priority: Jobs of higher priority run first where not all can.
        net: Anything the command line takes as NET.
        setup: Fields of a ``Setup``; without ``batch`` the network's own batch size applies.
        checkpoint: Its repeated blocks are under activation checkpointing.
        devices: Devices that may run it; empty for all.
    """

    name: str
    costs: Mapping[str, JobCost] = field(default_factory=dict)
    release_s: float = 0.0
    deadline_s: float = math.inf
    priority: int = 1
    net: str = ""
    length: RunLength = field(default_factory=RunLength)
    setup: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] | None = None
    checkpoint: bool = False
    devices: tuple[str, ...] = ()
    forecasts: Mapping[str, JobForecast] = field(default_factory=dict)


class Assignment(NamedTuple):
    """A job on a device from start to end."""

    job: str
    device: str
    start_s: float
    end_s: float


Schedule = tuple[Assignment, ...]


@dataclass(frozen=True)
class Problem:
    """Devices and jobs with unique names, by which ``job`` and ``device`` find them."""

    devices: tuple[PlanDevice, ...]
    jobs: tuple[Job, ...]

    @cached_property
    def device(self) -> dict[str, PlanDevice]:
        return {device.name: device for device in self.devices}

    @cached_property
    def job(self) -> dict[str, Job]:
        return {job.name: job for job in self.jobs}

    def at(self, quantile: float, is_bound: bool = False) -> Problem:
        """Return the problem with costs at a quantile of the forecasts."""
        jobs = []
        for job in self.jobs:
            found = job.forecasts.items()
            costs = {name: one.at(quantile, self.device[name], is_bound) for name, one in found}
            jobs.append(replace(job, costs=costs))
        return replace(self, jobs=tuple(jobs))

    def assign(self, job: str, device: str, start_s: float) -> Assignment:
        return Assignment(job, device, start_s, start_s + self.job[job].costs[device].duration_s)

    def restrict(self, devices: Container[str], jobs: Container[str]) -> Problem:
        """Return the problem of some jobs on some devices."""
        return Problem(
            tuple(device for device in self.devices if device.name in devices),
            tuple(
                replace(job, costs={m: cost for m, cost in job.costs.items() if m in devices})
                for job in self.jobs
                if job.name in jobs
            ),
        )

    def priority_of(self, schedule: Iterable[Assignment]) -> int:
        return sum(self.job[one.job].priority for one in schedule)


def estimate_jobs(
    problem: Problem,
    nets: Mapping[str, tuple[Network, Setup]],
    profiles: Mapping[str, Profile],
    estimator: str = "auto",
) -> Problem:
    """Return a problem with the forecast of each job on each device that may run it.

    A device with a stated speed takes FLOPs / flops_per_s for a step, but no less than launch_s for
    each of its kernels: small networks wait for the host. On an H200, steps of host-bound networks
    take 9 to 41 µs a kernel.
    """
    from joulecast.estimators import fit_profile
    from joulecast.estimators.forecast import RunForecast, forecast_run
    from joulecast.operators import network_work, peak_memory

    forecasts: dict[str, dict[str, JobForecast]] = {job.name: {} for job in problem.jobs}
    for device in problem.devices:
        jobs = [job for job in problem.jobs if not job.devices or device.name in job.devices]
        steps = [job.length.count_steps(nets[job.name][1].samples_per_step) for job in jobs]
        profile, rest_w = profiles.get(device.name), device.rest_w
        if profile is not None and jobs:
            # In one batch, which is far faster than one by one.
            networks, setups = zip(*(nets[job.name] for job in jobs), strict=True)
            estimates = fit_profile(profile, estimator).estimate(networks, setups, LEVEL)
            for job, count, one in zip(jobs, steps, estimates, strict=True):
                run, origin = forecast_run(one, count, rest_w), (one.provenance, one.covers)
                found = JobForecast(run, one.peak_memory_bytes, *origin, one.unseen_share)
                forecasts[job.name][device.name] = found
        elif profile is None:
            for job, count in zip(jobs, steps, strict=True):
                work, log_sd = network_work(*nets[job.name]).total, device.uncertainty_share
                step_s = work.flops / (device.flops_per_s or 1.0)
                duration_s = count * max(step_s, work.launches * device.launch_s)
                energy_j = duration_s * (device.power_w or 0.0)
                run = RunForecast(energy_j, duration_s, log_sd, log_sd, rest_w)
                found = JobForecast(run, peak_memory(*nets[job.name]), "modelled")
                forecasts[job.name][device.name] = found
    jobs = [replace(job, forecasts=forecasts[job.name]) for job in problem.jobs]
    return replace(problem, jobs=tuple(jobs))


# ---------------------------------------------------------------------------------------------
# The file


def parse_plan_request(data: Mapping[str, Any], now: datetime) -> Problem:
    """Parse the jobs and devices of a file's content."""
    refuse_unknown("the file", data, ("job", "device"))
    found = []
    for kind, parse in (("job", _parse_job), ("device", _parse_device)):
        for where, row in list_tables(data, kind):
            try:
                found.append(parse(where, row, partial(_parse_time, now=now)))
            except InputError as error:
                text = error.describe(_mention_key)
                raise InputError(text if text.startswith(where) else f"{where}: {text}") from error
    devices = tuple(one for one in found if isinstance(one, PlanDevice))
    problem = Problem(devices, tuple(one for one in found if isinstance(one, Job)))
    for job in problem.jobs:
        if unknown := sorted(set(job.devices) - set(problem.device)):
            raise InputError(
                f"the job {job.name} names an unknown device {unknown[0]!r}: give one of "
                f"{', '.join(sorted(problem.device))}"
            )
    return problem


def _mention_key(name: str, value: str | None) -> str:
    """Return an argument of a verb as the file has it."""
    return "inference = true" if (name, value) == ("phase", "inference") else name


def _parse_job(where: str, row: Json, parse_time: Parser) -> Job:
    more = {"release": parse_time, "deadline": parse_time, "inference": _parse_flag}
    values = parse_table(where, row, {**_JOB, **_LENGTH, **_SETUP, **more})
    if "net" not in values:
        raise InputError("net is missing: give a family, file.py:make_net or a .json")
    phase = "inference" if values.get("inference") else None
    setup = choose_setup_fields(phase=phase, **{key: values.get(key) for key in _SETUP})
    length = find_run_length(phase=phase, **{key: values.get(key) for key in _LENGTH})
    if not length.is_run:
        raise InputError("give steps, or epochs and samples")
    job = Job(
        length=length,
        setup=setup,
        release_s=max(0.0, values.get("release", 0.0)),
        deadline_s=values.get("deadline", math.inf),
        **_rename(values, _JOB),
    )
    if job.deadline_s <= job.release_s:
        raise InputError("deadline is before the job may start: give a later one")
    return job


def _parse_device(where: str, row: Json, parse_time: Parser) -> PlanDevice:
    values = parse_table(where, row, {**_DEVICE, **_BATTERY})
    is_stated = "power_w" in values
    if is_stated != ("flops_per_s" in values) or (is_stated and "profile" in values):
        raise InputError("give profile, or power_w and flops_per_s")
    if "launch_s" in values and not is_stated:
        raise InputError("launch_s needs flops_per_s: a profile knows its own")
    device = PlanDevice(**_rename(values, _DEVICE))
    if "battery_wh" not in values:
        if needy := [key for key in _BATTERY if key in values]:
            raise InputError(f"{needy[0]} needs battery_wh: give the battery's capacity")
        return device
    charger_w, tables = values.get("charger_w"), values.get("charging", [])
    if charger_w is not None and not tables:
        raise InputError("charger_w needs [[device.charging]]: give its from and to")
    parsers = {"from": parse_time, "to": parse_time, "charger_w": _parse_positive}
    windows = []
    for number, table in enumerate(tables, start=1):
        what = f"{where}, charging {number}"
        if not isinstance(table, dict):
            raise InputError(f"{what} is {show_value(table)}: give a table with from and to")
        window = {"charger_w": charger_w, **parse_table(what, table, parsers)}
        for key in parsers:
            if window.get(key) is None:
                raise InputError(f"{what}: {key} is missing")
        # A window that has already begun continues from now.
        windows.append(ChargingWindow(max(0.0, window["from"]), window["to"], window["charger_w"]))
    windows.sort(key=lambda window: window.start_s)
    full_j = values["battery_wh"] * JOULES_PER_WH
    charge_j, reserve_j = full_j * values.get("charge", 1.0), full_j * values.get("reserve", 0.0)
    return replace(device, battery=Battery(full_j, charge_j, reserve_j, tuple(windows)))


def _rename(values: Json, keys: Iterable[str]) -> Json:
    """Return the values of some keys by the field that takes them."""
    fields = {"input": "input_shape", "memory": "memory_bytes", "uncertainty": "uncertainty_share"}
    return {fields.get(key, key): values[key] for key in keys if key in values}


def _parse_time(value: Any, now: datetime) -> float:
    """Return the seconds from now of a duration or a date.

    Without time zones both are local times, whose offset may change between them.
    """
    if not isinstance(value, (str, datetime)):
        raise InputError("give a duration like 2h in quotes, or a time like 2030-05-01T22:00")
    try:
        date = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return parse_duration(str(value))
    if date.tzinfo is None:
        date = date.replace(tzinfo=now.tzinfo) if now.tzinfo else date.astimezone()
    return (date - (now if now.tzinfo else now.astimezone())).total_seconds()


def _parse_input(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (str, list)) or len(value) > _MOST_CHARACTERS:
        raise InputError("give the sizes of one sample, like 3x96x96")
    return parse_shape("x".join(map(str, value)) if isinstance(value, list) else value)


def _parse_positive(value: Any) -> float:
    if not (number := parse_number(value)):
        raise InputError("give a number above 0")
    return number


def _expect(kind: type, advice: str, is_allowed: Callable[[Any], bool] = lambda _: True) -> Parser:
    """Return a parser of values of a type that are allowed."""

    def parse(value: Any) -> Any:
        if type(value) is not kind or not is_allowed(value):
            raise InputError(advice)
        return value

    return parse


_MOST_CHARACTERS = 200
_COUNT_ADVICE = f"give a whole number from 1 to {MAX_COUNT:,}"
_parse_count = _expect(int, _COUNT_ADVICE, lambda count: 1 <= count <= MAX_COUNT)
_parse_flag = _expect(bool, "give true or false")
_parse_names = _expect(list, 'give a list like ["phone", "laptop"]', bool)
_LENGTH = dict.fromkeys(("steps", "inferences", "epochs", "samples"), _parse_count)
_JOB: dict[str, Parser] = {
    **dict.fromkeys(("name", "net"), parse_text),
    "devices": lambda value: tuple(map(parse_text, _parse_names(value))),
    "priority": _parse_count,
    "input": _parse_input,
    "checkpoint": _parse_flag,
}
_SETUP: dict[str, Parser] = {
    **dict.fromkeys(("batch", "threads", "accumulate"), _parse_count),
    **dict.fromkeys(("precision", "optimizer", "loss", "processor"), parse_text),
    **dict.fromkeys(("cuda_graphs", "compiled"), _parse_flag),
}
_DEVICE: dict[str, Parser] = {
    **dict.fromkeys(("name", "profile"), parse_text),
    **dict.fromkeys(("power_w", "launch_s", "idle_w", "rest_w", "asleep_w"), parse_number),
    "flops_per_s": _parse_positive,
    "memory": lambda value: parse_bytes(parse_text(value)),
    "uncertainty": parse_share_value,
    "max_parallel": _parse_count,
}
_BATTERY: dict[str, Parser] = {
    **dict.fromkeys(("charge", "reserve"), parse_share_value),
    **dict.fromkeys(("battery_wh", "charger_w"), _parse_positive),
    "charging": _expect(list, "give [[device.charging]] tables with from and to"),
}
