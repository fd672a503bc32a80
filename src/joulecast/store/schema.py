"""Create the tables of the store, and migrate those of older versions without losing a row.

A migration is one transaction, and it is undone if a table has fewer rows afterwards or rows refer
to missing ones. A copy of a SQLite file stands beside it until the transaction has been committed.
alembic is slow to import, so it is imported only to create or change a schema.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import sqlalchemy as sa

from joulecast.errors import StoreError
from joulecast.store.database_errors import find_error_code
from joulecast.store.places import ELSEWHERE

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0003"
VERSION_TABLE = "joulecast_version"

# alembic keeps the running migration in global variables.
_ALEMBIC = Lock()


def find_revision(engine: sa.Engine) -> str | None:
    """Return the revision of the schema; None in an empty database.

    Raises:
        StoreError: The database belongs to another program.
    """
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        if VERSION_TABLE in tables:
            query = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
            return str(connection.scalar(query))
    if tables:
        raise StoreError(
            f"the database {engine.url.database} belongs to another program: give the path of a "
            f"store, {ELSEWHERE}"
        )
    return None


def migrate(engine: sa.Engine, revision: str | None, file: Path | None) -> None:
    """Create the tables, or migrate those of an older version.

    Args:
        engine: An engine that checks no references.
        revision: The revision of the tables that there are; None without any.
        file: The file of the database; None on a server.

    Raises:
        StoreError: The tables are those of a newer version, or a row would be lost. The database is
            unchanged then.
    """
    config = make_config()
    _check_is_known(config, revision, engine)
    if revision is None and engine.dialect.name == "sqlite":
        _enable_wal(engine)
    copy = None
    with _ALEMBIC, engine.execution_options(writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            from joulecast.store.postgres import lock_schema

            lock_schema(connection)
        # No other process writes now, but the file can be read.
        if file is not None and revision is not None:
            copy = _copy_file(file)
        _upgrade(config, connection, copy)
    if copy is not None:
        copy.unlink(missing_ok=True)


def make_config() -> Config:
    """Return the configuration of alembic, which says where the migrations are."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "joulecast:migrations")
    config.attributes["version_table"] = VERSION_TABLE
    return config


def _check_is_known(config: Config, revision: str | None, engine: sa.Engine) -> None:
    from alembic.script import ScriptDirectory

    known = {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the store {engine.url.database} was written by a newer version of Joulecast "
            f"(schema {revision}; this one has {HEAD}): upgrade, {ELSEWHERE}"
        )


def _upgrade(config: Config, connection: sa.Connection, copy: Path | None) -> None:
    """Run the migrations that are missing, and check that every row is still there."""
    from alembic import command

    before = _count_rows(connection)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    damage = _find_damage(connection, before)
    if damage:
        kept = f", and a copy is in {copy}" if copy else ""
        raise StoreError(
            f"the store {connection.engine.url.database} cannot be upgraded without a loss "
            f"({damage}): it is unchanged{kept}; use the earlier version of Joulecast and report "
            "this"
        )


def _find_damage(connection: sa.Connection, before: Mapping[str, int]) -> str:
    """Return what a migration has damaged; empty if nothing."""
    after = _count_rows(connection)
    for table, count in before.items():
        if after.get(table, 0) < count:
            return f"{count - after.get(table, 0)} of {count} rows of {table} would be lost"
    if connection.dialect.name == "sqlite":
        orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        if orphans:
            return f"{len(orphans)} rows would refer to missing ones"
    return ""


def _count_rows(connection: sa.Connection) -> dict[str, int]:
    tables = set(sa.inspect(connection).get_table_names()) - {VERSION_TABLE}
    count = sa.select(sa.func.count())
    return {
        name: connection.scalar(count.select_from(sa.table(name))) or 0 for name in sorted(tables)
    }


def _copy_file(file: Path) -> Path:
    """Copy a SQLite database, whole and on disk when this returns, and return the copy."""
    copy = Path(f"{file}.before-{HEAD}")
    handle, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=file.parent)
    try:
        with (
            closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(name)) as target,
        ):
            source.backup(target)
        os.fsync(handle)
        shutil.copymode(file, name)
        # An earlier copy is replaced only by a whole one.
        Path(name).replace(copy)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    return copy


def _enable_wal(engine: sa.Engine) -> None:
    """Let readers read during writes, permanently. Not possible inside a transaction."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is creating this store at the moment, and does the same.
        if not find_error_code(error).startswith("SQLITE_BUSY"):
            raise
    finally:
        connection.close()
