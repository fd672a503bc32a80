"""Plan which job runs when on which device: least energy, with every battery above its reserve.

jobs.toml --problem--> Problem --model--> Solution --result--> Plan

problem      jobs and devices of a TOML file, what each job takes on each device, in plain numbers
model        one CP-SAT model (the extra ``plan``), solved until the replay agrees
replay       check a schedule event by event, independently of the solver
result       the plan, why a job cannot run, and the report
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.plan.problem import estimate_jobs, parse_plan_request
from joulecast.features.plan.result import Plan, plan_jobs
from joulecast.records import Setup
from joulecast.system.errors import FileError, InputError, JoulecastError
from joulecast.system.files import read_toml
from joulecast.system.units import parse_share


def parse_time(text: str) -> datetime:
    """Return the time of a text like ``2030-05-01T22:00``; local without a time zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError("it is not a time: give one like 2030-05-01T22:00") from error


JobsFile = Annotated[str, Argument("A TOML file with [[job]] and [[device]] tables.")]
JobConfidence = Annotated[
    float,
    Argument(
        "Plan with energies and times that each job stays below with this probability.",
        # Below, jobs would be planned with less than their estimates.
        least=0.5, below=1.0, metavar="50%", parse=parse_share, default="50%",
    ),
]  # fmt: skip
TimeLimit = Annotated[
    float,
    Argument(
        "Seconds to search; then the best plan so far is used, with a bound on the optimum.",
        above=0.0,
        option="time-limit",
    ),
]
Now = Annotated[
    datetime | None,
    Argument(
        "Plan as if it were this time.", metavar="TIME", parse=parse_time, default="the present"
    ),
]


@verb
def plan(
    jobs: JobsFile,
    *,
    confidence: JobConfidence = 0.5,
    time_limit_s: TimeLimit = 60.0,
    now: Now = None,
    estimator: given.Estimator = "auto",
    store: given.Store = None,
    trust: bool = False,
) -> Plan:
    """Plan which job runs when on which device, with the least total energy.

    Every deadline is met and no battery falls below its reserve. JOBS is a TOML file that holds
    [[job]] tables (name, net, steps, release, deadline ...) and [[device]] tables (name, profile,
    battery_wh, charge, reserve, charging ...).

    Raises:
        FileError: The file is not valid; the message names the table and the key. Nets that are
            Python code need a file in a trusted folder, or ``trust=True``.
    """
    from joulecast.features.nets import resolve_name
    from joulecast.features.profiles import load_profile

    path = os.fspath(jobs)
    now = now or datetime.now().replace(microsecond=0)
    data = read_toml(Path(path))
    with _locate_errors(path):
        problem = parse_plan_request(data, now)
    nets, profiles = {}, {}
    for job in problem.jobs:
        with _locate_errors(f"{path}: [[job]] {job.name}"):
            setup, batch = Setup(**job.setup), job.setup.get("batch")
            found = resolve_name(
                job.net, batch, job.input_shape, phase=setup.phase, checkpoint=job.checkpoint,
                named_in=None if trust else path,
            )  # fmt: skip
            nets[job.name] = found.network, replace(setup, batch=found.batch)
    devices = []
    for device in problem.devices:
        with _locate_errors(f"{path}: [[device]] {device.name}"):
            if device.power_w is None:
                profiles[device.name] = load_profile(device.profile or device.name, store=store)
            devices.append(device.complete(profiles.get(device.name)))
    problem = replace(problem, devices=tuple(devices))
    problem = estimate_jobs(problem, nets, profiles, estimator)
    return plan_jobs(problem, now, confidence, time_limit_s)


@contextmanager
def _locate_errors(where: str) -> Iterator[None]:
    """Say in errors where in the file they are; bad input there is a FileError."""
    try:
        yield
    except JoulecastError as error:
        kind = FileError if isinstance(error, InputError) else type(error)
        raise kind(f"{where}: {error}") from error
