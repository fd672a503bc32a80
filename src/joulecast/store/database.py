"""Open the database of a store, and run transactions in it.

    find_url ──▶ open_database ──▶ schema? ─┬─ current ──▶ use
                                            ├─ none or older ──▶ add missing tables ──▶ use
                                            └─ newer or foreign ──▶ refuse, unchanged

With SQLite, readers begin a plain transaction and writers an IMMEDIATE one, which waits for other
writers instead of failing half-way. A file that cannot be written is opened as immutable: SQLite
would otherwise leave an index of its log behind that nobody can write.

Its tables:

    profiles ─┬─ observations    one row each, in the order they were added; one is replaced
              │                  only if a power trace provides its energy
              └─ fits            one row per estimator: the latest

    fleet_devices ─┐             the devices of a fleet, as its file describes them
    fleet_requests ┴─ fleet_campaigns   one row per request and device: its progress

    campaigns ─── campaign_progress     one row per run of a campaign, and its history
    evaluations                         one row per evaluation: its latest result

Records are stored as JSON text, in which floats keep all their digits.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from joulecast.store.places import (
    ELSEWHERE,
    IN_MEMORY,
    can_access,
    check_folder,
    find_default_file,
)
from joulecast.system.errors import InputError, StoreError
from joulecast.system.redaction import redact_url

if TYPE_CHECKING:
    from joulecast.store.claims import Claims

Result = TypeVar("Result")

SCHEMAS = ("0001", "0002", "0003")
"""Versions of the schema, the oldest first. Each has the tables of those before, and more."""

# The drivers that stores are tested with, by the beginning of a URL.
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
# What a URL of a SQLite file may say about it.
_FILE_PARAMETERS = {"mode", "uri", "cache", "immutable", "vfs"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LOG = logging.getLogger(__name__)

# ---------------------------------------------------------------------------------------------
# Tables


def columns(kind: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    """Return columns of one type."""
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def reference(name: str, target: str, length: int = 16, **options: Any) -> sa.Column[str]:
    """Return a column that refers to another table; rows are deleted with what they refer to."""
    key = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, sa.String(length), key, nullable=False, **options)


METADATA = sa.MetaData()
VERSION = sa.Table(
    "joulecast_version", METADATA, sa.Column("version_num", sa.String(32), primary_key=True)
)
PROFILES = sa.Table(
    "profiles",
    METADATA,
    sa.Column("key", sa.String(16), primary_key=True),
    *columns(sa.Text, "device_name", "power_mode", "device", "runtime", "covers", "provenance"),
    *columns(sa.Double, "created_at_s"),
)
OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    reference("profile_key", "profiles.key"),
    # The digest is a hash of the observation, so that adding it again has no effect.
    *columns(sa.String(16), "trial_key", "digest"),
    *columns(sa.Text, "run", "payload"),
    *columns(sa.Double, "taken_at_s"),
    sa.UniqueConstraint("profile_key", "trial_key", "digest"),
)
FITS = sa.Table(
    "fits",
    METADATA,
    reference("profile_key", "profiles.key", primary_key=True),
    sa.Column("estimator", sa.Text, primary_key=True),
    *columns(sa.Text, "payload"),
    *columns(sa.Double, "fitted_at_s"),
    *columns(sa.Integer, "observation_count"),
)
FLEET_DEVICES = sa.Table(
    "fleet_devices",
    METADATA,
    sa.Column("name", sa.String(200), primary_key=True),
    *columns(sa.Text, "payload", "state", "reason", "description"),
    # No reference here and in campaigns: the profile may have no observation yet.
    *columns(sa.String(16), "profile_key"),
    *columns(sa.Double, "changed_at_s"),
)
FLEET_REQUESTS = sa.Table(
    "fleet_requests",
    METADATA,
    # A hash of the request, so that asking again has no effect.
    sa.Column("key", sa.String(16), primary_key=True),
    *columns(sa.Text, "name", "payload"),
)
FLEET_CAMPAIGNS = sa.Table(
    "fleet_campaigns",
    METADATA,
    reference("request_key", "fleet_requests.key", primary_key=True),
    reference("device", "fleet_devices.name", 200, primary_key=True),
    *columns(sa.Text, "state", "reason"),
    *columns(sa.Integer, "points"),
    *columns(sa.Double, "uncertainty_share", nullable=True),
    *columns(sa.Double, "elapsed_s", "requested_at_s", "changed_at_s"),
)
CAMPAIGNS = sa.Table(
    "campaigns",
    METADATA,
    sa.Column("key", sa.String(16), primary_key=True),
    *columns(sa.Text, "name", "device", "provenance", "state", "reason"),
    *columns(sa.String(16), "profile_key"),
    *columns(sa.Integer, "points"),
    *columns(sa.Integer, "total", nullable=True),
    *columns(sa.Double, "uncertainty_share", "left_s", nullable=True),
    *columns(sa.Boolean, "is_stop_requested"),
    *columns(sa.Double, "elapsed_s", "started_at_s", "changed_at_s"),
)
CAMPAIGN_PROGRESS = sa.Table(
    "campaign_progress",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    reference("campaign_key", "campaigns.key", index=True),
    *columns(sa.Double, "elapsed_s"),
    *columns(sa.Integer, "points"),
    *columns(sa.Double, "uncertainty_share", nullable=True),
)
EVALUATIONS = sa.Table(
    "evaluations",
    METADATA,
    sa.Column("name", sa.String(80), primary_key=True),
    *columns(sa.String(16), "profile_key"),
    *columns(sa.Text, "payload"),
    *columns(sa.Double, "made_at_s"),
)

# ---------------------------------------------------------------------------------------------
# Transactions


class Database:
    """A database, its claims and its clock. Transactions are repeated while the server restarts.

    What a transaction of the store does twice has the effect of doing it once, so a transaction
    whose answer was lost can be repeated, for ``wait_s`` at most.
    """

    def __init__(
        self,
        engine: sa.Engine,
        place: str,
        file: Path | None,
        wait_s: float,
        claims: Claims,
        now: Callable[[], float],
    ) -> None:
        self.engine, self.place, self.claims, self.now = engine, place, claims, now
        self._file, self._wait_s = file, wait_s
        self._writer = engine.execution_options(writes=True)
        self._reader = engine
        if engine.dialect.name == "postgresql":
            # All statements of a transaction see the same rows, as they do with SQLite.
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ")

    def run(self, work: Callable[[sa.Connection], Result], *, writes: bool = False) -> Result:
        """Return the result of ``work`` in one transaction; changes are on disk by then."""

        def begin() -> Result:
            with (self._writer if writes else self._reader).begin() as connection:
                return work(connection)

        with wrap_errors(self.place, self._file):
            return repeat_while_down(begin, self._wait_s)

    def select(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        """Return the rows of a query by the names of their columns."""
        return self.run(lambda one: one.execute(query).mappings().all())

    def execute(self, statement: sa.Executable) -> None:
        """Run a statement that changes rows."""
        self.run(lambda connection: connection.execute(statement) and None, writes=True)

    def update(self, table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> None:
        """Change the rows of a table that fulfil a condition."""
        self.execute(sa.update(table).where(where).values(**values))

    def insert(self, table: sa.Table) -> Any:
        """Return an insert of the database's own dialect, which knows what to do on conflicts."""
        return import_module(f"sqlalchemy.dialects.{self.engine.dialect.name}").insert(table)


class Tables:
    """Rows of a store; every method of a subclass is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database


Owner = TypeVar("Owner", bound=Tables)
P = ParamSpec("P")
Work = Callable[Concatenate[Owner, sa.Connection, P], Result]


def transaction(
    *, writes: bool = False
) -> Callable[[Work[Owner, P, Result]], Callable[Concatenate[Owner, P], Result]]:
    """Decorate a method that takes a connection: callers leave it out, and it runs with one.

    What a method that ``writes`` has changed is on disk when it returns.
    """

    def decorate(method: Work[Owner, P, Result]) -> Callable[Concatenate[Owner, P], Result]:
        @wraps(method)
        def run(self: Owner, /, *args: P.args, **options: P.kwargs) -> Result:
            return self.database.run(
                lambda connection: method(self, connection, *args, **options), writes=writes
            )

        return run

    return decorate


def repeat_while_down(work: Callable[[], Result], wait_s: float) -> Result:
    """Return the result of ``work``, repeated for ``wait_s`` if a server cannot be reached."""
    end_s, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except sa.exc.DBAPIError as error:
            if not _is_transient(error) or time.monotonic() + pause_s > end_s:
                raise
            _LOG.info("the store's server does not answer; trying again")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


# ---------------------------------------------------------------------------------------------
# Opening


def find_url(place: str) -> sa.URL:
    """Return the URL of the store at a path or URL.

    Raises:
        InputError: It is a URL that a store cannot have.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        return sa.URL.create("sqlite", database=place)
    driver, shown = _DRIVERS.get(scheme.lower()), redact_url(place)
    if driver is None:
        raise InputError(
            f"a store cannot be in {shown}: give the path of a SQLite file or a postgresql:// URL"
        )
    advice = "write it like postgresql://USER@HOST:5432/DATABASE, and @ in a password as %40"
    try:
        url = sa.make_url(f"{driver}://{rest}")
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is not None and "\0" in unquote(rest):
        advice = "remove %00, a null byte"
    elif url is not None and driver == "sqlite":
        if not url.host and set(url.query) <= _FILE_PARAMETERS:
            return url
        advice = "give the path of the file"
    elif url is not None and "@" not in (url.host or ""):
        return url
    # Without a cause, which may quote a part of the password.
    raise InputError(f"the store's URL {shown} cannot be read: {advice}")


def find_file(url: sa.URL) -> Path | None:
    """Return the file of a store; None for a server or for memory."""
    database = str(url.database or IN_MEMORY)
    if url.get_backend_name() != "sqlite" or database == IN_MEMORY:
        return None
    return Path(database.removeprefix("file:"))


def open_database(url: sa.URL, *, create: bool, wait_s: float) -> sa.Engine | None:
    """Return an engine for a store with the current schema; None if it is missing."""
    file = find_file(url)
    if file is None and url.get_backend_name() == "sqlite":
        engine = _make_engine(sa.URL.create("sqlite"))
        METADATA.create_all(engine)
        return engine
    if file and not _prepare_file(file, create=create):
        return None
    engine, schema = _open_engine(url, wait_s)
    if schema is None and not create:
        engine.dispose()
        return None
    if schema != SCHEMAS[-1]:
        with _disposing(engine):
            _add_tables(engine, url, is_new=schema is None)
    return engine


def _make_engine(url: sa.URL, *, wait_s: float = 0.0) -> sa.Engine:
    """Return an engine that waits ``wait_s`` for other writers, or for an answer of the server."""
    if url.get_backend_name() != "sqlite":
        from joulecast.store.postgres import make_server_engine

        return make_server_engine(url, wait_s)
    options: dict[str, Any] = {"connect_args": {"timeout": wait_s}}
    if find_file(url) is None:
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = sa.create_engine(url, **options)

    def prepare_connection(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        # Rows that refer to removed ones are removed as well.
        connection.execute("PRAGMA foreign_keys = ON")

    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", prepare_connection)
    sa.event.listen(engine, "begin", begin)
    return engine


def _prepare_file(file: Path, *, create: bool) -> bool:
    """Return whether there is a file, or a folder to create it in."""
    try:
        if file.is_dir():
            raise StoreError(f"{file} is a folder: give a file, like {file / 'store.sqlite'}")
        if file.exists() or not create:
            return file.exists()
        check_folder(file)
        if file == find_default_file():
            file.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"the store {file} cannot be opened ({reason}): check the path, {ELSEWHERE}"
        ) from error
    return True


def _open_engine(url: sa.URL, wait_s: float) -> tuple[sa.Engine, str | None]:
    """Return an engine and the version of its schema, None without a schema."""

    def check(engine: sa.Engine) -> tuple[sa.Engine, str | None]:
        with _disposing(engine), engine.connect() as connection:
            return engine, _find_schema(connection, url)

    file = find_file(url)
    # A file without a log beside it is complete, and can be read without writing anything.
    can_be_immutable = file is not None and file.is_file() and not _has_log(file)
    if file is None or not can_be_immutable:
        return check(_make_engine(url, wait_s=wait_s))
    immutable = sa.URL.create(
        "sqlite",
        database=file.absolute().as_uri(),
        query={"mode": "ro", "immutable": "1", "uri": "true"},
    )
    can_write = can_access(file, os.W_OK) and can_access(file.parent, os.W_OK)
    if can_access(file, os.R_OK) and (not can_write or url.query.get("mode") == "ro"):
        return check(_make_engine(immutable))
    try:
        return check(_make_engine(url, wait_s=wait_s))
    except sa.exc.OperationalError as error:
        # Permissions do not show everything: on a full disk, the index of the log cannot be made.
        reasons = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR_SHM")
        if not _find_error_code(error).startswith(reasons) or _has_log(file):
            raise
        return check(_make_engine(immutable))


def _has_log(file: Path) -> bool:
    """Return whether a part of the database is still in SQLite's log."""
    log = Path(f"{file}-wal")
    return log.exists() and log.stat().st_size > 0


@contextmanager
def _disposing(engine: sa.Engine) -> Iterator[None]:
    """Close the connections of an engine that turns out to be of no use."""
    with ExitStack() as failed:
        failed.callback(engine.dispose)
        yield
        failed.pop_all()


# ---------------------------------------------------------------------------------------------
# The schema


def _find_schema(connection: sa.Connection, url: sa.URL) -> str | None:
    """Return the version of the schema; None in an empty database.

    Raises:
        StoreError: The tables are those of a newer version or of another program.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    place = find_file(url) or url.database
    if VERSION.name not in tables:
        raise StoreError(
            f"the database {place} belongs to another program: give the path of a store, "
            f"{ELSEWHERE}"
        )
    schema = str(connection.scalar(sa.select(VERSION)))
    if schema not in SCHEMAS:
        raise StoreError(
            f"the store {place} was written by a newer version of Joulecast "
            f"(schema {schema}; this one has {SCHEMAS[-1]}): upgrade, {ELSEWHERE}"
        )
    return schema


def _add_tables(engine: sa.Engine, url: sa.URL, *, is_new: bool) -> None:
    """Create the tables that are missing, in one transaction; those that exist stay as they are."""
    if is_new and engine.dialect.name == "sqlite":
        _enable_wal(engine)
    with engine.execution_options(writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            from joulecast.store.postgres import lock_schema

            lock_schema(connection)
        # Another process may have been faster, perhaps of a newer version.
        _find_schema(connection, url)
        METADATA.create_all(connection)
        connection.execute(sa.delete(VERSION))
        connection.execute(sa.insert(VERSION).values(version_num=SCHEMAS[-1]))


def _enable_wal(engine: sa.Engine) -> None:
    """Let readers read during writes, permanently. Not possible inside a transaction."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is creating this store at the moment, and does the same.
        if not _find_error_code(error).startswith("SQLITE_BUSY"):
            raise
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------
# Errors: SQLite names them, PostgreSQL numbers them (SQLSTATE). What neither names is quoted.

_FULL = ("there is no space left", f"free some, {ELSEWHERE}")
_READ_ONLY = ("it can be read but not written", f"allow writing, {ELSEWHERE}")
_LOCKED = ("another program has locked it", "wait for that program and try again")
# The start of an error's name or number, with what is wrong and what to do.
_ADVICE = {
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_NOTADB": ("it is not a SQLite database", f"give the path of a store, {ELSEWHERE}"),
    "SQLITE_CORRUPT": (
        "the database is damaged",
        "move it away and import exported profiles, or restore a copy",
    ),
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_CANTOPEN": ("it cannot be opened", f"check the path and its permissions, {ELSEWHERE}"),
    "SQLITE_PERM": ("access is denied", f"check its permissions, {ELSEWHERE}"),
    "SQLITE_IOERR": ("the disk reported an error", f"check the disk, {ELSEWHERE}"),
    "53100": _FULL,
    "25006": _READ_ONLY,
    "55P03": _LOCKED,
}
# Errors that a full disk causes too: SQLite needs space for its index of the log, even to read.
_PERHAPS_FULL = ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
_LEAST_FREE_BYTES = 64 * 1024
# Of PostgreSQL: lost connections, shutdown and start of the server, transactions that it undid, and
# profiles that another process removed at the same moment.
_TRANSIENT = ("08", "57P0", "40001", "40P01", "23503")


@contextmanager
def wrap_errors(place: str, file: Path | None = None) -> Iterator[None]:
    """Convert errors of the driver to StoreError, in one line that says what to do."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(_explain(error, place, file)) from error
    except UnicodeDecodeError as error:
        # The driver cannot decode even the message of SQLite, which quotes the file.
        damage = sqlite3.DatabaseError("Could not decode the text of an error")
        raise StoreError(_explain(damage, place, file)) from error


def _is_transient(error: sa.exc.DBAPIError) -> bool:
    """Return whether a server may do the same later, because it is restarting for example."""
    if isinstance(error.orig, sqlite3.Error):
        return False
    if error.connection_invalidated or _find_error_code(error).startswith(_TRANSIENT):
        return True
    # If no connection could be made, there is no number.
    return isinstance(error, sa.exc.OperationalError) and not _find_error_code(error)


def _find_error_code(error: Exception) -> str:
    """Return SQLite's name of an error or PostgreSQL's number; empty if it has neither."""
    cause = getattr(error, "orig", None) or error
    # The driver itself decodes texts, and has no name for one that it cannot decode.
    if isinstance(cause, sqlite3.Error) and str(cause).startswith("Could not decode"):
        return "SQLITE_CORRUPT"
    return str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or "")


def _explain(error: Exception, place: str, file: Path | None) -> str:
    code = _find_error_code(error)
    if file is not None and code.startswith(_PERHAPS_FULL):
        with suppress(OSError):
            room = os.statvfs(file.parent)
            if room.f_bavail * room.f_frsize < _LEAST_FREE_BYTES:
                code = "SQLITE_FULL"
    for known, (what, advice) in _ADVICE.items():
        if code.startswith(known):
            return f"the store {place}: {what}; {advice}"
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [""]
    reason = redact_url(" ".join(lines[0].split()))
    return f"the store {place} cannot be used ({reason}): check it, {ELSEWHERE}"
