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
    """How well estimates from a profile agreed with measurements.

    Attributes:
        family: The networks that it was evaluated on.
        estimator: The estimator with the smallest error.
        nets: Number of held-out networks.
        mape_percent: Mean absolute error of the energy.
        coverage95_percent: Share of the networks within their 95 % interval.
    """

    family: str
    estimator: str
    nets: int
    mape_percent: float
    coverage95_percent: float
    date: str


@dataclass(frozen=True)
class ProfileDetails:
    """What only the observations of a profile tell.

    Attributes:
        meters: Names of the meters, the most used one first.
        processor: The device's processor.
        device_time_s: Device time that measuring took.
        units: Number of units of the device that were measured.
        score_label: Letter of ``joulecast score``; None if it has none.
        energy_label: Letter of its energy alone, which needs no thermal design power.
        iecs: Its inference energy consumption score; None without energies.
    """

    meters: tuple[str, ...]
    processor: str
    device_time_s: float
    units: int
    score_label: str | None = None
    energy_label: str | None = None
    iecs: float | None = None


@dataclass(frozen=True)
class DeviceOverview:
    """A profile in one line.

    Attributes:
        key: The key of the profile.
        device: The device's name.
        covers: What the meter sees.
        age_days: Days since the last change.
        is_shipped: It came with the package, measured on another unit of the device.
        accuracies: Stored evaluations, the latest first.
    """

    key: str
    device: str
    power_mode: str
    runtime: str
    covers: str
    provenance: str
    observation_count: int
    estimators: tuple[str, ...]
    changed_at_s: float
    age_days: float
    is_shipped: bool
    details: ProfileDetails
    accuracies: tuple[EvaluatedAccuracy, ...]


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
