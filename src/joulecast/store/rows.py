"""Read and write the rows of a store, within a transaction of the caller.

Records are stored as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from joulecast.errors import FileError, InputError, StoreError
from joulecast.records import (
    Device,
    Json,
    LazyObservations,
    Observation,
    Profile,
    StoredFits,
    load_record,
    stable_hash,
)
from joulecast.store.summaries import ProfileSummary
from joulecast.store.tables import FITS, OBSERVATIONS, PROFILES


class DamagedRowError(StoreError):
    """A row cannot be parsed."""


@contextmanager
def name_store(place: str) -> Iterator[None]:
    """Add the place of the store to the error for a damaged row."""
    try:
        yield
    except DamagedRowError as error:
        raise StoreError(f"in the store {place} {error}") from error


def has_profile(connection: sa.Connection, key: str) -> bool:
    """Return whether the store has a profile."""
    query = sa.select(PROFILES.c.key).where(PROFILES.c.key == key)
    return connection.scalar(query) is not None


def select_profile(connection: sa.Connection, key: str, place: str) -> Profile | None:
    """Return a profile without its observations; None if the store does not have it.

    Fits are decoded when they are first used; ``place`` names the store if one is damaged.
    """
    row = connection.execute(sa.select(PROFILES).where(PROFILES.c.key == key)).first()
    if row is None:
        return None
    device = _load(Device, row.device, f"the device of profile {key}")
    fits = _select_fits(connection, key, place)
    return Profile(device, row.runtime, row.covers, row.provenance, fits=fits)


def select_observations(
    connection: sa.Connection, key: str, place: str
) -> tuple[LazyObservations, set[str]]:
    """Return the observations of a profile, in the order they were added, and their runs.

    They are parsed when they are first read; ``place`` names the store if one is damaged.
    """
    rows = connection.execute(
        sa.select(OBSERVATIONS.c.id, OBSERVATIONS.c.payload, OBSERVATIONS.c.run)
        .where(OBSERVATIONS.c.profile_key == key)
        .order_by(OBSERVATIONS.c.id)
    ).all()
    texts = [(row.id, row.payload) for row in rows]
    parse = partial(_parse_observations, texts, place)
    return LazyObservations(len(texts), parse), {row.run for row in rows}


def count_observations(connection: sa.Connection, key: str) -> int:
    """Return how many observations of a profile are stored."""
    count = sa.select(sa.func.count()).where(OBSERVATIONS.c.profile_key == key)
    return connection.scalar(count) or 0


def select_summaries(connection: sa.Connection) -> tuple[ProfileSummary, ...]:
    """Return summaries of all profiles in the store, in the order they were created."""
    counts = (
        sa.select(
            OBSERVATIONS.c.profile_key,
            sa.func.count().label("observation_count"),
            sa.func.max(OBSERVATIONS.c.taken_at_s).label("taken_at_s"),
        )
        .group_by(OBSERVATIONS.c.profile_key)
        .subquery()
    )
    query = (
        sa.select(PROFILES, counts.c.observation_count, counts.c.taken_at_s)
        .join(counts, counts.c.profile_key == PROFILES.c.key, isouter=True)
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


def insert_profile(connection: sa.Connection, profile: Profile, created_at_s: float) -> None:
    """Insert a profile without its observations, unless it is stored already."""
    row = {
        "key": profile.key,
        "device_name": profile.device.name,
        "power_mode": profile.device.power_mode,
        "device": _dump(profile.device.to_dict()),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "created_at_s": created_at_s,
    }
    _insert_new(connection, PROFILES, row)


def insert_observation(
    connection: sa.Connection, profile_key: str, observation: Observation
) -> bool:
    """Insert an observation unless it is stored already; return whether it was new."""
    data, trial_key = observation.to_dict(), observation.trial.key
    row = {
        "profile_key": profile_key,
        "trial_key": trial_key,
        "run": observation.run,
        "taken_at_s": observation.taken_at_s,
        "digest": stable_hash({**data, "trial": trial_key}),
        "payload": _dump(data),
    }
    return _insert_new(connection, OBSERVATIONS, row)


def replace_fit(
    connection: sa.Connection,
    key: str,
    estimator: str,
    fitted: Json,
    *,
    count: int,
    fitted_at_s: float,
) -> None:
    """Store what an estimator fitted to ``count`` observations, replacing an earlier fit."""
    row = {
        "profile_key": key,
        "estimator": estimator,
        "payload": _dump(fitted),
        "fitted_at_s": fitted_at_s,
        "observation_count": count,
    }
    connection.execute(sa.delete(FITS).where(_is_fit(key, estimator)))
    connection.execute(sa.insert(FITS).values(**row))


def count_fitted(connection: sa.Connection, profile_key: str, estimator: str) -> int:
    """Return how many observations a fit used; 0 if there is no fit."""
    count = sa.select(FITS.c.observation_count).where(_is_fit(profile_key, estimator))
    return connection.scalar(count) or 0


def _select_fits(connection: sa.Connection, key: str, place: str) -> StoredFits:
    rows = connection.execute(
        sa.select(FITS.c.estimator, FITS.c.payload, FITS.c.observation_count)
        .where(FITS.c.profile_key == key)
        .order_by(FITS.c.estimator)
    ).all()
    return StoredFits(
        {row.estimator: partial(_parse_fit, row.payload, row.estimator, place) for row in rows},
        {row.estimator: row.observation_count for row in rows},
    )


def _parse_fit(text: str, estimator: str, place: str) -> Any:
    with name_store(place):
        return _parse(text, f"the fit of {estimator}")


def _parse_observations(texts: Sequence[tuple[int, str]], place: str) -> tuple[Observation, ...]:
    with name_store(place):
        return tuple([_load(Observation, text, f"observation {row}") for row, text in texts])


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


def _is_fit(profile_key: str, estimator: str) -> sa.ColumnElement[bool]:
    return (FITS.c.profile_key == profile_key) & (FITS.c.estimator == estimator)


def _insert_new(connection: sa.Connection, table: sa.Table, row: Json) -> bool:
    """Insert a row unless it exists; only dialects have the statement for it."""
    dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    statement = dialect.insert(table).values(**row).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount == 1)


def _load(cls: Any, text: str, what: str) -> Any:
    try:
        return load_record(cls, _parse(text, what), what)
    except FileError as error:
        raise DamagedRowError(str(error)) from error


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DamagedRowError(f"{what} is damaged; restore a copy of the store") from error


def _dump(data: Json) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InputError("a number that is not finite (nan, inf) cannot be stored") from error
