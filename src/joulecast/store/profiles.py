"""Read the profiles that ship with the package, summarise profiles, and find those of a device.

A device is found by its name, by a profile's key, by the start of its name, or by the start of a
key: the first of these that matches anything counts. Of several profiles of one device, the one
with the strongest provenance comes first, then the newest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from joulecast.records import (
    PROVENANCES,
    LazyObservations,
    Observation,
    Profile,
    summarise_observations,
)
from joulecast.records.codec import Record
from joulecast.store.files import read_profile
from joulecast.system.errors import InputError, MissingError, StoreError

MIN_KEY_LENGTH = 4


@dataclass(frozen=True)
class ProfileSummary(Record):
    """A line of ``joulecast profiles list``.

    Attributes:
        device: The device's name.
        estimators: Names of the fitted estimators.
        changed_at_s: Time of the last change, in seconds since 1970.
        shipped: It ships with the package and is not in the store.
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


def match_profiles(
    known: Sequence[ProfileSummary], device_name: str, prefixes: Mapping[str, str]
) -> list[ProfileSummary]:
    """Return the profiles of one device, the best one first.

    Shipped profiles are returned only if no profile of the store matches. ``prefixes`` are required
    starts of fields (``{"runtime": "torch"}``). Several devices that match are an InputError, none
    is a MissingError.
    """
    name = device_name.lower()
    if not name:
        raise InputError("no device is named: give its name, or the start of it")
    criteria: list[Callable[[ProfileSummary], bool]] = [
        lambda one: one.device.lower() == name,
        lambda one: one.key == name,
        lambda one: one.device.lower().startswith(name),
        lambda one: len(name) >= MIN_KEY_LENGTH and one.key.startswith(name),
    ]
    choices = [
        [
            one
            for one in known
            if one.shipped == shipped
            and all(getattr(one, field).startswith(start) for field, start in prefixes.items())
            and is_match(one)
        ]
        for shipped in (False, True)
        for is_match in criteria
    ]
    matches = next(filter(None, choices), [])
    if len({one.device for one in matches}) > 1:
        raise InputError(
            f"{len(matches)} profiles match {device_name!r}: {'; '.join(map(str, matches))}; "
            "give the full name of a device, or a profile's key"
        )
    if not matches:
        names = sorted({one.device + (" (shipped)" if one.shipped else "") for one in known})
        listed = f"known devices: {', '.join(names)}" if names else "there are no profiles yet"
        details = "".join(f", {field} {start}" for field, start in prefixes.items())
        raise MissingError(
            f"there is no profile of {device_name!r}{details} ({listed}): create one with "
            "`joulecast profile NET --on cpu` or `--on cuda:0`"
        )
    return sorted(matches, key=lambda one: (PROVENANCES.index(one.provenance), -one.changed_at_s))


SHIPPED = Path(__file__).parents[1] / "profiles"


def find_shipped_folder() -> Path:
    """Return the folder of shipped profiles: JOULECAST_PROFILES, else that of the package."""
    variable = os.environ.get("JOULECAST_PROFILES")
    if not variable:
        return SHIPPED
    folder = Path(variable).expanduser()
    if not folder.is_dir():
        raise StoreError(
            f"JOULECAST_PROFILES is {variable}, which is not a folder: create it, or unset it"
        )
    return folder


class ShippedProfiles:
    """The profiles in a folder, read when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def by_key(self) -> Mapping[str, Profile]:
        """Each profile by its key."""
        stats = {path: path.stat() for path in sorted(self._folder.glob("*.json"))}
        found = [_read_shipped(path, one.st_mtime_ns, one.st_size) for path, one in stats.items()]
        return {profile.key: profile for profile in found}


@lru_cache(maxsize=16)
def _read_shipped(path: Path, _changed_ns: int, _size_bytes: int) -> Profile:
    """Return a shipped profile; a program that opens the store often reads its file once."""
    return replace(read_profile(path), shipped=True)


def find_own_profile(observation: Observation) -> Profile:
    """Return the profile that an observation belongs to, without observations."""
    one = observation
    return Profile(one.device, one.runtime, one.covers, one.provenance)


def summarise_shipped(profile: Profile) -> ProfileSummary:
    """Return the summary of a profile that ships with the package."""
    observed = summarise_observations(profile.observations)
    return ProfileSummary(
        profile.key,
        profile.device.name,
        profile.device.power_mode,
        profile.runtime,
        profile.covers,
        profile.provenance,
        observed.count,
        tuple(sorted(profile.fits)),
        observed.latest_at_s,
        shipped=True,
    )


def join_observations(
    shipped: Sequence[Observation], own: Sequence[Observation], own_runs: set[str]
) -> Sequence[Observation]:
    """Return shipped observations before a user's own, each once, parsed when they are read."""

    def join() -> tuple[Observation, ...]:
        return tuple(dict.fromkeys((*shipped, *own)))

    # Observations of different runs differ.
    if own_runs & set(summarise_observations(shipped).runs):
        return join()
    return LazyObservations(len(shipped) + len(own), join)
