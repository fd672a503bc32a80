"""The fleet of a store, in SQLite and PostgreSQL."""

import pytest

from joulecast.store import open_store

PAYLOAD = {"network": "lenet5", "points": 4}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def tables(place):
    with open_store(place) as store:
        store.fleet.replace_devices({"a": {"address": "http://a"}, "b": {"address": "http://b"}})
        yield store.fleet


def list_states(tables):
    return {one.device: one.state for one in tables.list_campaigns()}


def test_devices_keep_what_is_known_when_the_file_is_read_again(tables):
    tables.change_device("a", "ready", profile_key="k", description="a phone")
    tables.replace_devices({"a": {"address": "http://new"}, "c": {}})
    first, second = tables.list_devices()
    assert (first.name, first.payload, first.state) == ("a", {"address": "http://new"}, "ready")
    assert (first.profile_key, first.description) == ("k", "a phone")
    assert (second.name, second.state, second.profile_key) == ("c", "away", "")
    tables.change_device("a", "parked", "it is gone")
    assert tables.list_devices()[0].profile_key == "k"


def test_device_that_leaves_the_fleet_takes_its_campaigns_along(tables):
    tables.add_request("lenet5", PAYLOAD, ["a", "b"])
    tables.replace_devices({"b": {}})
    assert list_states(tables) == {"b": "waiting"}


def test_request_that_is_made_again_continues_or_starts_anew(tables):
    key = tables.add_request("lenet5", PAYLOAD, ["a", "b"])
    assert tables.load_request(key) == PAYLOAD
    tables.change_campaign(key, "a", state="done", points=4, elapsed_s=9.0)
    tables.change_campaign(key, "b", state="running", points=2, elapsed_s=5.0)
    assert tables.add_request("lenet5", PAYLOAD, ["a", "b"]) == key
    assert list_states(tables) == {"a": "waiting", "b": "running"}
    again, running = tables.list_campaigns(key)[::-1]
    if again.device == "b":
        again, running = running, again
    assert (again.points, again.elapsed_s) == (0, 0.0)
    assert (running.points, running.elapsed_s) == (2, 5.0)
    assert running.name == "lenet5" and running.is_open


def test_campaigns_are_listed_by_request_and_state(tables):
    first = tables.add_request("lenet5", PAYLOAD, ["a"])
    second = tables.add_request("cnn5", {**PAYLOAD, "points": 9}, ["a", "b"])
    tables.change_campaign(second, "b", state="done", reason="it is known well enough")
    assert [one.request_key for one in tables.list_campaigns()] == [first, second, second]
    assert [one.device for one in tables.list_campaigns(second)] == ["a", "b"]
    (done,) = tables.list_campaigns(states=("done",))
    assert (done.name, done.reason, done.is_open) == ("cnn5", "it is known well enough", False)


def test_claims_exclude_threads_and_other_stores(place, tables):
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
        held = [store.fleet.claim_device(str(number), 0.0) for number in range(40)]
        assert all(one.__enter__() for one in held)
        assert store._database._engine.pool.checkedout() == 1
        with other.fleet.claim_device("7", 0.0) as is_held:
            assert not is_held
        for one in held:
            one.__exit__(None, None, None)
        assert store._database._engine.pool.checkedout() == 0


def test_claims_survive_a_restart_of_the_server(postgres_server, postgres_url):
    with open_store(postgres_url) as store, store.fleet.claim_device("a", 0.0) as first:
        postgres_server.stop()
        postgres_server.start()
        # The next claim finds out, and holds the earlier ones again.
        with (
            store.fleet.claim_device("b", 0.0) as second,
            open_store(postgres_url) as other,
            other.fleet.claim_device("a", 0.0) as third,
        ):
            assert (first, second, third) == (True, True, False)
        with open_store(postgres_url) as other, other.fleet.claim_device("b", 0.0) as free:
            assert free


def test_coordinator_claims_again_what_a_restarted_server_forgot(postgres_server, postgres_url):
    with open_store(postgres_url) as store, open_store(postgres_url) as other:
        store.fleet.renew_claims()
        with store.fleet.claim_fleet() as is_held:
            postgres_server.stop()
            postgres_server.start()
            assert is_held and not other.fleet.is_up()
            store.fleet.renew_claims()
            assert other.fleet.is_up()
            # A claim that cannot be released must not hide that the other one is lost.
            with store.fleet.claim_device("a", 0.0):
                postgres_server.stop()
                postgres_server.start()
            store.fleet.renew_claims()
            assert other.fleet.is_up()
        assert not other.fleet.is_up()
        assert store._database._engine.pool.checkedout() == 0
