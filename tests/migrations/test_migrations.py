"""Migrations run in the transaction of the store."""

import sqlite3

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from joulecast.errors import StoreError
from joulecast.store import open_store
from joulecast.store.schema import HEAD, VERSION_TABLE


def test_newest_migration_is_the_schema_of_the_store():
    config = Config()
    config.set_main_option("script_location", "joulecast:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_failed_migration_leaves_the_database_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"

    def fail(*args, **kwargs):
        raise sqlite3.OperationalError("no more tables")

    monkeypatch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
    with pytest.raises(StoreError, match="no more tables"):
        open_store(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    monkeypatch.undo()
    open_store(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(HEAD,)]
    connection.close()
