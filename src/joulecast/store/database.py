"""The database under the store: where it is, how it is opened, brought up to date, and explained.

    find_url ──▶ open_database ──▶ which schema? ─┬─ this one ──▶ in use
                                                  ├─ none or older ──▶ migrated ──▶ in use
                                                  └─ newer or foreign ──▶ refused, untouched

SQLite leaves transactions to its caller: readers begin plainly and writers with IMMEDIATE, which
waits for other writers instead of failing half-way. Errors of the driver leave as one StoreError
that says what to do. alembic is imported only where a schema has to be made or changed: it is slow.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from joulecast.errors import InputError, MissingError, StoreError
from joulecast.store.tables import METADATA

HEAD = "0001"
VERSION_TABLE = "joulecast_version"

_ELSEWHERE = "or choose another place with JOULECAST_STORE"
# SQLite's names of errors, each with what happened and what to do.
_ADVICE = {
    "SQLITE_FULL": ("there is no space left", f"free some, {_ELSEWHERE}"),
    "SQLITE_READONLY": ("it can be read but not written", f"allow writing, {_ELSEWHERE}"),
    "SQLITE_NOTADB": ("this is no SQLite database", f"give the path of a store, {_ELSEWHERE}"),
    "SQLITE_CORRUPT": (
        "the database is damaged",
        "move it away and import what was exported before, or restore a copy",
    ),
    "SQLITE_BUSY": ("another program holds it", "wait until that is done and try again"),
    "SQLITE_LOCKED": ("another program holds it", "wait until that is done and try again"),
    "SQLITE_CANTOPEN": ("it cannot be opened", f"check the path and its permissions, {_ELSEWHERE}"),
    "SQLITE_PERM": ("it may not be opened", f"check its permissions, {_ELSEWHERE}"),
    "SQLITE_IOERR": ("the disk gave an error", f"check the disk, {_ELSEWHERE}"),
}


def find_url(place: str | Path | None = None) -> sa.URL:
    """Where the store is: the argument, else JOULECAST_STORE, else the user's data folder."""
    chosen = str(place or os.environ.get("JOULECAST_STORE") or _default_path())
    if "://" not in chosen:
        database = chosen if chosen == ":memory:" else str(Path(chosen).expanduser())
        return sa.URL.create("sqlite", database=database)
    try:
        url = sa.make_url(chosen)
        url.get_dialect()
    except sa.exc.ArgumentError as error:
        raise InputError(f"{chosen!r} is no place for a store: give a path or a URL") from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(f"a store is a SQLite file or a postgresql:// URL, not {url.drivername}")
    return url


def _default_path() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        folder = data if data.is_absolute() else Path.home() / ".local/share"
    except RuntimeError as error:
        raise StoreError("there is no home folder: set JOULECAST_STORE to a path") from error
    return folder / "joulecast" / "store.sqlite"


def find_file(url: sa.URL) -> Path | None:
    """The file of a store; None where it has none."""
    database = str(url.database or ":memory:")
    if url.get_backend_name() != "sqlite" or database == ":memory:":
        return None
    return Path(database[5:] if database.startswith("file:") else database)


def open_database(url: sa.URL, *, create: bool, wait_s: float) -> sa.Engine | None:
    """An engine on a store of the newest schema; None where there is none and none is wanted."""
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
        _bring_to_head(engine, revision)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_folder(file: Path) -> None:
    if file.is_dir():
        raise StoreError(f"{file} is a folder: name a file in it, like {file / 'store.sqlite'}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {file.parent} cannot be made ({error.strerror}): make it, {_ELSEWHERE}"
        ) from error


def _open_engine(url: sa.URL, wait_s: float) -> tuple[sa.Engine, str | None]:
    """An engine and the revision of the schema behind it, None where there is no schema yet."""
    try:
        return _look_into(make_engine(url, wait_s=wait_s))
    except sa.exc.OperationalError as error:
        file = find_file(url)
        if file is None or not _can_only_be_read(file, error):
            raise
        query = {"mode": "ro", "immutable": "1", "uri": "true"}
        frozen = sa.URL.create("sqlite", database=file.absolute().as_uri(), query=query)
        return _look_into(make_engine(frozen))


def _can_only_be_read(file: Path, error: Exception) -> bool:
    """SQLite cannot share a file in a folder where it may not write; a file at rest it can read."""
    unshared = _name(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
    return unshared and file.is_file() and not Path(f"{file}-wal").exists()


def _look_into(engine: sa.Engine) -> tuple[sa.Engine, str | None]:
    try:
        return engine, _find_revision(engine)
    except BaseException:
        engine.dispose()
        raise


def make_engine(url: sa.URL, *, wait_s: float = 0.0) -> sa.Engine:
    """An engine whose SQLite connections wait, check references and leave transactions to us."""
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
    """An empty store that lives as long as its engine."""
    engine = make_engine(sa.URL.create("sqlite"))
    METADATA.create_all(engine)
    return engine


def _make_server_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise MissingError(
            f"a {url.drivername} store needs the package {error.name}: pip install {error.name}"
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


def _bring_to_head(engine: sa.Engine, revision: str | None) -> None:
    """Make the tables, or change those of an older Joulecast; all of it or nothing."""
    if revision == HEAD:
        return
    # Slow to import, and hardly ever needed.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "joulecast:migrations")
    known = {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the store {engine.url.database} was written by a newer Joulecast (schema {revision}; "
            f"this one knows {HEAD}): upgrade, {_ELSEWHERE}"
        )
    if revision is None and engine.dialect.name == "sqlite":
        _choose_wal(engine)
    config.attributes["version_table"] = VERSION_TABLE
    with engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _choose_wal(engine: sa.Engine) -> None:
    """Let readers read while one writes; the file remembers it. Not possible in a transaction."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is making this store right now, and chooses the same.
        if not _name(error).startswith("SQLITE_BUSY"):
            raise
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------------
# Errors


@contextmanager
def wrap_errors(place: str) -> Iterator[None]:
    """The door: whatever the driver raises leaves as one StoreError."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(_explain(error, place)) from error


def _explain(error: Exception, place: str) -> str:
    name = _name(error)
    for known, (what, advice) in _ADVICE.items():
        if name.startswith(known):
            return f"the store {place}: {what}; {advice}"
    reason = str(getattr(error, "orig", error)).strip().split("\n", 1)[0]
    return f"the store {place} cannot be used ({reason}): check it, {_ELSEWHERE}"


def _name(error: Exception) -> str:
    """SQLite's name of an error; empty for other databases."""
    return str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
