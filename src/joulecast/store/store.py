"""Store observations and fits: every method of Store is one transaction."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from joulecast.errors import InputError, MissingError, StoreError
from joulecast.files import read_profile
from joulecast.records import Json, Observation, Profile
from joulecast.store import rows
from joulecast.store.database import (
    find_url,
    make_memory_engine,
    open_database,
    wrap_errors,
)
from joulecast.store.summaries import (
    ProfileSummary,
    match_profiles,
    select_summaries,
    summarise_shipped,
)
from joulecast.store.tables import PROFILES

SHIPPED = Path(__file__).parents[1] / "profiles"


def open_store(
    place: str | Path | None = None,
    *,
    create: bool = True,
    wait_s: float = 30.0,
    now: Callable[[], float] = time.time,
    shipped: Path | None = None,
) -> Store:
    """Open the store; use it as a context manager.

    Args:
        place: A path, a URL, or ``:memory:``; by default JOULECAST_STORE, else a file in the user's
            data folder.
        create: Create the store if it does not exist. With False, a missing store reads as empty
            and cannot be written.
        wait_s: Longest time to wait for other processes that write.
        now: Returns seconds since 1970.
        shipped: Folder of shipped profiles; by default JOULECAST_PROFILES, else those of the
            package.

    Raises:
        StoreError: The store cannot be opened, or was written by a newer version of Joulecast.
    """
    shipped = shipped or _find_shipped()
    url = find_url(place)
    name = url.render_as_string() if url.host else str(url.database or ":memory:")
    with wrap_errors(name):
        engine = open_database(url, create=create, wait_s=wait_s)
    is_missing = engine is None
    return Store(
        engine or make_memory_engine(), name, is_missing=is_missing, now=now, shipped=shipped
    )


def profile_key(observation: Observation) -> str:
    """Return the key of the profile that an observation belongs to."""
    return rows.empty_profile(observation).key


class Store:
    """Profiles with their observations and fits; ``open_store`` returns one.

    Every method raises StoreError if the store cannot be read or written, and then leaves it
    unchanged.
    """

    def __init__(
        self,
        engine: sa.Engine,
        place: str,
        *,
        is_missing: bool = False,
        now: Callable[[], float] = time.time,
        shipped: Path = SHIPPED,
    ) -> None:
        self.place = place
        self._engine = engine
        self._is_missing = is_missing
        self._now = now
        self._shipped_folder = shipped

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Closing twice is allowed."""
        self._engine.dispose()

    def add_observation(self, observation: Observation) -> None:
        """Append an observation; it is on disk when this returns."""
        profile = rows.empty_profile(observation)
        with self._writing() as connection:
            rows.insert_profile(connection, profile, self._now())
            rows.insert_observation(connection, profile.key, observation)

    def load_observations(self, profile_key: str) -> tuple[Observation, ...]:
        """Return the observations of a profile, in the order they were added.

        If a profile with the same key ships with the package, its observations come first.

        Reading parses every observation. A long-running caller reads once and appends what it adds.
        """
        with self._reading() as connection:
            provenance = rows.select_provenance(connection, profile_key)
            own = rows.select_observations(connection, profile_key)
        return self._prepend_shipped(profile_key, provenance, own)

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store what an estimator fitted to the observations of a profile."""
        with self._writing() as connection:
            self._check_profile(connection, profile_key)
            count = rows.count_observations(connection, profile_key)
            self._replace_fit(connection, profile_key, estimator, fitted, count)

    def load_profile(self, key: str) -> Profile:
        """Return a profile of the store, or one that ships with the package.

        Raises:
            MissingError: There is no profile with this key.
        """
        with self._reading() as connection:
            profile = rows.select_profile(connection, key)
            own = rows.select_observations(connection, key) if profile else ()
        if profile is not None:
            observations = self._prepend_shipped(key, profile.provenance, own)
            return replace(profile, observations=observations)
        if key not in self._shipped:
            raise MissingError(f"there is no profile {key!r}; see `joulecast profiles list`")
        return self._shipped[key]

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles: those of the store by age, then shipped ones."""
        with self._reading() as connection:
            own = select_summaries(connection)
        keys = {one.key for one in own}
        shipped = [summarise_shipped(one) for key, one in self._shipped.items() if key not in keys]
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

        The best profile has the strongest provenance (measured, imported, modelled, simulated), and
        among those the latest change. ``list_matches`` returns all of them.

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
        """Return all profiles of a device, starting with the one that ``find_profile`` returns.

        Raises:
            InputError: Several devices match.
            MissingError: None matches.
        """
        return match_profiles(self.list_profiles(), device_name, {})

    def import_profile(self, profile: Profile) -> int:
        """Add a profile's observations and fits; return how many observations were new.

        An imported fit replaces one of the same estimator unless that used more observations.
        """
        count, key = len(profile.observations), profile.key
        with self._writing() as connection:
            rows.insert_profile(connection, profile, self._now())
            for observation in profile.observations:
                if profile_key(observation) != key:
                    raise InputError(_explain_mixed(observation, profile))
            new = sum(rows.insert_observation(connection, key, one) for one in profile.observations)
            for estimator, fitted in profile.fits.items():
                if count >= rows.count_fitted(connection, key, estimator):
                    self._replace_fit(connection, key, estimator, fitted, count)
        return new

    def remove_profile(self, key: str) -> None:
        """Remove a profile with its observations and fits; shipped profiles stay."""
        with self._writing() as connection:
            self._check_profile(connection, key)
            connection.execute(sa.delete(PROFILES).where(PROFILES.c.key == key))

    @cached_property
    def _shipped(self) -> dict[str, Profile]:
        found = [read_profile(path) for path in sorted(self._shipped_folder.glob("*.json"))]
        return {profile.key: replace(profile, shipped=True) for profile in found}

    def _prepend_shipped(
        self, key: str, provenance: str | None, own: tuple[Observation, ...]
    ) -> tuple[Observation, ...]:
        """Return shipped observations of the same profile before those of the store, each once."""
        # Only measured profiles ship, and reading them takes a moment.
        if provenance not in (None, "measured") or key not in self._shipped:
            return own
        return tuple(dict.fromkeys((*self._shipped[key].observations, *own)))

    def _check_profile(self, connection: sa.Connection, key: str) -> None:
        if rows.select_provenance(connection, key) is None:
            raise MissingError(
                f"the store {self.place} has no profile {key!r}; see `joulecast profiles list`"
            )

    def _replace_fit(
        self, connection: sa.Connection, key: str, estimator: str, fitted: Json, count: int
    ) -> None:
        now_s = self._now()
        rows.replace_fit(connection, key, estimator, fitted, count=count, fitted_at_s=now_s)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with wrap_errors(self.place), self._engine.connect() as connection:
                yield connection
        except rows.DamagedRowError as error:
            raise StoreError(f"in the store {self.place} {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self._is_missing:
            raise StoreError(f"there is no store at {self.place}: open it with create=True")
        engine = self._engine.execution_options(writes=True)
        with wrap_errors(self.place), engine.begin() as connection:
            yield connection


def _find_shipped() -> Path:
    variable = os.environ.get("JOULECAST_PROFILES")
    if not variable:
        return SHIPPED
    folder = Path(variable).expanduser()
    if not folder.is_dir():
        raise StoreError(
            f"JOULECAST_PROFILES is {variable}, which is not a folder: create it, or unset it"
        )
    return folder


def _explain_mixed(observation: Observation, profile: Profile) -> str:
    one = observation
    return (
        f"an observation of {one.device.name!r} ({one.runtime}, {one.covers}, "
        f"{one.provenance}) does not belong to the profile of {profile.device.name!r} "
        f"({profile.runtime}, {profile.covers}, {profile.provenance}): put it in another profile"
    )
