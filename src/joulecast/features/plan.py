"""Plan which job runs when on which device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from joulecast.errors import FileError, InputError, JoulecastError
from joulecast.features.nets import resolve_name
from joulecast.features.options import PlanOptions, split_options
from joulecast.features.profiles import load_profile
from joulecast.records import Network, Profile, Setup

if TYPE_CHECKING:
    from joulecast.uses.plan import Job, Plan, PlanRequest


def plan(jobs: str | os.PathLike[str], **options: Any) -> Plan:
    """Plan the jobs of a TOML file on its devices with the least total energy.

    Args:
        jobs: Path of a file with ``[[job]]`` and ``[[device]]`` tables.
        options: Fields of ``PlanOptions``: ``confidence``, ``time_limit_s``, ``now``,
            ``estimator``, ``store``, and ``trust``, without which nets that are Python code need a
            file in a trusted folder.

    Raises:
        FileError: The file is not valid; the message names the table and the key.
    """
    (planning,) = split_options(plan, options, PlanOptions)
    return make_plan(os.fspath(jobs), PlanOptions(**planning))


def make_plan(path: str, options: PlanOptions) -> Plan:
    """Plan the jobs of a TOML file."""
    from joulecast.uses.plan import estimate_jobs, plan_jobs, read_plan_request

    now = options.now or datetime.now().replace(microsecond=0)
    request = read_plan_request(path, now)
    nets = {job.name: _resolve_job(job, path, options.trust) for job in request.jobs}
    profiles = _find_profiles(request, path, options.store)
    costs = estimate_jobs(request, nets, profiles, options.estimator)
    try:
        return plan_jobs(request, costs, profiles, now, options.confidence, options.time_limit_s)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def _resolve_job(job: Job, path: str, trust: bool) -> tuple[Network, Setup]:
    """Return the network of a job, and its setup with the batch size that applies."""
    batch, named_in = job.setup.get("batch"), None if trust else path
    try:
        setup = Setup(**job.setup)
        found = resolve_name(
            job.net,
            batch,
            job.input_shape,
            phase=setup.phase,
            checkpoint=job.checkpoint,
            named_in=named_in,
        )
        return found.network, replace(setup, batch=found.batch)
    except InputError as error:
        raise FileError(f"{path}: [[job]] {job.name}: {error}") from error


def _find_profiles(request: PlanRequest, path: str, store: str | None) -> Mapping[str, Profile]:
    """Return the profiles of the devices without a stated power, by the name of the device."""
    found = {}
    for device in request.devices:
        if device.power_w is None:
            try:
                found[device.name] = load_profile(device.profile or device.name, store=store)
            except JoulecastError as error:
                raise type(error)(f"{path}: [[device]] {device.name}: {error}") from error
    return found
