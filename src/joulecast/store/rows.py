"""Read and write the rows of a store, within a transaction of the caller.

Records are stored as JSON text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from joulecast.errors import FileError, InputError, StoreError
from joulecast.input_files import parse_json
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
from joulecast.records.trial import hash_trial
from joulecast.store.summaries import ProfileSummary
from joulecast.store.tables import FITS, OBSERVATIONS, PROFILES

# The payload of a fit: {"sha256": ..., "fit": ...}, compact and in this order.
_SEAL = '{"sha256":"'
_SEALED = '","fit":'


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
    if not _is_storable(key):
        return False
    query = sa.select(PROFILES.c.key).where(PROFILES.c.key == key)
    return connection.scalar(query) is not None


def select_profile(connection: sa.Connection, key: str, place: str) -> Profile | None:
    """Return a profile without its observations; None if the store does not have it.

    Fits are decoded when they are first used; ``place`` names the store if one is damaged.
    """
    if not _is_storable(key):
        return None
    row = connection.execute(sa.select(PROFILES).where(PROFILES.c.key == key)).first()
    if row is None:
        return None
    what = f"profile {key}"
    device = _load(Device, _parse(row.device, what), what)
    profile = Profile(device, row.runtime, row.covers, row.provenance)
    if profile.key != key:
        raise _name_damage(what)
    return replace(profile, fits=_select_fits(connection, key, place))


def select_observations(
    connection: sa.Connection, key: str, place: str, *, trial_key: str | None = None
) -> tuple[LazyObservations, set[str]]:
    """Return the observations of a profile, in the order they were added, and their runs.

    They are parsed when they are first read; ``place`` names the store if one is damaged. With
    ``trial_key``, only those of one trial are returned.
    """
    query = (
        sa.select(
            OBSERVATIONS.c.id,
            OBSERVATIONS.c.payload,
            OBSERVATIONS.c.digest,
            OBSERVATIONS.c.run,
        )
        .where(OBSERVATIONS.c.profile_key == key)
        .order_by(OBSERVATIONS.c.id)
    )
    if trial_key is not None:
        query = query.where(OBSERVATIONS.c.trial_key == trial_key)
    rows = connection.execute(query).all()
    parse = partial(_parse_observations, rows, place)
    return LazyObservations(len(rows), parse), {row.run for row in rows}


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
    """Insert an observation unless it is stored already; return whether it was new.

    Raises:
        InputError: It contains a value with which it could not be read again.
    """
    data, trial_key = observation.to_dict(), observation.trial.key
    Observation.from_dict(data)
    row = {
        "profile_key": profile_key,
        "trial_key": trial_key,
        "run": observation.run,
        "taken_at_s": observation.taken_at_s,
        "digest": _digest_observation(data, trial_key),
        "payload": _dump(data),
    }
    return _insert_new(connection, OBSERVATIONS, row)


def delete_observation(
    connection: sa.Connection, profile_key: str, observation: Observation
) -> bool:
    """Delete an observation; return whether it was stored."""
    trial_key = observation.trial.key
    digest = _digest_observation(observation.to_dict(), trial_key)
    statement = sa.delete(OBSERVATIONS).where(
        (OBSERVATIONS.c.profile_key == profile_key)
        & (OBSERVATIONS.c.trial_key == trial_key)
        & (OBSERVATIONS.c.digest == digest)
    )
    return connection.execute(statement.returning(OBSERVATIONS.c.id)).first() is not None


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
        "payload": _seal(_dump(fitted)),
        "fitted_at_s": fitted_at_s,
        "observation_count": count,
    }
    _check_texts(row)
    statement = find_dialect(connection).insert(FITS).values(**row)
    # One statement: two processes may store their first fits at once.
    statement = statement.on_conflict_do_update(
        index_elements=FITS.primary_key.columns, set_=dict(statement.excluded)
    )
    connection.execute(statement)


def delete_fits(connection: sa.Connection, profile_key: str) -> None:
    """Delete all fits of a profile, whose observations have changed."""
    connection.execute(sa.delete(FITS).where(FITS.c.profile_key == profile_key))


def count_fitted(connection: sa.Connection, profile_key: str, estimator: str) -> int:
    """Return how many observations a fit used; 0 if there is no fit."""
    count = sa.select(FITS.c.observation_count).where(_is_fit(profile_key, estimator))
    return connection.scalar(count) or 0


def find_dialect(connection: sa.Connection) -> Any:
    """Return the module with the statements that not all databases have."""
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}")


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
        what = f"the fit of {estimator}"
        return _parse(_unseal(text, what), what)


def _parse_observations(rows: Sequence[Any], place: str) -> tuple[Observation, ...]:
    with name_store(place):
        return tuple([_parse_observation(row) for row in rows])


def _parse_observation(row: Any) -> Observation:
    what = f"observation {row.id}"
    data = _parse(row.payload, what)
    observation: Observation = _load(Observation, data, what)
    if _digest_observation(data, hash_trial(data["trial"])) != row.digest:
        raise _name_damage(what)
    return observation


def _digest_observation(data: Json, trial_key: str) -> str:
    """Return what identifies an observation, whatever its network and layers are called."""
    return stable_hash({**data, "trial": trial_key})


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
    """Insert a row unless it exists."""
    _check_texts(row)
    statement = find_dialect(connection).insert(table).values(**row).on_conflict_do_nothing()
    # The row itself is asked for: psycopg does not count inserted rows.
    inserted = connection.execute(statement.returning(*table.primary_key.columns)).first()
    return inserted is not None


def _check_texts(row: Json) -> None:
    """Raise InputError for texts that not every database can store."""
    for column, value in row.items():
        if isinstance(value, str) and not _is_storable(value):
            raise InputError(
                f"the {column} {value!r} has a NUL or half of a surrogate pair: remove it"
            )


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _load(cls: Any, data: Any, what: str) -> Any:
    try:
        return load_record(cls, data, what)
    except FileError as error:
        raise DamagedRowError(str(error)) from error


def _parse(text: Any, what: str) -> Any:
    # SQLite returns what is there, which may be bytes or a number in a damaged file.
    try:
        return parse_json(text if isinstance(text, str) else "")
    except ValueError as error:
        raise _name_damage(what) from error


def _seal(text: str) -> str:
    """Return the JSON text of a fit together with its checksum."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}{_SEALED}{text}}}"


def _unseal(payload: Any, what: str) -> Any:
    """Return the text of a fit that has its checksum; fits of earlier versions have none."""
    if not isinstance(payload, str) or not payload.startswith(_SEAL):
        return payload
    checksum, _, rest = payload[len(_SEAL) :].partition(_SEALED)
    if hashlib.sha256(rest[:-1].encode()).hexdigest() != checksum:
        raise _name_damage(what)
    return rest[:-1]


def _name_damage(what: str) -> DamagedRowError:
    return DamagedRowError(f"{what} is damaged; restore a copy of the store")


def _dump(data: Json) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InputError("a number that is not finite (nan, inf) cannot be stored") from error
