"""Migrations run in one transaction, keep every row, and leave a copy until they are committed."""

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import joulecast.store
from joulecast.store.database import HEAD, METADATA, VERSION_TABLE, make_config
from joulecast.system.errors import StoreError
from joulecast.testing.stores import make_observation, make_profile
from refusals import refusal
from store_properties import open_bare

PROFILE = make_profile(*map(make_observation, range(5)), flops={"slope": 1})

MIGRATION = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "next", "{head}"
def upgrade():
    {}
"""
REPLACE = """
    with op.batch_alter_table("profiles", recreate="{}") as table:
        table.add_column(sa.Column("note", sa.Text))
"""
DELETE = 'op.execute("DELETE FROM observations WHERE id = (SELECT MIN(id) FROM observations)")'
DROP = 'op.drop_table("fits")'
ORPHAN = """op.execute("UPDATE observations SET profile_key = 'none'")"""
LOOK = """
    import sqlite3
    file = op.get_bind().engine.url.database
    copy = sqlite3.connect(f"file:{file}.before-next?immutable=1", uri=True)
    count = copy.execute("SELECT COUNT(*) FROM observations").fetchone()[0]
    copy.close()
    op.execute(f"UPDATE profiles SET covers = 'copied {count}'")
"""


@pytest.fixture
def place(tmp_path):
    """Return the path of a store of one profile."""
    path = tmp_path / "store.sqlite"
    fill(path)
    return path


@pytest.fixture
def add_migration(tmp_path, monkeypatch):
    """Return a function that adds a migration to those of the package."""

    def add(code):
        folder = tmp_path / "versions"
        folder.mkdir()
        (folder / "next.py").write_text(MIGRATION.format(code, head=HEAD))
        own = Path(joulecast.store.__file__).parent / "migrations/versions"

        def make_longer_config():
            config = make_config()
            config.set_main_option("path_separator", "newline")
            config.set_main_option("version_locations", f"{own}\n{folder}")
            return config

        monkeypatch.setattr("joulecast.store.database.make_config", make_longer_config)
        monkeypatch.setattr("joulecast.store.database.HEAD", "next")

    return add


def fill(place):
    with open_bare(place) as store:
        store.import_profile(PROFILE)


def read(path):
    """Return what is in a database, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def list_names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_migrations_create_the_tables_of_the_store(tmp_path):
    assert ScriptDirectory.from_config(make_config()).get_current_head() == HEAD
    path = tmp_path / "store.sqlite"
    open_bare(path).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert context.get_current_revision() == HEAD
        assert compare_metadata(context, METADATA) == []
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"
    engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_old_stores_are_upgraded_with_all_that_they_hold(place, revision):
    newer = ["campaign_progress", "campaigns", "evaluations"]
    newer += ["fleet_campaigns", "fleet_requests", "fleet_devices"] if revision == "0001" else []
    with closing(sqlite3.connect(place)) as connection, connection:
        for table in newer:
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'")
    with open_bare(place) as store:
        assert store.load_profile(PROFILE.key) == PROFILE
        assert store.fleet.list_devices() == store.campaigns.list_all() == ()
    assert list_names(place.parent) == ["store.sqlite"]


def test_failed_migration_leaves_the_database_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    fail = Mock(side_effect=sqlite3.OperationalError("no more tables"))
    monkeypatch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
    with pytest.raises(StoreError, match="no more tables"):
        open_bare(path)
    assert not any("CREATE" in line for line in read(path))
    monkeypatch.undo()
    open_bare(path).close()
    assert any(VERSION_TABLE in line and HEAD in line for line in read(path))


@pytest.mark.parametrize("recreate", ["always", "never"])
def test_migration_that_changes_a_table_keeps_every_row(place, add_migration, recreate):
    add_migration(REPLACE.format(recreate))
    with open_bare(place) as store:
        assert store.load_profile(PROFILE.key) == PROFILE
        assert any("note TEXT" in line for line in read(place))
        # References are checked again afterwards.
        store.remove_profile(PROFILE.key)
    assert not any("INSERT INTO" in line and "observations" in line for line in read(place))
    assert list_names(place.parent) == ["store.sqlite"]


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        (DELETE, "1 of 5 rows of observations"),
        (DROP, "1 of 1 rows of fits"),
        (ORPHAN, "5 rows would refer to missing ones"),
    ],
)
def test_migration_that_would_lose_rows_is_undone(place, add_migration, code, damage):
    before = read(place)
    add_migration(code)
    for _ in range(2):
        with refusal(StoreError, f"{damage}.*unchanged, and a copy is in"):
            open_bare(place)
        assert read(place) == before
        assert list_names(place.parent) == ["store.sqlite", "store.sqlite.before-next"]
        assert read(f"{place}.before-next") == before


def test_copy_is_whole_while_the_migration_runs(place, add_migration):
    add_migration(LOOK)
    with open_bare(place) as store:
        assert [one.covers for one in store.list_profiles()] == ["copied 5"]
    assert list_names(place.parent) == ["store.sqlite"]


def test_server_keeps_its_rows_too(postgres_url, add_migration):
    fill(postgres_url)
    add_migration(DELETE)
    with pytest.raises(StoreError, match=r"1 of 5 rows of observations.*unchanged; use"):
        open_bare(postgres_url)
