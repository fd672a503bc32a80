"""Find and open the database of the store.

    find_url ──▶ open_database ──▶ schema? ─┬─ current ──▶ use
                                            ├─ none or older ──▶ migrate ──▶ use
                                            └─ newer or foreign ──▶ refuse, unchanged

With SQLite, readers begin a plain transaction and writers an IMMEDIATE one, which waits for other
writers instead of failing half-way. A file that cannot be written is opened as immutable: SQLite
would otherwise leave an index of its log behind that nobody can write.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from joulecast.errors import InputError, StoreError
from joulecast.redaction import redact_url
from joulecast.store.database_errors import find_error_code
from joulecast.store.places import (
    ELSEWHERE,
    IN_MEMORY,
    can_access,
    check_folder,
    choose_place,
    find_default_file,
)
from joulecast.store.schema import HEAD, find_revision, migrate
from joulecast.store.tables import METADATA

# The drivers that stores are tested with, by the beginning of a URL.
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
# What a URL of a SQLite file may say about it.
_FILE_PARAMETERS = {"mode", "uri", "cache", "immutable", "vfs"}


def find_url(place: str | Path | None = None) -> sa.URL:
    """Return the URL of the store: ``place``, else JOULECAST_STORE, else in the data folder.

    Raises:
        InputError: It is neither a path nor a URL that a store can have.
    """
    chosen = choose_place(place)
    scheme, separator, rest = chosen.partition("://")
    if not separator:
        return sa.URL.create("sqlite", database=chosen)
    driver, shown = _DRIVERS.get(scheme.lower()), redact_url(chosen)
    if driver is None:
        raise InputError(
            f"a store cannot be in {shown}: give the path of a SQLite file or a postgresql:// URL"
        )
    try:
        url = sa.make_url(f"{driver}://{rest}")
    except (sa.exc.ArgumentError, ValueError):
        # The cause is not kept: it may quote a part of the password.
        raise InputError(
            f"the store's URL {shown} cannot be read: write it like "
            "postgresql://USER@HOST:5432/DATABASE, and @ in a password as %40"
        ) from None
    if "@" in (url.host or ""):
        raise InputError(f"the store's URL {shown} has several @: write @ in a password as %40")
    if "\0" in unquote(rest):
        raise InputError(f"the store's URL {shown} has a null byte: remove %00")
    if driver == "sqlite" and (url.host or set(url.query) - _FILE_PARAMETERS):
        raise InputError(f"the store's URL {shown} cannot be read: give the path of the file")
    return url


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
        return make_memory_engine()
    if file and not _prepare_file(file, create=create):
        return None
    engine, revision = _open_engine(url, wait_s)
    if revision is None and not create:
        engine.dispose()
        return None
    try:
        if revision != HEAD:
            _migrate(url, wait_s, revision)
    except BaseException:
        engine.dispose()
        raise
    return engine


def make_engine(url: sa.URL, *, wait_s: float = 0.0, checks_references: bool = True) -> sa.Engine:
    """Return an engine of a store.

    Args:
        url: Where the store is.
        wait_s: Longest time to wait for other processes that write, or for an answer of the server.
        checks_references: Let SQLite check references between rows, and remove those that refer to
            removed ones.
    """
    if url.get_backend_name() != "sqlite":
        from joulecast.store.postgres import make_server_engine

        return make_server_engine(url, wait_s)
    options: dict[str, Any] = {"connect_args": {"timeout": wait_s}}
    if find_file(url) is None:
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = sa.create_engine(url, **options)

    def prepare_connection(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA foreign_keys = {'ON' if checks_references else 'OFF'}")

    sa.event.listen(engine, "connect", prepare_connection)
    sa.event.listen(engine, "begin", _begin)
    return engine


def make_memory_engine() -> sa.Engine:
    """Return the engine of an empty store in memory."""
    engine = make_engine(sa.URL.create("sqlite"))
    METADATA.create_all(engine)
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
    """Return an engine and the revision of its schema, None without a schema."""
    file = find_file(url)
    if file is not None and _is_read_only(file, url):
        return _check_engine(_make_immutable_engine(file))
    try:
        return _check_engine(make_engine(url, wait_s=wait_s))
    except sa.exc.OperationalError as error:
        if file is None or not _is_locked_out(file, error):
            raise
        return _check_engine(_make_immutable_engine(file))


def _check_engine(engine: sa.Engine) -> tuple[sa.Engine, str | None]:
    try:
        return engine, find_revision(engine)
    except BaseException:
        engine.dispose()
        raise


def _make_immutable_engine(file: Path) -> sa.Engine:
    query = {"mode": "ro", "immutable": "1", "uri": "true"}
    return make_engine(sa.URL.create("sqlite", database=file.absolute().as_uri(), query=query))


def _is_read_only(file: Path, url: sa.URL) -> bool:
    """Return whether a store can only be read, and is complete without a log beside it."""
    if not file.is_file() or not can_access(file, os.R_OK) or _has_log(file):
        return False
    can_write = can_access(file, os.W_OK) and can_access(file.parent, os.W_OK)
    return not can_write or url.query.get("mode") == "ro"


def _is_locked_out(file: Path, error: Exception) -> bool:
    """Return whether SQLite could only read a file, for reasons that permissions do not show."""
    # On a full disk, the index of the log cannot be made.
    reasons = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR_SHM")
    return find_error_code(error).startswith(reasons) and file.is_file() and not _has_log(file)


def _has_log(file: Path) -> bool:
    """Return whether a part of the database is still in SQLite's log."""
    log = Path(f"{file}-wal")
    return log.exists() and log.stat().st_size > 0


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(url: sa.URL, wait_s: float, revision: str | None) -> None:
    # A migration may replace a table, and rows that refer to it must stay. Inside of a transaction
    # it is too late to say so.
    engine = make_engine(url, wait_s=wait_s, checks_references=False)
    try:
        migrate(engine, revision, find_file(url))
    finally:
        engine.dispose()
