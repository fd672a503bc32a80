"""The coordinator runs every open campaign, one at a time on a device, and parks who stays away."""

from collections import deque

import pytest

from fleet_examples import REQUEST, make_device
from joulecast.errors import StoreError
from joulecast.fleet.cluster import Coordinator
from joulecast.fleet.device_campaign import CampaignOutcome
from joulecast.store import open_store

DONE = CampaignOutcome("done", "4 points are measured")
AWAY = CampaignOutcome("away", "the agent cannot be reached", "away")
DEVICES = (make_device("a"), make_device("b"))


class Attempt:
    def __init__(self, outcome):
        self.outcome = outcome

    def done(self):
        return self.outcome is not None

    def result(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Workers:
    """Workers whose attempts end when a test says so, with outcomes that it lists."""

    def __init__(self, tables, **outcomes):
        self.tables = tables
        self.outcomes = {name: deque(each) for name, each in outcomes.items()}
        self.submitted = []

    def submit(self, device, request_key):
        self.submitted.append((device.name, request_key))
        outcome = self.outcomes[device.name].popleft()
        if isinstance(outcome, CampaignOutcome) and outcome.state == "done":
            self.tables.change_campaign(request_key, device.name, state="done")
        return Attempt(outcome)


@pytest.fixture
def tables(tmp_path):
    with open_store(tmp_path / "store.sqlite") as store:
        store.fleet.replace_devices({one.name: one.to_dict() for one in DEVICES})
        yield store.fleet


class Fleet:
    """A coordinator with a clock that a test advances."""

    def __init__(self, tables, **outcomes):
        self.tables, self.now_s, self.events = tables, 0.0, []
        self.workers = Workers(tables, **outcomes)
        self.coordinator = Coordinator(
            tables,
            DEVICES,
            self.workers.submit,
            patience_s=10.0,
            on_event=lambda event: self.events.append(f"{event.device}: {event.text}"),
            now=lambda: self.now_s,
        )

    def pass_time(self, seconds):
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            self.coordinator.step()

    @property
    def states(self):
        return {one.device: one.state for one in self.tables.list_campaigns()}


def add(tables, name="lenet5", devices=("a", "b"), **values):
    return tables.add_request(name, {**REQUEST.to_dict(), **values}, devices)


def test_all_devices_run_at_once_and_each_runs_one_campaign_at_a_time(tables):
    first, second = add(tables, points=1), add(tables, points=2)
    running = Attempt(None)
    fleet = Fleet(tables, a=[None, DONE], b=[DONE, DONE])
    fleet.workers.submit, submit = None, fleet.workers.submit
    fleet.coordinator._submit = lambda device, key: (
        running if device.name == "a" and key == first else submit(device, key)
    )
    fleet.pass_time(2)
    # Device a is still busy with its first campaign.
    assert fleet.workers.submitted == [("b", first), ("b", second)]
    tables.change_campaign(first, "a", state="done")
    running.outcome = DONE
    fleet.workers.outcomes["a"] = deque([DONE])
    fleet.pass_time(2)
    assert fleet.workers.submitted[2:] == [("a", second)]
    assert set(fleet.states.values()) == {"done"}


def test_device_that_is_away_is_tried_again_with_longer_pauses(tables):
    add(tables, devices=["a"])
    fleet = Fleet(tables, a=[AWAY, AWAY, DONE])
    fleet.pass_time(1)
    assert fleet.states == {"a": "away"}
    assert [one.state for one in tables.list_devices()] == ["away", "away"]
    fleet.pass_time(9)
    assert fleet.states == {"a": "done"}
    assert fleet.events == [
        "a: profiling lenet5",
        "a: away: the agent cannot be reached",
        "a: lenet5 is profiled: 4 points are measured",
    ]


def test_device_that_stays_away_is_parked_and_goes_on_when_it_is_back(tables):
    add(tables)
    fleet = Fleet(tables, a=[AWAY] * 6 + [DONE], b=[DONE])
    fleet.pass_time(40)
    assert fleet.states == {"a": "parked", "b": "done"}
    parked = tables.list_devices()[0]
    assert (parked.state, parked.reason) == ("parked", "the agent cannot be reached")
    assert fleet.events.count("a: parked: the agent cannot be reached") == 1
    tries = len(fleet.workers.submitted)
    assert tries <= 7, "it is tried less and less often"
    fleet.pass_time(130)
    assert fleet.states == {"a": "done", "b": "done"}


def test_coordinator_that_was_killed_goes_on_with_open_campaigns(tables):
    key = add(tables)
    tables.change_campaign(key, "a", state="running")
    tables.change_campaign(key, "b", state="parked")
    fleet = Fleet(tables, a=[DONE], b=[DONE])
    fleet.pass_time(1)
    assert fleet.states == {"a": "done", "b": "done"}


def test_failure_is_told_once_and_not_repeated(tables):
    add(tables, devices=["a"])
    fleet = Fleet(tables, a=[CampaignOutcome("failed", "the token is wrong", "refused")])
    fleet.pass_time(5)
    assert fleet.states == {"a": "failed"}
    assert fleet.events[1:] == ["a: failed: the token is wrong"]


def test_store_that_is_away_is_waited_for(tables):
    add(tables, devices=["a"])
    fleet = Fleet(tables, a=[StoreError("the server does not answer"), DONE])
    fleet.pass_time(5)
    assert fleet.states == {"a": "done"}


def test_bug_in_a_campaign_fails_it_and_leaves_the_others(tables):
    add(tables)
    fleet = Fleet(tables, a=[TypeError("no such argument")], b=[DONE])
    fleet.pass_time(5)
    assert fleet.states == {"a": "failed", "b": "done"}
    assert "a: failed: TypeError: no such argument" in fleet.events


def test_request_for_a_device_of_another_fleet_is_left_alone(tables):
    tables.replace_devices({name: {} for name in ("a", "b", "c")})
    add(tables, devices=["c"])
    fleet = Fleet(tables)
    fleet.pass_time(2)
    assert fleet.workers.submitted == [] and fleet.states == {"c": "waiting"}
