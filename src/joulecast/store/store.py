"""Find profiles: those in a database and those that ship with the package.

The database's library is imported only if there is a database: a machine that never measured has
none, and its first estimate should not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.records import Device, Json, Observation, Profile, merge_fits
from joulecast.store.places import check_folder, choose_place, is_missing_file
from joulecast.store.profiles import (
    ProfileSummary,
    ShippedProfiles,
    find_own_profile,
    find_shipped_folder,
    join_observations,
    match_profiles,
    summarise_shipped,
)
from joulecast.system.errors import MissingError, StoreError
from joulecast.system.redaction import redact_url

if TYPE_CHECKING:
    from joulecast.store.campaigns import CampaignTables, EvaluationTable, FleetTables
    from joulecast.store.profile_database import ProfileDatabase


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
    profiles = ShippedProfiles(shipped or find_shipped_folder())
    chosen = choose_place(place)
    if not create and is_missing_file(chosen):
        return Store(None, chosen, profiles)
    from joulecast.store.profile_database import open_profile_database

    database = open_profile_database(chosen, create=create, wait_s=wait_s, now=now)
    return Store(database, database.place if database else redact_url(chosen), profiles)


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


class Store:
    """Profiles with their observations and fits; ``open_store`` returns one.

    Every method raises StoreError if the store cannot be read or written, or does not exist, and
    then leaves it unchanged. Damaged observations and fits of a profile are reported when they are
    first read.
    """

    def __init__(
        self, database: ProfileDatabase | None, place: str, shipped: ShippedProfiles
    ) -> None:
        self.place = place
        self._database = database
        self._shipped = shipped

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def exists(self) -> bool:
        """Whether there is a store; without one, only shipped profiles can be read."""
        return self._database is not None

    @property
    def fleet(self) -> FleetTables:
        """The devices and campaigns of a fleet."""
        return self._require_database().fleet

    @property
    def campaigns(self) -> CampaignTables:
        """The campaigns that were run with this store."""
        return self._require_database().campaigns

    @property
    def evaluations(self) -> EvaluationTable:
        """The latest result of each evaluation."""
        return self._require_database().evaluations

    def close(self) -> None:
        """Close the database. Closing twice is allowed."""
        if self._database:
            self._database.close()

    def check_writable(self, profile: Profile | None = None) -> None:
        """Raise an error if observations (of a profile) cannot be added; change nothing.

        Measuring takes long: a store that cannot keep the results should be known before.
        """
        self._require_database().check_writable(profile or Profile(Device(""), "", "", "measured"))

    def add_observation(self, observation: Observation) -> None:
        """Append an observation; it is on disk when this returns."""
        self._require_database().add_observation(observation)

    def claim_trial(
        self, planned: Observation, wait_s: float = 0.0
    ) -> AbstractContextManager[tuple[Observation, ...] | None]:
        """Claim a trial, so that no other process with the same store measures it.

            with store.claim_trial(planned) as stored:
                if stored == ():
                    store.add_observation(measure())

        The claim ends with the block or with the process. It yields the observations of the trial
        that are stored, or None if another process still claims it after ``wait_s``.
        """
        return self._require_database().claim_trial(planned, wait_s)

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

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store what an estimator fitted to the observations of a profile."""
        database = self._require_database()
        own, joined = database.find_profile(profile_key), self._find_profile(profile_key)
        shipped = len(joined.observations) - len(own[0].observations) if own and joined else 0
        database.save_fit(profile_key, estimator, fitted, shipped)

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
        own = self._database.list_profiles() if self._database else ()
        keys, known = {one.key for one in own}, self._shipped.by_key
        shipped = [summarise_shipped(one) for key, one in known.items() if key not in keys]
        return (*own, *shipped)

    def find_profile(
        self,
        device_name: str,
        *,
        runtime: str | None = None,
        covers: str | None = None,
        provenance: str | None = None,
    ) -> Profile:
        """Return the best profile of a device; those of the store come before shipped ones.

        The best profile has the strongest provenance (``PROVENANCES``), and among those the latest
        change. ``list_matches`` returns all of them.

        Args:
            device_name: The device's name or the profile's key, or the start of either.
            runtime: Start of the profile's runtime.
            covers: Start of what the meter covers.
            provenance: Start of the provenance.

        Raises:
            InputError: Several devices match.
            MissingError: None matches.
        """
        given = {"runtime": runtime, "covers": covers, "provenance": provenance}
        prefixes = {field: prefix for field, prefix in given.items() if prefix is not None}
        return self.load_profile(match_profiles(self.list_profiles(), device_name, prefixes)[0].key)

    def list_matches(self, device_name: str) -> list[ProfileSummary]:
        """Return all profiles of a device, starting with the one that ``find_profile`` returns."""
        return match_profiles(self.list_profiles(), device_name, {})

    def import_profile(self, profile: Profile) -> int:
        """Add a profile's observations and fits; return how many observations were new.

        An imported fit replaces one of the same estimator unless that used more observations.
        """
        return self._require_database().import_profile(profile)

    def complete_observations(self, pairs: Sequence[tuple[Observation, Observation]]) -> int:
        """Fill in energies that were not known when observations were stored; drop old fits.

        A pair has an observation as it is stored, and with its energy. Those that are no longer
        stored are left out; return how many were replaced.
        """
        return self._require_database().complete_observations(pairs)

    def remove_profile(self, key: str) -> None:
        """Remove a profile with its observations and fits; shipped profiles stay."""
        self._require_database().remove_profile(key)

    def _find_profile(self, key: str) -> Profile | None:
        found = self._database.find_profile(key) if self._database else None
        return self._join_shipped(*found) if found else self._shipped.by_key.get(key)

    def _join_shipped(self, own: Profile, runs: set[str]) -> Profile:
        """Return a profile of the database with what ships of the same profile."""
        # Only measured profiles ship, and reading them takes a moment.
        shipped = self._shipped.by_key.get(own.key) if own.provenance == "measured" else None
        if shipped is None:
            return own
        return replace(
            own,
            observations=join_observations(shipped.observations, own.observations, runs),
            fits=merge_fits(shipped.fits, own.fits),
        )

    def _require_database(self) -> ProfileDatabase:
        if self._database is None:
            raise StoreError(f"there is no store at {self.place}: open it with create=True")
        return self._database
