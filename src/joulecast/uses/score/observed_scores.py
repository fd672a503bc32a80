"""Score a device from observations of the reference applications; estimates take no part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import median

from joulecast.records import Observation, Profile, Setup, Trial
from joulecast.uses.score.device_score import DeviceFacts, DeviceScore, ScoredConfiguration
from joulecast.uses.score.reference_applications import (
    build_reference_application,
    list_reference_applications,
)

NOT_MEASURED = "not measured yet"
_PENDING = "its energy is still to come: attach a power trace with `joulecast data attach`"
_NO_ENERGY = "it was observed without energy: measure it again"
_ZERO = "the meter counted no energy: measure it with a meter that resolves it"


def list_score_setups(
    threads: Sequence[int] = (), processors: Sequence[str] = (), precision: str = "fp32"
) -> list[Setup]:
    """Return the setups that a device is scored with: one inference at a time.

    Args:
        threads: Numbers of threads; the runtime's choice where empty.
        processors: Processors of the device; the runtime's choice where empty.
        precision: Number format.
    """
    pairs = product(processors or ("",), threads or (0,))
    return [
        Setup(1, "inference", precision, threads=count, processor=processor)
        for processor, count in pairs
    ]


def find_score_setups(observations: Iterable[Observation], precision: str) -> list[Setup]:
    """Return the setups with which reference applications were observed one at a time."""
    networks = {build_reference_application(name) for name in list_reference_applications()}
    found = {
        one.trial.setup
        for one in observations
        if one.trial.setup.phase == "inference"
        and one.trial.setup.batch == 1
        and one.trial.setup.precision == precision
        and one.trial.execution.is_user_step
        and one.trial.network in networks
    }
    return sorted(found, key=lambda setup: (setup.processor, setup.threads, setup.cuda_graphs))


def list_score_trials(setups: Sequence[Setup]) -> list[tuple[str, Trial]]:
    """Return each reference application with each setup, as trials."""
    return [
        (name, Trial(build_reference_application(name), setup))
        for name in list_reference_applications()
        for setup in setups
    ]


def score_observations(
    profile: Profile,
    setups: Sequence[Setup],
    facts: DeviceFacts,
    refusals: Mapping[str, str] | None = None,
) -> DeviceScore:
    """Return the scores of a device with some setups.

    Args:
        profile: The device with its observations.
        setups: What was scored with.
        facts: What no meter tells. TDP is by default the power limit of the device.
        refusals: Why trials could not be measured, by their keys.
    """
    by_trial: dict[str, list[Observation]] = {}
    trials = list_score_trials(setups)
    wanted = {trial.key for _, trial in trials}
    for one in profile.observations:
        # Most observations of a profile are of something else, and keys take long to compute.
        if one.trial.setup in setups and one.trial.key in wanted:
            by_trial.setdefault(one.trial.key, []).append(one)
    return DeviceScore(
        profile.device.name,
        profile.runtime,
        profile.covers,
        profile.provenance,
        tuple(
            _summarise(name, trial, by_trial.get(trial.key, ()), (refusals or {}).get(trial.key))
            for name, trial in trials
        ),
        facts,
        ", ".join(sorted({one.source for one in profile.observations if one.source}))
        if profile.provenance == "imported"
        else "",
    )


def has_energy(observation: Observation) -> bool:
    """Return whether an observation can be scored."""
    return bool(observation.energy_j and observation.duration_s)


def describe_processor(setup: Setup) -> str:
    """Return what distinguishes a setup from others of a device: ``NNAPI``, ``4 threads``."""
    parts = [setup.processor]
    if setup.threads:
        parts.append("1 thread" if setup.threads == 1 else f"{setup.threads} threads")
    parts += ["CUDA graphs"] * setup.cuda_graphs
    parts += [setup.precision] * (setup.precision != "fp32")
    return ", ".join(filter(None, parts)) or "default"


def _summarise(
    name: str, trial: Trial, observations: Sequence[Observation], refusal: str | None
) -> ScoredConfiguration:
    """Return a configuration with the medians of its observations."""
    processor = describe_processor(trial.setup)
    complete = [one for one in observations if has_energy(one)]
    if not complete:
        reason = refusal or _explain_missing(observations)
        return ScoredConfiguration(name, processor, missing=reason, count=0)
    steps = [one.trial.execution.steps for one in complete]
    energies_j = [(one.energy_j or 0.0) / count for one, count in zip(complete, steps, strict=True)]
    powers_w = [(one.energy_j or 0.0) / (one.duration_s or 1.0) for one in complete]
    return ScoredConfiguration(
        name, processor, median(energies_j), median(powers_w), count=len(complete)
    )


def _explain_missing(observations: Sequence[Observation]) -> str:
    if not observations:
        return NOT_MEASURED
    last = observations[-1]
    if last.refusal:
        return last.refusal
    if last.is_pending:
        return _PENDING
    return _NO_ENERGY if last.energy_j is None else _ZERO
