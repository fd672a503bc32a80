"""Keep profiles in a database: every method is one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import sqlalchemy as sa

from joulecast.errors import InputError, MissingError
from joulecast.records import Json, Observation, Profile, find_fit_count
from joulecast.store import rows
from joulecast.store.database import find_url, open_database, wrap_errors
from joulecast.store.places import IN_MEMORY
from joulecast.store.summaries import ProfileSummary
from joulecast.store.tables import PROFILES


def open_profile_database(
    place: str, *, create: bool, wait_s: float, now: Callable[[], float]
) -> ProfileDatabase | None:
    """Return the profiles at a path or URL; None if there are none and ``create`` is False."""
    url = find_url(place)
    name = url.render_as_string() if url.host else str(url.database or IN_MEMORY)
    with wrap_errors(name):
        engine = open_database(url, create=create, wait_s=wait_s)
    return None if engine is None else ProfileDatabase(engine, name, now)


class ProfileDatabase:
    """Profiles with their observations and fits, in a database.

    Every method raises StoreError if the database cannot be read or written, and then leaves it
    unchanged.
    """

    def __init__(self, engine: sa.Engine, place: str, now: Callable[[], float] = time.time) -> None:
        self.place = place
        self._engine = engine
        self._now = now

    def close(self) -> None:
        """Close the database. Closing twice is allowed."""
        self._engine.dispose()

    def add_observation(self, observation: Observation) -> None:
        """Append an observation; it is on disk when this returns."""
        profile = find_own_profile(observation)
        with self._writing() as connection:
            rows.insert_profile(connection, profile, self._now())
            rows.insert_observation(connection, profile.key, observation)

    def find_profile(self, key: str) -> tuple[Profile, set[str]] | None:
        """Return a profile and the runs of its observations; None if it is not here."""
        with self._reading() as connection:
            profile = rows.select_profile(connection, key, self.place)
            if profile is None:
                return None
            observations, runs = rows.select_observations(connection, key, self.place)
        return replace(profile, observations=observations), runs

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles, in the order they were created."""
        with self._reading() as connection:
            return rows.select_summaries(connection)

    def save_fit(self, key: str, estimator: str, fitted: Json, shipped_count: int) -> None:
        """Store a fit made from the observations here and from ``shipped_count`` others."""
        with self._writing() as connection:
            self._check_profile(connection, key)
            count = shipped_count + rows.count_observations(connection, key)
            self._replace_fit(connection, key, estimator, fitted, count)

    def import_profile(self, profile: Profile) -> int:
        """Add a profile's observations and fits; return how many observations were new.

        An imported fit replaces one of the same estimator unless that used more observations.
        """
        key = profile.key
        with self._writing() as connection:
            rows.insert_profile(connection, profile, self._now())
            for observation in profile.observations:
                if find_own_profile(observation).key != key:
                    raise InputError(_explain_mixed(observation, profile))
            new = sum(rows.insert_observation(connection, key, one) for one in profile.observations)
            for estimator, fitted in profile.fits.items():
                known = find_fit_count(profile.fits, estimator)
                count = len(profile.observations) if known is None else known
                if count >= rows.count_fitted(connection, key, estimator):
                    self._replace_fit(connection, key, estimator, fitted, count)
        return new

    def remove_profile(self, key: str) -> None:
        """Remove a profile with its observations and fits."""
        with self._writing() as connection:
            self._check_profile(connection, key)
            connection.execute(sa.delete(PROFILES).where(PROFILES.c.key == key))

    def _check_profile(self, connection: sa.Connection, key: str) -> None:
        if not rows.has_profile(connection, key):
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
        with (
            rows.name_store(self.place),
            wrap_errors(self.place),
            self._engine.connect() as connection,
        ):
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        engine = self._engine.execution_options(writes=True)
        with wrap_errors(self.place), engine.begin() as connection:
            yield connection


def find_own_profile(observation: Observation) -> Profile:
    """Return the profile that an observation belongs to, without observations."""
    one = observation
    return Profile(one.device, one.runtime, one.covers, one.provenance)


def _explain_mixed(observation: Observation, profile: Profile) -> str:
    one = observation
    return (
        f"an observation of {one.device.name!r} ({one.runtime}, {one.covers}, "
        f"{one.provenance}) does not belong to the profile of {profile.device.name!r} "
        f"({profile.runtime}, {profile.covers}, {profile.provenance}): put it in another profile"
    )
