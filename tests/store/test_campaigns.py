"""Campaigns, fleets and claims of a store, in SQLite and PostgreSQL."""

import errno
import fcntl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from joulecast.store import open_store
from joulecast.store.campaigns import CampaignProgress
from joulecast.store.claims import FileClaims
from joulecast.store.database import Database
from joulecast.system.errors import MissingError

KILLED = """
import os, sys
from joulecast.store import open_store
with open_store(sys.argv[1]) as store:
    with store.campaigns.add("lenet5", "phone", "k", "measured") as key:
        print(key, flush=True)
        os._exit(9)
"""
PAYLOAD = {"network": "lenet5", "points": 4}
RUN = ("lenet5", "phone", "k", "measured")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def store(place):
    times = iter(range(1000))
    with open_store(place, now=lambda: float(next(times))) as opened:
        opened.fleet.replace_devices({"a": {"address": "http://a"}, "b": {"address": "http://b"}})
        yield opened


# -- campaigns and evaluations ------------------------------------------------------------------


def test_progress_is_kept_and_only_running_campaigns_can_be_stopped(store):
    tables = store.campaigns
    moments = [CampaignProgress(1.0, 3, None), CampaignProgress(2.0, 4, 0.2)]
    with tables.add("first", "phone", "k", "measured"):
        pass
    with tables.add("lenet5", "phone", "k", "modelled") as key:
        tables.change(key, moments[:1], reason="first")
        tables.change(key, moments[1:], reason="next", left_s=9.0, total=8)
        found = tables.find(key)
        assert not tables.is_stop_requested(key)
        assert tables.request_stop(key).is_stop_requested and tables.is_stop_requested(key)
    assert list(tables.list_progress(key)) == moments
    assert (found.points, found.uncertainty_share, found.elapsed_s) == (4, 0.2, 2.0)
    assert (found.left_s, found.total, found.reason) == (9.0, 8, "next")
    assert (found.state, found.provenance) == ("running", "modelled")
    tables.finish(key, "stopped", "it was stopped by request")
    for name, part in ((key, "has ended"), ("none", "no such campaign")):
        with pytest.raises(MissingError, match=part):
            tables.request_stop(name)
    assert [one.name for one in tables.list_all()] == ["lenet5", "first"]


def test_campaign_whose_process_was_killed_is_not_called_running(place, store):
    command = [sys.executable, "-c", KILLED, place]
    key = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    # A server notices the end of a connection when it gets to it.
    limit_s = time.monotonic() + 60.0
    while (found := store.campaigns.find(key)).is_running and time.monotonic() < limit_s:
        time.sleep(0.02)
    assert store.campaigns.list_all() == (found,)
    assert (found.key, found.state) == (key, "interrupted") and "resumes" in found.reason
    # Readers at the same time do not take each other for the campaign.
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: store.campaigns.find(key).state, range(20)))
    assert set(states) == {"interrupted"}


def test_readers_see_a_campaign_as_running_from_its_first_moment(place, store, monkeypatch):
    """Readers look between all steps of adding it; before, one could take its claim."""
    seen, execute = [], Database.execute

    def execute_and_look(self, statement):
        execute(self, statement)
        seen.extend(one.state for one in other.campaigns.list_all())

    with open_store(place) as other:
        monkeypatch.setattr(Database, "execute", execute_and_look)
        with store.campaigns.add(*RUN) as key:
            assert other.campaigns.find(key).state == "running"
            assert store.campaigns.find(key).state == "running"
        assert seen == ["running"]
        assert other.campaigns.find(key).state == "interrupted"


def test_campaign_in_memory_is_running():
    with open_store(":memory:") as memory, memory.campaigns.add(*RUN) as key:
        assert memory.campaigns.find(key).is_running


def test_evaluation_replaces_the_earlier_one_of_its_name(store):
    for name, mape in (("a", 5), ("b", 6), ("a", 4), ("b", 6)):
        store.evaluations.save(name, "k", {"mape": mape})
    found = [(one.name, one.payload) for one in store.evaluations.list_all()]
    assert found == [("a", {"mape": 4}), ("b", {"mape": 6})]


# -- fleets -------------------------------------------------------------------------------------


def test_devices_keep_what_is_known_when_the_file_is_read_again(store):
    tables = store.fleet
    tables.add_request("lenet5", PAYLOAD, ["a", "b"])
    tables.change_device("a", "ready", profile_key="k", description="a phone")
    tables.replace_devices({"a": {"address": "http://new"}, "c": {}})
    first, second = tables.list_devices()
    assert (first.name, first.payload, first.state) == ("a", {"address": "http://new"}, "ready")
    assert (first.profile_key, first.description) == ("k", "a phone")
    assert (second.name, second.state, second.profile_key) == ("c", "away", "")
    tables.change_device("a", "parked", "it is gone")
    assert tables.list_devices()[0].profile_key == "k"
    # A device that leaves the fleet takes its campaigns along.
    assert [one.device for one in tables.list_campaigns()] == ["a"]


def test_request_that_is_made_again_continues_or_starts_anew(store):
    tables = store.fleet
    key = tables.add_request("lenet5", PAYLOAD, ["a", "b"])
    assert tables.load_request(key) == PAYLOAD
    tables.change_campaign(key, "a", state="done", points=4, elapsed_s=9.0)
    tables.change_campaign(key, "b", state="running", points=2, elapsed_s=5.0)
    assert tables.add_request("lenet5", PAYLOAD, ["a", "b"]) == key
    running, again = tables.list_campaigns(key)
    assert (again.device, again.state, again.points, again.elapsed_s) == ("a", "waiting", 0, 0.0)
    assert (running.state, running.points, running.elapsed_s) == ("running", 2, 5.0)
    assert running.name == "lenet5" and running.is_open
    second = tables.add_request("cnn5", {**PAYLOAD, "points": 9}, ["b"])
    tables.change_campaign(second, "b", state="done", reason="it is known well enough")
    assert [one.request_key for one in tables.list_campaigns()] == [key, key, second]
    (done,) = tables.list_campaigns(states=("done",))
    assert (done.name, done.reason, done.is_open) == ("cnn5", "it is known well enough", False)


# -- claims -------------------------------------------------------------------------------------


def test_claims_exclude_threads_and_other_stores(place, store):
    tables = store.fleet
    with open_store(place) as other:
        assert not other.fleet.is_up()
        with tables.claim_fleet() as first, tables.claim_fleet() as second:
            assert (first, second) == (True, False)
            assert other.fleet.is_up()
        assert not other.fleet.is_up()
        with tables.claim_device("a", 0.0) as one, tables.claim_device("b", 0.0) as two:
            with other.fleet.claim_device("a", 0.0) as held:
                assert (one, two, held) == (True, True, False)
            with tables.claim_device("a", 0.0) as held:
                assert not held
        with other.fleet.claim_device("a", 0.0) as held:
            assert held


def test_claims_of_a_server_share_one_connection(postgres_url):
    with open_store(postgres_url) as store, open_store(postgres_url) as other:
        with ExitStack() as held:
            names = map(str, range(40))
            assert all(held.enter_context(store.fleet.claim_device(name, 0.0)) for name in names)
            assert store.database.engine.pool.checkedout() == 1
            with other.fleet.claim_device("7", 0.0) as is_held:
                assert not is_held
        assert store.database.engine.pool.checkedout() == 0


def test_claims_survive_restarts_of_the_server(postgres_server, postgres_url):
    with open_store(postgres_url) as store, open_store(postgres_url) as other:
        store.fleet.renew_claims()
        with store.fleet.claim_fleet() as is_held:
            postgres_server.restart()
            assert is_held and not other.fleet.is_up()
            store.fleet.renew_claims()
            assert other.fleet.is_up()
            # A claim that cannot be released must not hide that the other one is lost.
            with store.fleet.claim_device("a", 0.0):
                postgres_server.restart()
            # The next claim finds out, and holds the earlier ones again.
            with store.fleet.claim_device("b", 0.0) as second:
                assert second and other.fleet.is_up()
        assert not other.fleet.is_up()
        assert store.database.engine.pool.checkedout() == 0


def test_claims_of_files_are_seen_through_links_and_without_being_taken(tmp_path):
    store, link = tmp_path / "store.sqlite", tmp_path / "link.sqlite"
    store.touch()
    link.symlink_to(store)
    claims, linked = FileClaims(store), FileClaims(link)
    assert claims.is_free("ab")
    with claims.hold("ab", 0.0) as first, linked.hold("ab", 0.0) as second:
        assert (first, second) == (True, False)
        assert not linked.is_free("ab") and linked.is_free("cd")
    with linked.hold("ab", 0.0) as held:
        assert held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.sqlite", "store.sqlite"]
    # Another reader that looks at this moment is not taken for the campaign.
    with (tmp_path / "store.sqlite-claim-ab").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert claims.is_free("ab")


def test_file_that_is_removed_before_it_is_locked_is_no_claim(tmp_path, monkeypatch):
    """Its owner released it between the two steps, and the next process makes another one."""
    claims, lock = FileClaims(tmp_path / "store.sqlite"), fcntl.flock

    def remove_and_lock(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "store.sqlite-claim-ab").unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with claims.hold("ab", 0.0) as held:
        assert held and not claims.is_free("ab")


@pytest.mark.parametrize("function", ["os.open", "fcntl.flock"])
def test_claims_that_cannot_be_looked_at_are_not_called_free(monkeypatch, tmp_path, function):
    """The dashboard may belong to a user who cannot read the file, or the drive has no locks."""
    claims = FileClaims(tmp_path / "store.sqlite")
    denied = PermissionError(errno.EACCES, "Permission denied")
    with claims.hold("ab", 0.0):
        monkeypatch.setattr(function, Mock(side_effect=denied))
        assert not claims.is_free("ab")


def test_drive_without_locks_allows_every_claim(monkeypatch, tmp_path):
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=no_locks))
    with FileClaims(tmp_path / "store.sqlite").hold("ab", 0.0) as held:
        assert held
    assert list(tmp_path.iterdir()) == []
