"""Plan which job runs when on which device: least energy, with every battery above its reserve.

jobs.toml --jobs_file--> PlanRequest --problem--> Problem --model--> Solution --result--> Plan

problem      jobs and devices, what each job takes on each device, and that in plain numbers
jobs_file    the TOML file that describes them
model        one CP-SAT model (the extra ``plan``), solved until the replay agrees
replay       check a schedule event by event, independently of the solver
result       the plan, why a job cannot run, and the report
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.plan.problem import estimate_jobs
from joulecast.features.plan.result import Plan, plan_jobs
from joulecast.records import Setup
from joulecast.system.errors import FileError, InputError, JoulecastError
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
    from joulecast.features.plan.jobs_file import read_plan_request
    from joulecast.features.profiles import load_profile

    path = os.fspath(jobs)
    now = now or datetime.now().replace(microsecond=0)
    request = read_plan_request(path, now)
    nets, profiles = {}, {}
    for job in request.jobs:
        try:
            setup, batch = Setup(**job.setup), job.setup.get("batch")
            found = resolve_name(
                job.net, batch, job.input_shape, phase=setup.phase, checkpoint=job.checkpoint,
                named_in=None if trust else path,
            )  # fmt: skip
            nets[job.name] = found.network, replace(setup, batch=found.batch)
        except InputError as error:
            raise FileError(f"{path}: [[job]] {job.name}: {error}") from error
    for device in request.devices:
        if device.power_w is None:
            try:
                profiles[device.name] = load_profile(device.profile or device.name, store=store)
            except JoulecastError as error:
                raise type(error)(f"{path}: [[device]] {device.name}: {error}") from error
    costs = estimate_jobs(request, nets, profiles, estimator)
    try:
        devices = tuple(one.complete(profiles.get(one.name)) for one in request.devices)
        return plan_jobs(replace(request, devices=devices), costs, now, confidence, time_limit_s)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error
