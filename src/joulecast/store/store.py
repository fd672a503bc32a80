"""The store itself: its verbs, each a transaction of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from joulecast.errors import FileError, InputError, MissingError, StoreError
from joulecast.files import read_profile
from joulecast.records import Device, Json, Observation, Profile, load_record, stable_hash
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
from joulecast.store.tables import FITS, OBSERVATIONS, PROFILES

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
        place: A path, a URL, or ``:memory:``; else JOULECAST_STORE, else the user's data folder.
        create: Make it where there is none. False leaves no trace: a store that is not there
            reads as empty, and cannot be written.
        wait_s: How long to wait for other processes that write.
        now: The clock, in seconds since 1970.
        shipped: The folder of profiles that answer where the store knows none; else
            JOULECAST_PROFILES, else what came with the package.

    Raises:
        StoreError: It cannot be opened, or was written by a newer Joulecast.
    """
    shipped = shipped or _find_shipped()
    url = find_url(place)
    name = url.render_as_string() if url.host else str(url.database or ":memory:")
    with wrap_errors(name):
        engine = open_database(url, create=create, wait_s=wait_s)
    absent = engine is None
    return Store(engine or make_memory_engine(), name, absent=absent, now=now, shipped=shipped)


def _find_shipped() -> Path:
    words = os.environ.get("JOULECAST_PROFILES")
    if not words:
        return SHIPPED
    folder = Path(words).expanduser()
    if not folder.is_dir():
        raise StoreError(f"JOULECAST_PROFILES is {words}, which is no folder: make it, or unset it")
    return folder


def profile_key(observation: Observation) -> str:
    """The key of the profile that an observation belongs to."""
    return _empty_profile(observation).key


class Store:
    """Profiles with their observations and fits, made by ``open_store``.

    Every verb raises StoreError where the store cannot be read or written; what it held before
    is still there then.
    """

    def __init__(
        self,
        engine: sa.Engine,
        place: str,
        *,
        absent: bool = False,
        now: Callable[[], float] = time.time,
        shipped: Path = SHIPPED,
    ) -> None:
        self.place = place
        self._engine = engine
        self._absent = absent
        self._now = now
        self._shipped_folder = shipped

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database. Closing twice does no harm."""
        self._engine.dispose()

    # -- what people ask for ---------------------------------------------------------------------

    def add_observation(self, observation: Observation) -> None:
        """Keep an observation; when this returns it is safe on the disk."""
        with self._writing() as connection:
            self._add_profile(connection, _empty_profile(observation))
            self._add_row(connection, observation)

    def observations(self, profile_key: str) -> tuple[Observation, ...]:
        """The observations of a profile, in the order they were made.

        Where a profile of the same key ships with the package, its observations come first: what
        is measured here adds to what is known, and hides nothing.
        """
        with self._reading() as connection:
            own = self._select_observations(connection, profile_key)
            return self._join_shipped(connection, profile_key, own)

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Keep what an estimator fitted to the observations that are there now."""
        rows = sa.select(sa.func.count()).where(OBSERVATIONS.c.profile_key == profile_key)
        with self._writing() as connection:
            self._check_known(connection, profile_key)
            count = connection.scalar(rows) or 0
            self._put_fit(connection, profile_key, estimator, fitted, count)

    def profile(self, key: str) -> Profile:
        """The profile of a key, from the store or from those that ship with the package."""
        with self._reading() as connection:
            row = connection.execute(sa.select(PROFILES).where(PROFILES.c.key == key)).first()
            if row is not None:
                device = self._load(Device, row.device, f"the device of profile {key}")
                own = self._select_observations(connection, key)
                seen = self._join_shipped(connection, key, own)
                fits = self._select_fits(connection, key)
                return Profile(device, row.runtime, row.covers, row.provenance, seen, fits)
        if key not in self._shipped:
            raise MissingError(f"there is no profile {key!r}; see `joulecast profiles list`")
        return self._shipped[key]

    def profiles(self) -> tuple[ProfileSummary, ...]:
        """All profiles, those of the store first, in the order they were made."""
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
        """The best profile of a device; the store's own go before those that are shipped.

        Of several the one with the strongest provenance answers (measured, imported, modelled,
        simulated), then the one that changed last; ``list_matches`` gives all of them.

        Args:
            device_name: The device's name or the profile's key, or how one of them begins.
            runtime: Take only profiles whose runtime begins like this.
            covers: Likewise, what the meter covers.
            provenance: Likewise, the provenance.

        Raises:
            InputError: Several devices match.
            MissingError: None does.
        """
        asked = {"runtime": runtime, "covers": covers, "provenance": provenance}
        demands = {field: word for field, word in asked.items() if word is not None}
        return self.profile(match_profiles(self.profiles(), device_name, demands)[0].key)

    def list_matches(self, device_name: str) -> list[ProfileSummary]:
        """All profiles of the device that a name means, the one that ``find_profile`` gives first.

        Raises:
            InputError: Several devices match.
            MissingError: None does.
        """
        return match_profiles(self.profiles(), device_name, {})

    def import_profile(self, profile: Profile) -> int:
        """Add a profile's observations and fits; returns how many observations were new.

        What is there already stays, once. An imported fit replaces one of the same estimator
        unless that rests on more observations.
        """
        count = len(profile.observations)
        with self._writing() as connection:
            self._add_profile(connection, profile)
            for seen in profile.observations:
                if profile_key(seen) != profile.key:
                    raise InputError(_explain_mixed(seen, profile))
            new = sum(self._add_row(connection, seen) for seen in profile.observations)
            for estimator, fitted in profile.fits.items():
                if count >= self._fit_count(connection, profile.key, estimator):
                    self._put_fit(connection, profile.key, estimator, fitted, count)
        return new

    def remove_profile(self, key: str) -> None:
        """Forget a profile with its observations and fits; shipped ones stay."""
        with self._writing() as connection:
            self._check_known(connection, key)
            connection.execute(sa.delete(PROFILES).where(PROFILES.c.key == key))

    # -- rows ------------------------------------------------------------------------------------

    @cached_property
    def _shipped(self) -> dict[str, Profile]:
        found = [read_profile(path) for path in sorted(self._shipped_folder.glob("*.json"))]
        return {profile.key: replace(profile, shipped=True) for profile in found}

    def _join_shipped(
        self, connection: sa.Connection, key: str, own: tuple[Observation, ...]
    ) -> tuple[Observation, ...]:
        """Observations after those that ship for the same device, each once."""
        find = sa.select(PROFILES.c.provenance).where(PROFILES.c.key == key)
        # Only measured profiles ship, and reading them takes a moment.
        if connection.scalar(find) not in (None, "measured") or key not in self._shipped:
            return own
        return tuple(dict.fromkeys((*self._shipped[key].observations, *own)))

    def _check_known(self, connection: sa.Connection, key: str) -> None:
        if connection.scalar(sa.select(PROFILES.c.key).where(PROFILES.c.key == key)) is None:
            raise MissingError(
                f"the store {self.place} has no profile {key!r}; see `joulecast profiles list`"
            )

    def _add_profile(self, connection: sa.Connection, profile: Profile) -> None:
        row = {
            "key": profile.key,
            "device_name": profile.device.name,
            "power_mode": profile.device.power_mode,
            "device": _dump(profile.device.to_dict()),
            "runtime": profile.runtime,
            "covers": profile.covers,
            "provenance": profile.provenance,
            "created_at_s": self._now(),
        }
        self._insert_new(connection, PROFILES, row)

    def _add_row(self, connection: sa.Connection, seen: Observation) -> bool:
        data = seen.to_dict()
        trial_key = seen.trial.key
        row = {
            "profile_key": profile_key(seen),
            "trial_key": trial_key,
            "run": seen.run,
            "taken_at_s": seen.taken_at_s,
            "digest": stable_hash({**data, "trial": trial_key}),
            "payload": _dump(data),
        }
        return self._insert_new(connection, OBSERVATIONS, row)

    def _insert_new(self, connection: sa.Connection, table: sa.Table, row: Json) -> bool:
        """Insert a row unless it is there; each dialect has its own way of saying so."""
        dialect = import_module(f"sqlalchemy.dialects.{self._engine.dialect.name}")
        statement = dialect.insert(table).values(**row).on_conflict_do_nothing()
        return bool(connection.execute(statement).rowcount == 1)

    def _put_fit(
        self, connection: sa.Connection, key: str, estimator: str, fitted: Json, count: int
    ) -> None:
        row = {
            "profile_key": key,
            "estimator": estimator,
            "payload": _dump(fitted),
            "fitted_at_s": self._now(),
            "observation_count": count,
        }
        connection.execute(sa.delete(FITS).where(_is_fit(key, estimator)))
        connection.execute(sa.insert(FITS).values(**row))

    def _fit_count(self, connection: sa.Connection, key: str, estimator: str) -> int:
        count = sa.select(FITS.c.observation_count).where(_is_fit(key, estimator))
        return connection.scalar(count) or 0

    def _select_observations(self, connection: sa.Connection, key: str) -> tuple[Observation, ...]:
        rows = connection.execute(
            sa.select(OBSERVATIONS.c.id, OBSERVATIONS.c.payload)
            .where(OBSERVATIONS.c.profile_key == key)
            .order_by(OBSERVATIONS.c.id)
        )
        return tuple(self._load(Observation, text, f"observation {row}") for row, text in rows)

    def _select_fits(self, connection: sa.Connection, key: str) -> dict[str, Json]:
        rows = connection.execute(
            sa.select(FITS.c.estimator, FITS.c.payload)
            .where(FITS.c.profile_key == key)
            .order_by(FITS.c.estimator)
        )
        return {name: self._parse(text, f"the fit of {name}") for name, text in rows}

    def _load(self, cls: Any, text: str, what: str) -> Any:
        data = self._parse(text, what)
        try:
            return load_record(cls, data, what)
        except FileError as error:
            raise StoreError(f"in the store {self.place} {error}") from error

    def _parse(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise StoreError(
                f"in the store {self.place} {what} is damaged; restore a copy of the store"
            ) from error

    # -- doors -----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with wrap_errors(self.place), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self._absent:
            raise StoreError(f"there is no store at {self.place}: open it with create=True")
        engine = self._engine.execution_options(writes=True)
        with wrap_errors(self.place), engine.begin() as connection:
            yield connection


def _empty_profile(seen: Observation) -> Profile:
    return Profile(seen.device, seen.runtime, seen.covers, seen.provenance)


def _is_fit(key: str, estimator: str) -> sa.ColumnElement[bool]:
    return (FITS.c.profile_key == key) & (FITS.c.estimator == estimator)


def _dump(data: Json) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InputError("a number that is not finite (nan, inf) cannot be kept") from error


def _explain_mixed(seen: Observation, profile: Profile) -> str:
    return (
        f"an observation of {seen.device.name!r} ({seen.runtime}, {seen.covers}, "
        f"{seen.provenance}) does not belong to the profile of {profile.device.name!r} "
        f"({profile.runtime}, {profile.covers}, {profile.provenance}): give it one of its own"
    )
