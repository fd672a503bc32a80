"""Find, open and migrate the database of the store.

    find_url ──▶ open_database ──▶ schema? ─┬─ current ──▶ use
                                            ├─ none or older ──▶ migrate ──▶ use
                                            └─ newer or foreign ──▶ refuse, unchanged

With SQLite, readers begin a plain transaction and writers an IMMEDIATE one, which waits for other
writers instead of failing half-way. Errors of the driver become a StoreError that says what to do.
alembic is slow to import, so it is imported only to create or change a schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from joulecast.errors import InputError, MissingError, StoreError
from joulecast.store.places import IN_MEMORY, choose_place
from joulecast.store.tables import METADATA

HEAD = "0001"
VERSION_TABLE = "joulecast_version"

_ELSEWHERE = "or choose another path with JOULECAST_STORE"
# SQLite's error names, each with what is wrong and what to do.
_ADVICE = {
    "SQLITE_FULL": ("there is no space left", f"free some, {_ELSEWHERE}"),
    "SQLITE_READONLY": ("it can be read but not written", f"allow writing, {_ELSEWHERE}"),
    "SQLITE_NOTADB": ("it is not a SQLite database", f"give the path of a store, {_ELSEWHERE}"),
    "SQLITE_CORRUPT": (
        "the database is damaged",
        "move it away and import exported profiles, or restore a copy",
    ),
    "SQLITE_BUSY": ("another program has locked it", "wait for that program and try again"),
    "SQLITE_LOCKED": ("another program has locked it", "wait for that program and try again"),
    "SQLITE_CANTOPEN": ("it cannot be opened", f"check the path and its permissions, {_ELSEWHERE}"),
    "SQLITE_PERM": ("access is denied", f"check its permissions, {_ELSEWHERE}"),
    "SQLITE_IOERR": ("the disk reported an error", f"check the disk, {_ELSEWHERE}"),
}


def find_url(place: str | Path | None = None) -> sa.URL:
    """Return the URL of the store: ``place``, else JOULECAST_STORE, else in the data folder."""
    chosen = choose_place(place)
    if "://" not in chosen:
        return sa.URL.create("sqlite", database=chosen)
    try:
        url = sa.make_url(chosen)
        url.get_dialect()
    except sa.exc.ArgumentError as error:
        raise InputError(f"{chosen!r} is not a store: give a path or a URL") from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(
            f"a store cannot be in {url.drivername}: give a SQLite file or a postgresql:// URL"
        )
    return url


def find_file(url: sa.URL) -> Path | None:
    """Return the file of a store; None for a server or for memory."""
    database = str(url.database or IN_MEMORY)
    if url.get_backend_name() != "sqlite" or database == IN_MEMORY:
        return None
    return Path(database[5:] if database.startswith("file:") else database)


def open_database(url: sa.URL, *, create: bool, wait_s: float) -> sa.Engine | None:
    """Return an engine for a store with the current schema; None if it is missing."""
    file = find_file(url)
    if file is None and url.get_backend_name() == "sqlite":
        return make_memory_engine()
    if file and not create and not file.exists():
        return None
    if file:
        _make_folder(file)
    engine, revision = _open_engine(url, wait_s)
    if revision is None and not create:
        engine.dispose()
        return None
    try:
        _migrate(engine, revision)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_folder(file: Path) -> None:
    if file.is_dir():
        raise StoreError(f"{file} is a folder: give a file, like {file / 'store.sqlite'}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {file.parent} cannot be created ({error.strerror}): create it, "
            f"{_ELSEWHERE}"
        ) from error


def _open_engine(url: sa.URL, wait_s: float) -> tuple[sa.Engine, str | None]:
    """Return an engine and the revision of its schema, None without a schema."""
    try:
        return _check_engine(make_engine(url, wait_s=wait_s))
    except sa.exc.OperationalError as error:
        file = find_file(url)
        if file is None or not _is_read_only(file, error):
            raise
        query = {"mode": "ro", "immutable": "1", "uri": "true"}
        frozen = sa.URL.create("sqlite", database=file.absolute().as_uri(), query=query)
        return _check_engine(make_engine(frozen))


def _is_read_only(file: Path, error: Exception) -> bool:
    """Return whether SQLite can only read the file, because its folder cannot be written."""
    is_locked_out = _error_name(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
    return is_locked_out and file.is_file() and not Path(f"{file}-wal").exists()


def _check_engine(engine: sa.Engine) -> tuple[sa.Engine, str | None]:
    try:
        return engine, _find_revision(engine)
    except BaseException:
        engine.dispose()
        raise


def make_engine(url: sa.URL, *, wait_s: float = 0.0) -> sa.Engine:
    """Return an engine whose SQLite connections wait, check references, and begin explicitly."""
    if url.get_backend_name() != "sqlite":
        return _make_server_engine(url)
    options: dict[str, Any] = {"connect_args": {"timeout": wait_s}}
    if find_file(url) is None:
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = sa.create_engine(url, **options)
    sa.event.listen(engine, "connect", _prepare_connection)
    sa.event.listen(engine, "begin", _begin)
    return engine


def make_memory_engine() -> sa.Engine:
    """Return the engine of an empty store in memory."""
    engine = make_engine(sa.URL.create("sqlite"))
    METADATA.create_all(engine)
    return engine


def _make_server_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"a {url.drivername} store needs a package: run pip install {error.name}"
        ) from error


def _prepare_connection(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# ---------------------------------------------------------------------------------------------
# The schema


def _find_revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        if VERSION_TABLE in tables:
            query = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
            return str(connection.scalar(query))
    if tables:
        raise StoreError(
            f"the database {engine.url.database} belongs to another program: give the path of a "
            f"store, {_ELSEWHERE}"
        )
    return None


def _migrate(engine: sa.Engine, revision: str | None) -> None:
    """Create the tables, or migrate those of an older version, in one transaction."""
    if revision == HEAD:
        return
    # Slow to import and rarely needed.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "joulecast:migrations")
    known = {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the store {engine.url.database} was written by a newer version of Joulecast "
            f"(schema {revision}; this one has {HEAD}): upgrade, {_ELSEWHERE}"
        )
    if revision is None and engine.dialect.name == "sqlite":
        _enable_wal(engine)
    config.attributes["version_table"] = VERSION_TABLE
    with engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _enable_wal(engine: sa.Engine) -> None:
    """Let readers read during writes, permanently. Not possible inside a transaction."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is creating this store at the moment, and does the same.
        if not _error_name(error).startswith("SQLITE_BUSY"):
            raise
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------
# Errors


@contextmanager
def wrap_errors(place: str) -> Iterator[None]:
    """Convert errors of the driver to StoreError."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(_explain(error, place)) from error


def _explain(error: Exception, place: str) -> str:
    name = _error_name(error)
    for known, (what, advice) in _ADVICE.items():
        if name.startswith(known):
            return f"the store {place}: {what}; {advice}"
    reason = str(getattr(error, "orig", error)).strip().split("\n", 1)[0]
    return f"the store {place} cannot be used ({reason}): check it, {_ELSEWHERE}"


def _error_name(error: Exception) -> str:
    """Return SQLite's name of an error; empty for other databases."""
    return str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
