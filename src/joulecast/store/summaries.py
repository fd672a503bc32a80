"""Profiles at a glance, and which of them a person means.

A device is named in full or by how its name or a profile's key begins. The best way of matching
that finds anything decides: the name, the key, the beginning of a name, the beginning of a key. Of
several profiles of one device the one with the strongest claim answers, then the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from joulecast.errors import InputError, MissingError
from joulecast.records import PROVENANCES, Json, Profile
from joulecast.store.tables import FITS, OBSERVATIONS, PROFILES

SHORTEST_KEY = 4


@dataclass(frozen=True)
class ProfileSummary:
    """A line of ``joulecast profiles list``.

    Attributes:
        device: The device's name.
        estimators: Names of the estimators that were fitted.
        changed_at_s: When it last changed, in seconds since 1970.
        shipped: It came with the package and is not in the store.
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
    shipped: bool = False

    def __str__(self) -> str:
        parts = (self.device, self.power_mode, self.runtime, self.covers, self.provenance)
        return f"{self.key} ({', '.join(part for part in parts if part)})"

    def to_dict(self) -> Json:
        return {**self.__dict__, "estimators": list(self.estimators)}


def summarise_shipped(profile: Profile) -> ProfileSummary:
    """The summary of a profile that came with the package."""
    return ProfileSummary(
        profile.key,
        profile.device.name,
        profile.device.power_mode,
        profile.runtime,
        profile.covers,
        profile.provenance,
        len(profile.observations),
        tuple(sorted(profile.fits)),
        max((seen.taken_at_s for seen in profile.observations), default=0.0),
        shipped=True,
    )


def select_summaries(connection: sa.Connection) -> tuple[ProfileSummary, ...]:
    """The summaries of all profiles in the store, in the order they were made."""
    seen = (
        sa.select(
            OBSERVATIONS.c.profile_key,
            sa.func.count().label("observation_count"),
            sa.func.max(OBSERVATIONS.c.taken_at_s).label("taken_at_s"),
        )
        .group_by(OBSERVATIONS.c.profile_key)
        .subquery()
    )
    query = (
        sa.select(PROFILES, seen.c.observation_count, seen.c.taken_at_s)
        .join(seen, seen.c.profile_key == PROFILES.c.key, isouter=True)
        .order_by(PROFILES.c.created_at_s, PROFILES.c.key)
    )
    fits = connection.execute(
        sa.select(FITS.c.profile_key, FITS.c.estimator, FITS.c.fitted_at_s).order_by(
            FITS.c.estimator
        )
    ).all()
    return tuple(
        _summarise_row(row, [fit for fit in fits if fit.profile_key == row.key])
        for row in connection.execute(query)
    )


def _summarise_row(row: Any, fits: Sequence[Any]) -> ProfileSummary:
    times = [row.created_at_s, row.taken_at_s or 0.0, *(fit.fitted_at_s for fit in fits)]
    return ProfileSummary(
        row.key,
        row.device_name,
        row.power_mode,
        row.runtime,
        row.covers,
        row.provenance,
        row.observation_count or 0,
        tuple(fit.estimator for fit in fits),
        max(times),
    )


def match_profiles(
    known: Sequence[ProfileSummary], device_name: str, demands: Mapping[str, str]
) -> list[ProfileSummary]:
    """The profiles of the one device that a name means, the best one first.

    The store's own go before shipped ones: those are left out where there are any.

    Args:
        known: All profiles there are.
        device_name: The device's name or the profile's key, or how one of them begins.
        demands: How fields of its summary must begin (``{"runtime": "torch"}``).

    Raises:
        InputError: Several devices match.
        MissingError: None does.
    """
    if not device_name:
        raise InputError("no device is named: give its name, or how it begins")
    fitting = [one for one in known if _meets(one, demands)]
    own = _match([one for one in fitting if not one.shipped], device_name)
    matches = own or _match([one for one in fitting if one.shipped], device_name)
    if len({one.device for one in matches}) > 1:
        raise InputError(
            f"{len(matches)} profiles match {device_name!r}: {'; '.join(map(str, matches))}; "
            "give the whole name of a device, or a profile's key"
        )
    if not matches:
        raise MissingError(_explain_none(known, device_name, demands))
    return sorted(matches, key=lambda one: (PROVENANCES.index(one.provenance), -one.changed_at_s))


def _meets(summary: ProfileSummary, demands: Mapping[str, str]) -> bool:
    return all(getattr(summary, field).startswith(word) for field, word in demands.items())


def _match(summaries: Sequence[ProfileSummary], wanted: str) -> list[ProfileSummary]:
    word = wanted.lower()
    ways: list[Callable[[ProfileSummary], bool]] = [
        lambda one: one.device.lower() == word,
        lambda one: one.key == word,
        lambda one: one.device.lower().startswith(word),
        lambda one: len(word) >= SHORTEST_KEY and one.key.startswith(word),
    ]
    for way in ways:
        matches = [one for one in summaries if way(one)]
        if matches:
            return matches
    return []


def _explain_none(
    known: Sequence[ProfileSummary], device_name: str, demands: Mapping[str, str]
) -> str:
    names = sorted({one.device + (" (shipped)" if one.shipped else "") for one in known})
    listed = f"known are {', '.join(names)}" if names else "none are known yet"
    which = "".join(f", {field} {word}" for field, word in demands.items())
    return (
        f"there is no profile of {device_name!r}{which}; {listed}: make one with "
        "`joulecast profile NET --on cpu` or cuda:0"
    )
