"""Read the profiles that ship with the package, and join them with a user's own observations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path

from joulecast.errors import StoreError
from joulecast.files import read_profile
from joulecast.records import LazyObservations, Observation, Profile, summarise_observations
from joulecast.store.summaries import ProfileSummary

SHIPPED = Path(__file__).parents[1] / "profiles"


def find_shipped_folder() -> Path:
    """Return the folder of shipped profiles: JOULECAST_PROFILES, else that of the package.

    Raises:
        StoreError: JOULECAST_PROFILES is not a folder.
    """
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
        found = map(_read_if_changed, sorted(self._folder.glob("*.json")))
        return {profile.key: profile for profile in found}


def _read_if_changed(path: Path) -> Profile:
    """Return a shipped profile; a program that opens the store often reads its file once."""
    stat = path.stat()
    return _read_shipped(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _read_shipped(path: Path, _changed_ns: int, _size_bytes: int) -> Profile:
    return replace(read_profile(path), shipped=True)


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
    """Return shipped observations before a user's own, each once, parsed when they are read.

    Args:
        shipped: Observations that ship with the package.
        own: Those of the user's store.
        own_runs: All runs that the user's are from.
    """
    join = partial(_join, shipped, own)
    # Observations of different runs differ.
    if own_runs & set(summarise_observations(shipped).runs):
        return join()
    return LazyObservations(len(shipped) + len(own), join)


def _join(shipped: Sequence[Observation], own: Sequence[Observation]) -> tuple[Observation, ...]:
    return tuple(dict.fromkeys((*shipped, *own)))
