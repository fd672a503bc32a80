"""A campaign of a device ends where it should, whatever interrupts it."""

from dataclasses import replace

import pytest

from fleet_examples import NETWORKS, REQUEST, AgentHere, make_device
from joulecast.errors import (
    DeviceAwayError,
    InputError,
    MeasurementError,
    MeterLostError,
    StoreError,
)
from joulecast.fleet.device_campaign import RequestNames, run_device_campaign
from joulecast.meters.simulated import SimulatedMeter
from joulecast.store import open_store

PHONE = make_device()


class Killed(BaseException):
    """What a worker does not survive."""


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        opened.fleet.replace_devices({PHONE.name: PHONE.to_dict()})
        yield opened


def request_campaign(store, request=REQUEST):
    return store.fleet.add_request("lenet5", request.to_dict(), [PHONE.name])


def list_stored(store):
    (device,) = store.fleet.list_devices()
    return store.load_observations(device.profile_key)


def run(store, agent, key):
    return run_device_campaign(store, PHONE, key, agent.open)


def test_campaign_leaves_a_profile_with_a_fit(store):
    agent, key = AgentHere(), request_campaign(store)
    assert run(store, agent, key).state == "done"
    (campaign,) = store.fleet.list_campaigns()
    assert (campaign.state, campaign.reason) == ("done", "4 networks were measured")
    assert campaign.elapsed_s > 0
    (device,) = store.fleet.list_devices()
    profile = store.load_profile(device.profile_key)
    assert device.state == "ready" and "constant" in profile.fits
    assert len(profile.observations) == agent.measured
    assert len({one.run for one in profile.observations}) == 1


@pytest.mark.parametrize("moment", range(1, 6))
def test_worker_that_is_killed_before_it_stores_an_answer_loses_and_doubles_nothing(store, moment):
    agent, key, seen = AgentHere(), request_campaign(store), []

    def kill_once(_agent):
        seen.append(1)
        if len(seen) == moment:
            raise Killed

    agent.fails = kill_once
    with pytest.raises(Killed):
        run(store, agent, key)
    before = list_stored(store) if moment > 1 else ()
    assert len(before) == moment - 1 and agent.measured == moment
    assert run(store, agent, key).state == "done"
    after = list_stored(store)
    assert after[: len(before)] == before
    # The answer that was on its way is there, and was not measured again.
    assert len(after) == agent.measured
    loads = [one.trial.key for one in after if one.trial.network.layers]
    assert len(loads) == len(set(loads))


@pytest.mark.parametrize("error", [DeviceAwayError, MeterLostError])
def test_device_or_meter_that_vanishes_is_waited_for(store, error, monkeypatch):
    agent, key = AgentHere(), request_campaign(store)

    def vanish(here):
        if here.measured == 2:
            raise error("it is gone: plug it in")

    agent.fails = vanish
    outcome = run(store, agent, key)
    assert (outcome.state, outcome.device_state) == ("away", "away")
    assert outcome.reason == "it is gone: plug it in"
    (campaign,) = store.fleet.list_campaigns()
    assert campaign.is_open
    (device,) = store.fleet.list_devices()
    assert (device.state, device.reason) == ("away", "it is gone: plug it in")
    agent.fails = None
    assert run(store, agent, key).state == "done"
    assert len(list_stored(store)) == agent.measured


def test_meter_that_vanishes_on_the_device_is_named_here_and_no_trial_is_left_out(store):
    agent, key = AgentHere(), request_campaign(store)
    with pytest.MonkeyPatch.context() as patch:
        stop = SimulatedMeter._stop

        def vanish(meter):
            if agent.measured == 2:
                raise MeasurementError("a hwmon sensor can no longer be read: check its driver")
            return stop(meter)

        patch.setattr(SimulatedMeter, "_stop", vanish)
        outcome = run(store, agent, key)
    assert outcome.state == "away" and outcome.reason.endswith("check its driver")
    before = list_stored(store)
    assert len(before) == 2
    assert run(store, agent, key).state == "done"
    after = list_stored(store)
    assert after[:2] == before and not any(one.refusal for one in after)
    assert {one.trial.network for one in after} >= set(NETWORKS)


def test_time_of_earlier_attempts_counts(store):
    agent, key = AgentHere(), request_campaign(store, replace(REQUEST, seconds=8.0))
    store.fleet.change_campaign(key, PHONE.name, elapsed_s=7.9)
    assert run(store, agent, key).state == "done"
    # One trial and the idle device: the rest of the time is not enough for more.
    assert agent.measured == 2


def test_wrong_token_is_a_failure_with_its_reason(store):
    def refuse(_device):
        raise InputError("the agent refuses the token: give both the same one")

    key = request_campaign(store)
    outcome = run_device_campaign(store, PHONE, key, refuse)
    assert (outcome.state, outcome.device_state) == ("failed", "refused")
    (campaign,) = store.fleet.list_campaigns()
    assert campaign.state == "failed" and "token" in campaign.reason
    assert store.fleet.list_devices()[0].state == "refused"


def test_campaign_that_fails_says_why_and_the_device_stays_ready(store):
    agent = AgentHere()
    outcome = run(store, agent, request_campaign(store, replace(REQUEST, members=())))
    assert (outcome.state, outcome.device_state) == ("failed", "ready")
    assert outcome.reason.startswith("no step with energy")
    assert store.fleet.list_campaigns()[0].reason == outcome.reason


def test_only_one_program_measures_on_a_device(store, monkeypatch):
    monkeypatch.setattr("joulecast.fleet.device_campaign._CLAIM_WAIT_S", 0.0)
    agent, key = AgentHere(), request_campaign(store)
    with store.fleet.claim_device(PHONE.name, 0.0):
        outcome = run(store, agent, key)
    assert outcome.state == "away" and "another program" in outcome.reason
    assert agent.measured == 0


def test_finished_campaign_is_not_run_again(store):
    agent, key = AgentHere(), request_campaign(store)
    run(store, agent, key)
    count = agent.measured
    assert run(store, agent, key).state == "done" and agent.measured == count


def test_error_of_the_store_is_not_blamed_on_the_device(store, monkeypatch):
    def fail(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "add_observation", fail)
    with pytest.raises(StoreError):
        run(store, AgentHere(), request_campaign(store))
    assert store.fleet.list_devices()[0].state == "ready"


def test_successor_names_requests_like_the_worker_before_it(store):
    agent, key = AgentHere(), request_campaign(store)
    run(store, agent, key)
    stored = list_stored(store)
    run_id, trial = stored[0].run, stored[0].trial
    first = RequestNames(run_id, []).make_id("measure", trial)
    after = RequestNames(run_id, stored).make_id("measure", trial)
    again = RequestNames(run_id, stored).make_id("measure", trial)
    assert first != after == again
    assert RequestNames("other", stored).make_id("measure", trial) not in (first, after)
