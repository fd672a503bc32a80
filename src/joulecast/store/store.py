"""Keep profiles, campaigns and fleets in a database.

Records are stored as JSON text: an observation with a hash of its content, a fit with a checksum.
Rows that were changed or damaged are refused when they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from joulecast.records import (
    Device,
    Json,
    LazyObservations,
    Observation,
    Profile,
    StoredFits,
    find_fit_count,
    load_record,
    merge_fits,
    stable_hash,
)
from joulecast.records.trial import hash_trial
from joulecast.store.campaigns import CampaignTables, EvaluationTable, FleetTables
from joulecast.store.claims import Claims, FileClaims, ServerClaims
from joulecast.store.database import (
    FITS,
    OBSERVATIONS,
    PROFILES,
    Database,
    Tables,
    find_file,
    find_url,
    open_database,
    transaction,
    wrap_errors,
)
from joulecast.store.files import explain_mixed
from joulecast.store.places import IN_MEMORY
from joulecast.store.profiles import (
    ProfileSummary,
    ShippedStore,
    find_own_profile,
    join_observations,
)
from joulecast.system.errors import FileError, InputError, MissingError, StoreError
from joulecast.system.files import parse_json
from joulecast.system.redaction import redact_url

# The payload of a fit: {"sha256": ..., "fit": ...}, compact and in this order.
_SEAL = '{"sha256":"'
_SEALED = '","fit":'


def open_in_database(
    place: str, shipped: Path, *, create: bool, wait_s: float, now: Callable[[], float]
) -> Store | None:
    """Return the store at a path or URL; None if there is none and ``create`` is False."""
    url = find_url(place)
    file = find_file(url)
    is_server = url.get_backend_name() != "sqlite"
    name = redact_url(place) if is_server else str(file or IN_MEMORY)
    with wrap_errors(name, file):
        engine = open_database(url, create=create, wait_s=wait_s)
    if engine is None:
        return None
    claims = FileClaims(file) if file else Claims()
    if is_server:
        claims = ServerClaims(engine, wait_s)
    return Store(Database(engine, name, file, wait_s, claims, now), shipped)


class Store(ShippedStore, Tables):
    """Profiles with their observations and fits; ``open_store`` returns one.

    Every method raises StoreError if the store cannot be read or written, or does not exist, and
    then leaves it unchanged. Damaged observations and fits of a profile are reported when they are
    first read.

    Attributes:
        fleet: The devices and campaigns of a fleet.
        campaigns: The campaigns that were run with this store.
        evaluations: The latest result of each evaluation.
    """

    exists = True

    def __init__(self, database: Database, shipped: Path) -> None:
        ShippedStore.__init__(self, database.place, shipped)
        Tables.__init__(self, database)
        self.fleet = FleetTables(database)
        self.campaigns = CampaignTables(database)
        self.evaluations = EvaluationTable(database)

    def close(self) -> None:
        self.database.engine.dispose()

    @transaction(writes=True)
    def check_writable(self, connection: sa.Connection, profile: Profile | None = None) -> None:
        """Raise an error if observations (of a profile) cannot be added; change nothing.

        Measuring takes long: a store that cannot keep the results should be known before.
        """
        trial = connection.begin_nested()
        self._insert_profile(connection, profile or Profile(Device(""), "", "", "measured"))
        trial.rollback()

    @transaction(writes=True)
    def add_observation(self, connection: sa.Connection, observation: Observation) -> None:
        """Append an observation; it is on disk when this returns."""
        profile = find_own_profile(observation)
        self._insert_profile(connection, profile)
        self._insert_observation(connection, profile.key, observation)

    @contextmanager
    def claim_trial(
        self, planned: Observation, wait_s: float = 0.0
    ) -> Iterator[tuple[Observation, ...] | None]:
        """Claim a trial, so that no other process with the same store measures it.

            with store.claim_trial(planned) as stored:
                if stored == ():
                    store.add_observation(measure())

        The claim ends with the block or with the process. It yields the observations of the trial
        that are stored, or None if another process still claims it after ``wait_s``.
        """
        profile_key, trial_key = find_own_profile(planned).key, planned.trial.key
        claim = self.database.claims.hold(stable_hash([profile_key, trial_key]), wait_s)
        with ExitStack() as stack:
            with wrap_errors(self.place):
                is_held = stack.enter_context(claim)
            # What was stored before the claim was released is seen now.
            yield self._list_trial(profile_key, trial_key) if is_held else None

    @transaction()
    def _list_trial(
        self, connection: sa.Connection, profile_key: str, trial_key: str
    ) -> tuple[Observation, ...]:
        return tuple(self._select_observations(connection, profile_key, trial_key)[0])

    def _find_profile(self, key: str) -> Profile | None:
        own = self._read_profile(key)
        if own is None:
            return super()._find_profile(key)
        profile, runs = own
        # Only measured profiles ship, and reading them takes a moment.
        shipped = super()._find_profile(key) if profile.provenance == "measured" else None
        if shipped is None:
            return profile
        return replace(
            profile,
            observations=join_observations(shipped.observations, profile.observations, runs),
            fits=merge_fits(shipped.fits, profile.fits),
        )

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        own = self._list_own()
        keys = {one.key for one in own}
        return (*own, *(one for one in super().list_profiles() if one.key not in keys))

    @transaction()
    def _read_profile(self, connection: sa.Connection, key: str) -> tuple[Profile, set[str]] | None:
        """Return a profile of the database, without what ships, and the runs of observations."""
        query = sa.select(PROFILES).where(PROFILES.c.key == key)
        row = connection.execute(query).first() if _is_storable(key) else None
        if row is None:
            return None
        what = f"profile {key}"
        device = self._load(Device, self._parse(row.device, what), what)
        profile = Profile(device, row.runtime, row.covers, row.provenance)
        if profile.key != key:
            raise self._name_damage(what)
        observations, runs = self._select_observations(connection, key)
        fits = self._select_fits(connection, key)
        return replace(profile, observations=observations, fits=fits), runs

    @transaction()
    def _list_own(self, connection: sa.Connection) -> tuple[ProfileSummary, ...]:
        """Return summaries of the profiles of the database, in the order they were created."""
        table = OBSERVATIONS.c
        counted = (table.profile_key, sa.func.count(), sa.func.max(table.taken_at_s))
        rows = connection.execute(sa.select(*counted).group_by(table.profile_key))
        observed = {key: (count, latest_at_s) for key, count, latest_at_s in rows}
        fits: dict[str, dict[str, float]] = defaultdict(dict)
        query = sa.select(FITS.c.profile_key, FITS.c.estimator, FITS.c.fitted_at_s)
        for key, estimator, fitted_at_s in connection.execute(query.order_by(FITS.c.estimator)):
            fits[key][estimator] = fitted_at_s
        found = []
        profiles = sa.select(PROFILES).order_by(PROFILES.c.created_at_s, PROFILES.c.key)
        for row in connection.execute(profiles):
            count, latest_at_s = observed.get(row.key, (0, 0.0))
            own = fits[row.key]
            summary = ProfileSummary(
                row.key,
                row.device_name,
                row.power_mode,
                row.runtime,
                row.covers,
                row.provenance,
                count,
                tuple(own),
                max(row.created_at_s, latest_at_s, *own.values()),
            )
            found.append(summary)
        return tuple(found)

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store what an estimator fitted to the observations of a profile."""
        profile = self._find_profile(profile_key)
        # Without parsing them.
        count = len(profile.observations) if profile else 0

        def save(connection: sa.Connection) -> None:
            self._check_profile(connection, profile_key)
            self._replace_fit(connection, profile_key, estimator, fitted, count)

        self.database.run(save, writes=True)

    @transaction(writes=True)
    def import_profile(self, connection: sa.Connection, profile: Profile) -> int:
        """Add a profile's observations and fits; return how many observations were new.

        An imported fit replaces one of the same estimator unless that used more observations.
        """
        if profile.data_sheet is not None:
            raise InputError(
                f"the profile of {profile.device.name} is a data sheet, which a store does not "
                "keep: add its TOML file with `joulecast devices --add`"
            )
        mixed = explain_mixed(profile, profile.observations)
        if mixed:
            raise InputError(f"{mixed}; import it in a profile of its own")
        key = profile.key
        self._insert_profile(connection, profile)
        new = sum(self._insert_observation(connection, key, one) for one in profile.observations)
        for estimator, fitted in profile.fits.items():
            known = find_fit_count(profile.fits, estimator)
            count = len(profile.observations) if known is None else known
            query = sa.select(FITS.c.observation_count).where(
                (FITS.c.profile_key == key) & (FITS.c.estimator == estimator)
            )
            if count >= (connection.scalar(query) or 0):
                self._replace_fit(connection, key, estimator, fitted, count)
        return new

    @transaction(writes=True)
    def complete_observations(
        self, connection: sa.Connection, pairs: Sequence[tuple[Observation, Observation]]
    ) -> int:
        """Fill in energies that were not known when observations were stored; drop old fits.

        A pair has an observation as it is stored, and with its energy. Those that are no longer
        stored are left out; return how many were replaced.
        """
        count = 0
        for recorded, completed in pairs:
            key, trial_key = find_own_profile(recorded).key, recorded.trial.key
            delete = sa.delete(OBSERVATIONS).where(
                (OBSERVATIONS.c.profile_key == key)
                & (OBSERVATIONS.c.trial_key == trial_key)
                & (OBSERVATIONS.c.digest == _digest_observation(recorded.to_dict(), trial_key))
            )
            # Another process may have been faster.
            if connection.execute(delete.returning(OBSERVATIONS.c.id)).first() is not None:
                count += self._insert_observation(connection, key, completed)
                # As many observations as before, so a fit would still look new.
                connection.execute(sa.delete(FITS).where(FITS.c.profile_key == key))
        return count

    @transaction(writes=True)
    def remove_profile(self, connection: sa.Connection, key: str) -> None:
        """Remove a profile with its observations and fits; shipped profiles stay."""
        self._check_profile(connection, key)
        connection.execute(sa.delete(PROFILES).where(PROFILES.c.key == key))

    # -----------------------------------------------------------------------------------------
    # Rows, within a transaction of the caller

    def _check_profile(self, connection: sa.Connection, key: str) -> None:
        query = sa.select(PROFILES.c.key).where(PROFILES.c.key == key)
        if not _is_storable(key) or connection.scalar(query) is None:
            raise MissingError(
                f"the store {self.place} has no profile {key!r}; see `joulecast profiles list`"
            )

    def _insert_profile(self, connection: sa.Connection, profile: Profile) -> None:
        """Insert a profile without its observations, unless it is stored already."""
        row = {
            "key": profile.key,
            "device_name": profile.device.name,
            "power_mode": profile.device.power_mode,
            "device": _dump(profile.device.to_dict()),
            "runtime": profile.runtime,
            "covers": profile.covers,
            "provenance": profile.provenance,
            "created_at_s": self.database.now(),
        }
        self._insert_new(connection, PROFILES, row)

    def _insert_observation(
        self, connection: sa.Connection, profile_key: str, observation: Observation
    ) -> bool:
        """Insert an observation unless it is stored already; return whether it was new."""
        data, trial_key = observation.to_dict(), observation.trial.key
        # Refuses values with which it could not be read again.
        Observation.from_dict(data)
        row = {
            "profile_key": profile_key,
            "trial_key": trial_key,
            "run": observation.run,
            "taken_at_s": observation.taken_at_s,
            "digest": _digest_observation(data, trial_key),
            "payload": _dump(data),
        }
        return self._insert_new(connection, OBSERVATIONS, row)

    def _insert_new(self, connection: sa.Connection, table: sa.Table, row: Json) -> bool:
        """Insert a row unless it exists; return whether it was new."""
        _check_texts(row)
        statement = self.database.insert(table).values(**row).on_conflict_do_nothing()
        # The row itself is asked for: psycopg does not count inserted rows.
        returning = statement.returning(*table.primary_key.columns)
        return connection.execute(returning).first() is not None

    def _replace_fit(
        self, connection: sa.Connection, key: str, estimator: str, fitted: Json, count: int
    ) -> None:
        """Store what an estimator fitted to ``count`` observations, replacing an earlier fit."""
        payload = _dump(fitted)
        row = {
            "profile_key": key,
            "estimator": estimator,
            "payload": f"{_SEAL}{_hash(payload)}{_SEALED}{payload}}}",
            "fitted_at_s": self.database.now(),
            "observation_count": count,
        }
        _check_texts(row)
        statement = self.database.insert(FITS).values(**row)
        # One statement: two processes may store their first fits at once.
        statement = statement.on_conflict_do_update(
            index_elements=FITS.primary_key.columns, set_=dict(statement.excluded)
        )
        connection.execute(statement)

    def _select_observations(
        self, connection: sa.Connection, key: str, trial_key: str | None = None
    ) -> tuple[LazyObservations, set[str]]:
        """Return the observations of a profile, in the order they were added, and their runs.

        They are parsed when they are first read. With ``trial_key``, only those of one trial.
        """
        table = OBSERVATIONS.c
        query = sa.select(table.id, table.trial_key, table.payload, table.digest, table.run)
        query = query.where(table.profile_key == key).order_by(table.id)
        if trial_key is not None:
            query = query.where(table.trial_key == trial_key)
        rows = connection.execute(query).all()
        parsed = LazyObservations(
            len(rows),
            lambda: tuple(map(self._parse_observation, rows)),
            find=lambda keys: (
                self._parse_observation(row) for row in rows if row.trial_key in keys
            ),
        )
        return parsed, {row.run for row in rows}

    def _parse_observation(self, row: Any) -> Observation:
        what = f"observation {row.id}"
        data = self._parse(row.payload, what)
        observation: Observation = self._load(Observation, data, what)
        if _digest_observation(data, hash_trial(data["trial"])) != row.digest:
            raise self._name_damage(what)
        return observation

    def _select_fits(self, connection: sa.Connection, key: str) -> StoredFits:
        """Return the fits of a profile, which are decoded when they are first used."""
        query = sa.select(FITS).where(FITS.c.profile_key == key).order_by(FITS.c.estimator)
        rows = connection.execute(query).all()
        return StoredFits(
            {row.estimator: partial(self._parse_fit, row.payload, row.estimator) for row in rows},
            {row.estimator: row.observation_count for row in rows},
        )

    def _parse_fit(self, payload: Any, estimator: str) -> Any:
        what = f"the fit of {estimator}"
        # Fits of earlier versions have no checksum.
        if isinstance(payload, str) and payload.startswith(_SEAL):
            checksum, _, rest = payload[len(_SEAL) :].partition(_SEALED)
            payload = rest[:-1]
            if _hash(payload) != checksum:
                raise self._name_damage(what)
        return self._parse(payload, what)

    def _load(self, cls: Any, data: Any, what: str) -> Any:
        try:
            return load_record(cls, data, what)
        except FileError as error:
            raise StoreError(f"in the store {self.place} {error}") from error

    def _parse(self, text: Any, what: str) -> Any:
        # SQLite returns what is there, which may be bytes or a number in a damaged file.
        try:
            return parse_json(text if isinstance(text, str) else "")
        except ValueError as error:
            raise self._name_damage(what) from error

    def _name_damage(self, what: str) -> StoreError:
        return StoreError(
            f"in the store {self.place} {what} is damaged; restore a copy of the store"
        )


def _digest_observation(data: Json, trial_key: str) -> str:
    """Return what identifies an observation, whatever its network and layers are called."""
    return stable_hash({**data, "trial": trial_key})


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


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _dump(data: Json) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InputError("a number that is not finite (nan, inf) cannot be stored") from error
