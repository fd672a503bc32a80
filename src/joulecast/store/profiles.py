"""Open a store, read the profiles that ship with the package, and find those of a device.

The database's library is imported only if there is a database: a machine that never measured has
none, and its first estimate should not wait for it.

A device is found by its name, by a profile's key, by the start of its name, or by the start of a
key: the first of these that matches anything counts. Of several profiles of one device, the one
with the strongest provenance comes first, then the newest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from joulecast.records import (
    PROVENANCES,
    Json,
    LazyObservations,
    Observation,
    Profile,
    select_steps,
    summarise_observations,
)
from joulecast.records.codec import Record
from joulecast.store.files import read_profile
from joulecast.store.places import check_folder, choose_place, is_missing_file
from joulecast.system.errors import InputError, MissingError, StoreError
from joulecast.system.redaction import redact_url

if TYPE_CHECKING:
    from joulecast.store.store import Store

MIN_KEY_LENGTH = 4
SHIPPED = Path(__file__).parents[1] / "profiles"


def open_store(
    place: str | Path | None = None,
    *,
    create: bool = True,
    wait_s: float = 60.0,
    now: Callable[[], float] = time.time,
    shipped: Path | None = None,
) -> Store:
    """Open the store; use it as a context manager.

    Args:
        place: A path, a URL, or ``:memory:``; by default JOULECAST_STORE, else a file in the user's
            data folder.
        create: Create the store if it does not exist. With False, a missing store reads as empty
            and cannot be written.
        wait_s: Longest time to wait for other processes that write, and for a server that does not
            answer or restarts.
        now: Returns seconds since 1970.
        shipped: Folder of shipped profiles; by default JOULECAST_PROFILES, else those of the
            package.

    Raises:
        StoreError: The store cannot be opened, or was written by a newer version of Joulecast.
    """
    folder, chosen = shipped or find_shipped_folder(), choose_place(place)
    if create or not is_missing_file(chosen):
        from joulecast.store.store import open_in_database

        store = open_in_database(chosen, folder, create=create, wait_s=wait_s, now=now)
        if store is not None:
            return store
    # What needs a database raises StoreError.
    return cast("Store", MissingStore(redact_url(chosen), folder))


def check_place(place: str | Path | None = None) -> None:
    """Raise StoreError if observations cannot be added to a store; create and change nothing."""
    chosen = choose_place(place)
    if is_missing_file(chosen):
        check_folder(Path(chosen))
        return
    with open_store(chosen, create=False) as opened:
        # A database without tables gets them with the first observation.
        if opened.exists:
            opened.check_writable()


def profile_key(observation: Observation) -> str:
    """Return the key of the profile that an observation belongs to."""
    return find_own_profile(observation).key


class ShippedStore:
    """The profiles that ship with the package: what a store has without a database."""

    exists = False

    def __init__(self, place: str, shipped: Path) -> None:
        self.place, self._folder = place, shipped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, if there is one. Closing twice is allowed."""

    def load_observations(self, profile_key: str) -> tuple[Observation, ...]:
        """Return the observations of a profile in the order they were added, shipped ones first.

        Reading parses every observation. A long-running caller reads once and appends what it adds.
        """
        profile = self._find_profile(profile_key)
        return tuple(profile.observations) if profile else ()

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return an estimator's fit to a profile, its own or the shipped one; None without one."""
        profile = self._find_profile(profile_key)
        return profile.fits.get(estimator) if profile else None

    def load_profile(self, key: str) -> Profile:
        """Return a profile of the store, or one that ships with the package.

        If it is in both, it has the observations of both, and the shipped fit of each estimator
        that the store has no fit of.

        Raises:
            MissingError: There is no profile with this key.
        """
        profile = self._find_profile(key)
        if profile is None:
            raise MissingError(f"there is no profile {key!r}; see `joulecast profiles list`")
        return profile

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles: those of the store by age, then shipped ones."""
        return tuple(map(summarise_shipped, self._shipped.values()))

    def find_profile(self, device_name: str) -> Profile:
        """Return the best profile of a device; those of the store come before shipped ones.

        The best profile has the strongest provenance (``PROVENANCES``), and among those the latest
        change. ``list_matches`` returns all of them.

        Args:
            device_name: The device's name or the profile's key, or the start of either.

        Raises:
            InputError: Several devices match.
            MissingError: None matches.
        """
        return self.load_profile(self.list_matches(device_name)[0].key)

    def list_matches(self, device_name: str) -> list[ProfileSummary]:
        """Return all profiles of a device, starting with the one that ``find_profile`` returns."""
        return match_profiles(self.list_profiles(), device_name)

    @cached_property
    def _shipped(self) -> Mapping[str, Profile]:
        """The shipped profiles by their keys, read when they are first needed."""
        stats = {path: path.stat() for path in sorted(self._folder.glob("*.json"))}
        found = [_read_shipped(path, one.st_mtime_ns, one.st_size) for path, one in stats.items()]
        return {profile.key: profile for profile in found}

    def _find_profile(self, key: str) -> Profile | None:
        return self._shipped.get(key)


class MissingStore(ShippedStore):
    """A store that does not exist, and therefore has no more than what ships."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise StoreError(f"there is no store at {self.place}: open it with create=True")


@lru_cache(maxsize=16)
def _read_shipped(path: Path, _changed_ns: int, _size_bytes: int) -> Profile:
    """Return a shipped profile; a program that opens the store often reads its file once."""
    return replace(read_profile(path), shipped=True)


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


def match_profiles(known: Sequence[ProfileSummary], device_name: str) -> list[ProfileSummary]:
    """Return the profiles of one device, the best one first.

    Shipped profiles are returned only if no profile of the store matches. Several devices that
    match are an InputError, none is a MissingError.
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
        [one for one in known if one.shipped == shipped and is_match(one)]
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
        raise MissingError(
            f"there is no profile of {device_name!r} ({listed}): create one with "
            "`joulecast profile NET --on cpu` or `--on cuda:0`"
        )
    return sorted(matches, key=lambda one: (PROVENANCES.index(one.provenance), -one.changed_at_s))


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
    return LazyObservations(
        len(shipped) + len(own),
        join,
        lambda: summarise_observations(shipped).join(summarise_observations(own)),
        lambda keys: [*select_steps(shipped, keys), *select_steps(own, keys)],
    )
