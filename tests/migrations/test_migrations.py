"""Stores of earlier versions get the tables that they lack at once, and keep every row."""

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock

import psycopg
import pytest
import sqlalchemy as sa

from joulecast.store import database
from joulecast.store.database import METADATA, SCHEMAS, VERSION
from joulecast.system.errors import StoreError
from joulecast.testing.stores import make_observation, make_profile
from refusals import refusal
from store_properties import open_bare

PROFILE = make_profile(*map(make_observation, range(2)), flops={"slope": 1})
FLEET = ("fleet_campaigns", "fleet_requests", "fleet_devices")
CAMPAIGNS = ("campaign_progress", "campaigns", "evaluations")
TESTS = Path(__file__).parents[1]
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


def test_several_processes_can_upgrade_at_once(place, monkeypatch):
    """All see the old version before the first of them adds a table."""
    make_old(place, "0001")
    barrier, add_tables = Barrier(3), database._add_tables

    def wait_and_add(*args, **options):
        barrier.wait(10.0)
        add_tables(*args, **options)

    monkeypatch.setattr(database, "_add_tables", wait_and_add)
    with ThreadPoolExecutor(3) as pool:
        for store in pool.map(open_bare, [place] * 3):
            assert store.load_profile(PROFILE.key) == PROFILE
            assert store.fleet.list_devices() == store.campaigns.list_all() == ()
            store.close()


def test_upgrade_by_a_newer_version_at_the_same_moment_is_not_undone(place, monkeypatch):
    make_old(place, "0001")
    add_tables = database._add_tables

    def be_slower(*args, **options):
        execute(place, f"UPDATE {VERSION.name} SET version_num = '9999'")
        add_tables(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(database, "_add_tables", be_slower)
        with refusal(StoreError, "newer version"):
            open_bare(place)
    with refusal(StoreError, r"newer version of Joulecast \(schema 9999"):
        open_bare(place)


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from store_properties import open_bare
sa.insert = lambda table: os.kill(os.getpid(), signal.SIGKILL)
open_bare(sys.argv[1])
"""


def test_killed_upgrade_is_repeated(place):
    make_old(place, "0001")
    before = None if "://" in place else read(place)
    killed = subprocess.run([sys.executable, "-c", KILLED, place], cwd=TESTS, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert before is None or read(place) == before
    with open_bare(place) as store:
        assert store.load_profile(PROFILE.key) == PROFILE
        assert store.fleet.list_devices() == store.campaigns.list_all() == ()
