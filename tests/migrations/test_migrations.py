"""Stores of earlier versions get the tables that they lack at once, and keep every row."""

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest
import sqlalchemy as sa

from joulecast.store.database import METADATA, SCHEMAS, VERSION
from joulecast.system.errors import StoreError
from joulecast.testing.stores import make_observation, make_profile
from store_properties import open_bare

PROFILE = make_profile(*map(make_observation, range(2)), flops={"slope": 1})
FLEET = ("fleet_campaigns", "fleet_requests", "fleet_devices")
CAMPAIGNS = ("campaign_progress", "campaigns", "evaluations")
NEWER = {"0001": (*CAMPAIGNS, *FLEET), "0002": CAMPAIGNS}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Return the place of a store of one profile."""
    is_file = request.param == "sqlite"
    found = str(tmp_path / "store.sqlite") if is_file else request.getfixturevalue("postgres_url")
    with open_bare(found) as store:
        store.import_profile(PROFILE)
    return found


def execute(place, *statements):
    connect = psycopg.connect if "://" in place else sqlite3.connect
    with closing(connect(place)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def make_old(place, version):
    """Turn a store into one of an earlier version."""
    drops = [f"DROP TABLE {table}" for table in NEWER[version]]
    execute(place, *drops, f"UPDATE {VERSION.name} SET version_num = '{version}'")


def read(path):
    """Return what is in a file, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("version", NEWER)
def test_old_stores_are_upgraded_with_all_that_they_hold(place, tmp_path, version):
    whole = None if "://" in place else sorted(read(place))
    make_old(place, version)
    with open_bare(place) as store:
        assert store.load_profile(PROFILE.key) == PROFILE
        assert store.fleet.list_devices() == store.campaigns.list_all() == ()
        inspected = sa.inspect(store.database.engine)
        assert set(inspected.get_table_names()) == set(METADATA.tables)
        for name, table in METADATA.tables.items():
            assert [one["name"] for one in inspected.get_columns(name)] == table.columns.keys()
    if whole:
        assert sorted(read(place)) == whole
        assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]


def test_files_that_earlier_versions_wrote_are_opened(tmp_path):
    """One that Alembic made, with the tables of the first version."""
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(Path(__file__).with_name("store_0001.sql").read_text())
    with open_bare(path) as store:
        assert store.load_profile(PROFILE.key) == PROFILE
        assert store.fleet.list_devices() == ()


@pytest.mark.parametrize("version", [None, "0001"])
def test_failed_upgrade_leaves_the_database_unchanged(tmp_path, monkeypatch, version):
    path = str(tmp_path / "store.sqlite")
    if version:
        open_bare(path).close()
        make_old(path, version)
    before = read(path)
    with monkeypatch.context() as patch:
        fail = Mock(side_effect=sqlite3.OperationalError("no more rows"))
        patch.setattr("joulecast.store.database.sa.insert", fail)
        with pytest.raises(StoreError, match="no more rows"):
            open_bare(path)
    assert read(path) == before
    open_bare(path).close()
    assert any(VERSION.name in line and SCHEMAS[-1] in line for line in read(path))
