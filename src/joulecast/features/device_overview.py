"""Summarise every profile: meter, coverage, provenance, age, accuracy and score."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulecast.records import Profile, summarise_observations
from joulecast.system.errors import MissingError
from joulecast.views.words import plural

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary
    from joulecast.store.campaigns import StoredEvaluation

_SCORED_PRECISION = "fp32"
_SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class EvaluatedAccuracy:
    """How well estimates from a profile agreed with measurements."""

    family: str  # the networks that it was evaluated on
    estimator: str  # the estimator with the smallest error
    nets: int  # number of held-out networks
    mape_percent: float  # mean absolute error of the energy
    coverage95_percent: float  # share of the networks within their 95 % interval
    date: str


@dataclass(frozen=True)
class ProfileDetails:
    """What only the observations of a profile tell.

    Attributes:
        energy_label: Letter of its energy alone, which needs no thermal design power.
    """

    meters: tuple[str, ...]  # names of the meters, the most used one first
    processor: str
    device_time_s: float  # device time that measuring took
    units: int  # number of units of the device that were measured
    score_label: str | None = None  # letter of joulecast score; None if it has none
    energy_label: str | None = None
    iecs: float | None = None  # its inference energy consumption score; None without energies


@dataclass(frozen=True)
class DeviceOverview:
    """A profile in one line."""

    key: str
    device: str
    power_mode: str
    runtime: str
    covers: str  # what the meter sees
    provenance: str
    observation_count: int
    estimators: tuple[str, ...]
    changed_at_s: float
    age_days: float  # days since the last change
    is_shipped: bool  # it came with the package, measured on another unit of the device
    details: ProfileDetails
    accuracies: tuple[EvaluatedAccuracy, ...]  # stored evaluations, the latest first


def summarise_device(
    summary: ProfileSummary,
    details: ProfileDetails,
    evaluations: Iterable[StoredEvaluation],
    now_s: float | None = None,
) -> DeviceOverview:
    """Return the overview of a profile, with its age at a moment, the present by default."""
    now_s = time.time() if now_s is None else now_s
    listed = {**vars(summary)}
    return DeviceOverview(
        is_shipped=listed.pop("shipped"),
        age_days=max(0.0, now_s - summary.changed_at_s) / _SECONDS_PER_DAY,
        details=details,
        accuracies=tuple(_list_accuracies(summary.key, evaluations)),
        **listed,
    )


def describe_age(days: float) -> str:
    """Return an age in words, such as ``3 days``."""
    if days < 1.0:
        hours = round(24.0 * days)
        return "less than an hour" if hours < 1 else plural(hours, "hour")
    return plural(round(days), "day") if days < 365.25 else f"{days / 365.25:.1f} years"


def read_profile_details(profile: Profile) -> ProfileDetails:
    """Return what the observations of a profile tell; this parses all of them."""
    from joulecast.features.device_score import DeviceFacts
    from joulecast.features.score import find_score_setups, score_observations

    observed = summarise_observations(profile.observations)
    meters = Counter(one.meter for one in profile.observations if one.meter)
    details = ProfileDetails(
        tuple(name for name, _ in meters.most_common()),
        profile.device.processor,
        observed.device_time_s,
        len(observed.units),
    )
    setups = find_score_setups(profile.observations, _SCORED_PRECISION)
    try:
        found = score_observations(profile, setups, DeviceFacts())
    except MissingError:
        return details
    return replace(details, score_label=found.label, energy_label=found.iecs_label, iecs=found.iecs)


def _list_accuracies(
    key: str, evaluations: Iterable[StoredEvaluation]
) -> Iterable[EvaluatedAccuracy]:
    from joulecast.features.evaluate import Evaluation

    for stored in evaluations:
        if stored.profile_key != key:
            continue
        result = Evaluation.from_dict(stored.payload)
        best = min(result.scores, key=lambda one: one.mape_percent)
        yield EvaluatedAccuracy(
            result.family,
            best.estimator,
            best.nets,
            best.mape_percent,
            best.coverage95_percent,
            result.date,
        )
