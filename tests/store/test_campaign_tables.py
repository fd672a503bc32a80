"""Campaigns of a store, in SQLite and PostgreSQL: progress, the request to stop, dead processes."""

import subprocess
import sys

import pytest

from joulecast.errors import MissingError
from joulecast.store import open_store
from joulecast.store.campaign_tables import CampaignProgress

KILLED = """
import os, sys
from joulecast.store import open_store
with open_store(sys.argv[1]) as store:
    key = store.campaigns.add("lenet5", "phone", "k", "measured")
    with store.campaigns.claim_run(key):
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
    key = tables.add("lenet5", "phone", "k", "modelled")
    moments = [CampaignProgress(1.0, 3, None), CampaignProgress(2.0, 4, 0.2)]
    with tables.claim_run(key):
        tables.change(key, moments[:1], reason="first")
        tables.change(key, moments[1:], reason="next", left_s=9.0, total=8)
        found = tables.find(key)
    assert list(tables.list_progress(key)) == moments
    assert (found.points, found.uncertainty_share, found.elapsed_s) == (4, 0.2, 2.0)
    assert (found.left_s, found.total, found.reason) == (9.0, 8, "next")
    assert (found.state, found.provenance) == ("running", "modelled")


def test_stop_is_requested_of_running_campaigns_only(tables):
    key = tables.add("lenet5", "phone", "k", "measured")
    with tables.claim_run(key):
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
        keys = [store.campaigns.add(name, "phone", "k", "measured") for name in ("a", "b")]
        assert [one.key for one in store.campaigns.list_all()] == keys[::-1]
