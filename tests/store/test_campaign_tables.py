"""Campaigns of a store, in SQLite and PostgreSQL: progress, the request to stop, dead processes."""

import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from joulecast.errors import MissingError, StoreError
from joulecast.store import open_store
from joulecast.store.campaigns import CampaignProgress
from joulecast.store.database import Transactions

KILLED = """
import os, sys
from joulecast.store import open_store
with open_store(sys.argv[1]) as store:
    with store.campaigns.add("lenet5", "phone", "k", "measured") as key:
        print(key, flush=True)
        os._exit(9)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def tables(place):
    with open_store(place) as store:
        yield store.campaigns


def test_progress_is_kept_in_order_and_the_latest_is_shown(tables):
    moments = [CampaignProgress(1.0, 3, None), CampaignProgress(2.0, 4, 0.2)]
    with tables.add("lenet5", "phone", "k", "modelled") as key:
        tables.change(key, moments[:1], reason="first")
        tables.change(key, moments[1:], reason="next", left_s=9.0, total=8)
        found = tables.find(key)
    assert list(tables.list_progress(key)) == moments
    assert (found.points, found.uncertainty_share, found.elapsed_s) == (4, 0.2, 2.0)
    assert (found.left_s, found.total, found.reason) == (9.0, 8, "next")
    assert (found.state, found.provenance) == ("running", "modelled")


def test_stop_is_requested_of_running_campaigns_only(tables):
    with tables.add("lenet5", "phone", "k", "measured") as key:
        assert not tables.is_stop_requested(key)
        assert tables.request_stop(key).is_stop_requested
        assert tables.is_stop_requested(key)
    tables.finish(key, "stopped", "it was stopped by request")
    with pytest.raises(MissingError, match="has ended"):
        tables.request_stop(key)
    with pytest.raises(MissingError, match="no such campaign"):
        tables.request_stop("none")


def test_campaign_whose_process_was_killed_is_not_called_running(place, tables):
    command = [sys.executable, "-c", KILLED, place]
    key = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    (found,) = tables.list_all()
    assert (found.key, found.state) == (key, "interrupted")
    assert "resumes" in found.reason


def test_the_latest_campaign_comes_first(place):
    times = iter(range(100))
    with open_store(place, now=lambda: float(next(times))) as store:
        for name in ("a", "b"):
            with store.campaigns.add(name, "phone", "k", "measured"):
                pass
        assert [one.name for one in store.campaigns.list_all()] == ["b", "a"]


def test_readers_see_a_campaign_as_running_from_its_first_moment(place, tables, monkeypatch):
    """Readers look between all steps of adding it; before, one could take its claim."""
    seen = []
    write = Transactions.write

    def write_and_look(self, action):
        write(self, action)
        seen.extend(one.state for one in reader.list_all())

    with open_store(place) as other:
        reader = other.campaigns
        monkeypatch.setattr(Transactions, "write", write_and_look)
        with tables.add("lenet5", "phone", "k", "measured") as key:
            assert reader.find(key).state == "running"
            assert tables.find(key).state == "running"
        assert seen == ["running"]
        assert reader.find(key).state == "interrupted"


def test_readers_at_the_same_time_do_not_take_each_other_for_the_campaign(place, tables):
    with tables.add("lenet5", "phone", "k", "measured") as key:
        pass
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: tables.find(key).state, range(40)))
    assert set(states) == {"interrupted"}


def test_campaign_that_cannot_be_claimed_is_not_added(tables, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda _: "ab")
    with tables.add("lenet5", "phone", "k", "measured"):
        with pytest.raises(StoreError, match="start it again"), tables.add("b", "phone", "k", "x"):
            pytest.fail("two runs have the same claim")
        assert [one.name for one in tables.list_all()] == ["lenet5"]


def test_campaign_in_memory_is_running():
    with open_store(":memory:") as store, store.campaigns.add("a", "phone", "k", "x") as key:
        assert store.campaigns.find(key).is_running
