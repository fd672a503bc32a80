"""Trials are claimed, stored, repeated and refused; campaigns are recorded; energies come later."""

import os
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_examples import SMALL, MemoryLog, make_simulated_measurer
from joulecast.campaign import find_profile_key, run_campaign
from joulecast.campaign.trial_log import (
    TrialLog,
    add_stand_in,
    describe_profile,
    drop_energy,
    list_doubtful,
    record_campaign,
    repeat_doubtful,
)
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.families import make_family
from joulecast.features.measurers import MeasureOptions, open_any_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.operators import make_layer
from joulecast.records import Device, Setup, Trial
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.system.errors import (
    DeviceAwayError,
    DeviceLostError,
    InputError,
    MeasurementError,
    MeterLostError,
    OutOfMemoryError,
)
from joulecast.variants import Block, make_isolated_trial

TRIAL = Trial(SMALL.network, SMALL.setup)


def slow_down(observation, factor):
    """Return an observation that a long disturbance spoilt: its windows agree, but are wrong."""
    return replace(observation, duration_s=factor * observation.duration_s)


def test_contradiction_is_settled_by_measuring_again(measurer):
    true = measurer.time(TRIAL)
    trials = TrialLog(measurer, MemoryLog(), [slow_down(true, 4.0)])
    seen = trials.measure(TRIAL, with_energy=False, reason="again")
    assert seen.duration_s == pytest.approx(true.duration_s, rel=0.2)
    assert len(trials.log.observations) == 2
    assert [one.duration_s for one in trials.believed] == pytest.approx(
        [true.duration_s] * 2, rel=0.2
    )
    assert trials.new == 1


def test_energy_that_agrees_with_an_earlier_time_is_measured_once(measurer):
    trials = TrialLog(measurer, MemoryLog(), [measurer.time(TRIAL)])
    trials.measure(TRIAL, with_energy=True, reason="energy")
    assert len(trials.log.observations) == 1
    assert len(trials.believed) == 2


def test_refusal_is_noted_and_stored_on_request(measurer, monkeypatch):
    def refuse(self, trial):
        raise OutOfMemoryError("it needs 9 GiB")

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    passing, keeping = (
        TrialLog(measurer, MemoryLog(), []),
        TrialLog(measurer, MemoryLog(), [], True),
    )
    for trials in (passing, keeping):
        assert trials.measure(TRIAL, True, "conv2d fp32") is None
        assert trials.skipped == ["conv2d fp32: it needs 9 GiB"]
        assert [one.refusal for one in trials.refused] == ["it needs 9 GiB"]
    assert passing.log.observations == []
    (stored,) = keeping.log.observations
    assert (stored.trial, stored.refusal, stored.duration_s) == (TRIAL, "it needs 9 GiB", None)
    again = TrialLog(measurer, MemoryLog(), [stored])
    assert again.believed == []
    assert again.refused == [stored]


@pytest.mark.parametrize("error", [DeviceAwayError, MeterLostError])
def test_trial_is_not_blamed_for_an_agent_or_meter_that_is_gone(measurer, monkeypatch, error):
    def vanish(self):
        raise error("it is gone")

    trials = TrialLog(measurer, MemoryLog(), [], keeps_refusals=True)
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedMeter, "end", vanish)
        with pytest.raises(error):
            trials.measure(TRIAL, True, "conv2d fp32")
    assert trials.refused == [] and trials.skipped == [] and trials.log.observations == []
    assert trials.measure(TRIAL, True, "conv2d fp32").energy_j > 0


@pytest.mark.parametrize(
    ("message", "is_lost"), [("an illegal access", True), ("out of memory", False)]
)
def test_error_that_loses_the_device_is_stored_and_raised(measurer, monkeypatch, message, is_lost):
    def fail(self, trial):
        raise RuntimeError("forward() fails") from RuntimeError(f"CUDA error: {message}")

    monkeypatch.setattr(SimulatedRuntime, "prepare", fail)
    trials = TrialLog(measurer, MemoryLog(), [])
    with pytest.raises(DeviceLostError) if is_lost else nullcontext():
        assert trials.measure(TRIAL, True, "conv2d fp32") is None
    assert [one.trial for one in trials.log.observations] == [TRIAL] * is_lost


# -- two campaigns with one store ---------------------------------------------------------------


@pytest.fixture
def stores(tmp_path):
    """Yield a store that was opened twice, as by two processes."""
    place, shipped = tmp_path / "store.sqlite", Path(os.devnull) / "nothing"
    with open_store(place, shipped=shipped) as one, open_store(place, shipped=shipped) as other:
        yield one, other


@pytest.fixture
def logs(measurer, stores):
    """Two campaigns with one store."""
    return [TrialLog(measurer, store, []) for store in stores]


def test_trial_that_another_campaign_measured_is_taken_over(logs):
    first, second = logs
    timed = first.measure(TRIAL, with_energy=False, reason="time")
    metered = first.measure(TRIAL, with_energy=True, reason="energy")
    assert second.measure(TRIAL, with_energy=False, reason="time") == timed
    assert second.measure(TRIAL, with_energy=True, reason="energy") == metered
    assert (first.new, second.new) == (2, 0)
    assert second.stored == second.believed == [timed, metered]
    # A trial that is known is repeated on request.
    assert second.measure(TRIAL, with_energy=True, reason="again") != metered
    assert second.new == 1


def test_time_of_another_campaign_is_no_energy(logs):
    first, second = logs
    timed = first.measure(TRIAL, with_energy=False, reason="first")
    seen = second.measure(TRIAL, with_energy=True, reason="second")
    assert seen.energy_j is not None
    assert second.believed == [timed, seen]


def test_refusal_of_another_campaign_is_taken_over(measurer, logs):
    first, second = logs
    refusal = measurer.make_refusal(TRIAL, "it needs 9 GiB")
    first.log.add_observation(refusal)
    assert second.measure(TRIAL, with_energy=True, reason="second") is None
    assert second.refused == [refusal]
    assert second.believed == second.skipped == first.refused == []


def test_campaign_waits_for_the_trial_that_another_one_measures(measurer, stores):
    seen = measurer.time(TRIAL)
    trials, measured = TrialLog(measurer, stores[1], []), threading.Event()

    def measure_slowly():
        with stores[0].claim_trial(seen):
            measured.set()
            time.sleep(0.3)
            stores[0].add_observation(seen)

    other = threading.Thread(target=measure_slowly)
    other.start()
    measured.wait()
    assert trials.measure(TRIAL, with_energy=False, reason="left to it", waits=False) is None
    assert trials.measure(TRIAL, with_energy=False, reason="waited for") == seen
    other.join()
    assert trials.new == 0


# -- doubtful observations ----------------------------------------------------------------------


@pytest.fixture
def observations(measurer):
    trials = [
        make_isolated_trial(
            Block("hidden", (make_layer("linear", cin=64 + 24 * at, cout=128),)), Setup(), "graph"
        )
        for at in range(20)
    ]
    return [measurer.time(trial) for trial in trials]


def change_one(observations, **change):
    """Return the observations, one of which is six times as slow, or what else is asked for."""
    slow = {"duration_s": 6 * observations[7].duration_s}
    odd = replace(observations[7], **(change or slow))
    return [*observations[:7], odd, *observations[8:]]


def test_slow_observation_is_repaired_and_not_doubted_again(measurer, observations):
    true = observations[7]
    assert list_doubtful(observations, "") == []
    trials = TrialLog(measurer, MemoryLog(), change_one(observations))
    assert repeat_doubtful(trials) == 1
    believed = [one for one in trials.believed if one.trial == true.trial]
    assert len(believed) == 2
    assert all(one.duration_s == pytest.approx(true.duration_s, rel=0.1) for one in believed)
    assert trials.new == 0
    assert repeat_doubtful(trials) == 0


def test_windows_that_disagreed_are_doubted(observations):
    sd_s = 0.5 * observations[7].duration_s
    unsure = change_one(observations, duration_sd_s=sd_s, count=3)[:8]
    assert list_doubtful(unsure, "") == [unsure[7]]


def test_slow_observations_that_agree_or_are_of_another_unit_are_not_doubted(observations):
    """Two measurements that agree are believed, whatever their neighbours say."""
    slow = change_one(observations)
    assert list_doubtful([*slow, slow[7]], "") == []
    slow[7] = replace(slow[7], device=Device("x", unit="b"))
    assert list_doubtful(slow, "") == []


def test_number_of_repeats_is_limited(measurer, observations):
    spread = [replace(one, duration_sd_s=one.duration_s, count=3) for one in observations]
    trials = TrialLog(measurer, MemoryLog(), spread)
    assert repeat_doubtful(trials, most=4) == 4
    assert len(trials.log.observations) == 4


# -- records of campaigns -----------------------------------------------------------------------


def run_small(store, on_progress=None, **limits):
    with make_simulated_measurer() as measurer:
        estimator = find_estimator("subtractive")
        return run_campaign(measurer, store, estimator, SMALL, on_progress=on_progress, **limits)


def test_campaign_is_visible_while_it_runs_and_when_it_is_done(store):
    seen = []
    result = run_small(store, lambda now: seen.append(store.campaigns.list_all()[0]), points=6)
    assert {one.state for one in seen} == {"running"}
    (done,) = store.campaigns.list_all()
    assert (done.state, done.reason) == ("done", "6 points are measured")
    assert (done.name, done.provenance) == (SMALL.network.name, "simulated")
    assert (done.points, done.profile_key) == (6, result.profile_key)
    moments = store.campaigns.list_progress(done.key)
    assert moments[-1].points == 6 and len(moments) == len(seen)
    assert [one.elapsed_s for one in moments] == sorted(one.elapsed_s for one in moments)


def test_campaign_ends_by_request_and_is_fitted_as_if_its_time_were_over(store):
    def stop_at_four(now):
        if now.points == 4:
            store.campaigns.request_stop(store.campaigns.list_all()[0].key)

    result = run_small(store, stop_at_four, points=50)
    assert result.stopped == "it was stopped by request"
    assert result.points == 5
    (record,) = store.campaigns.list_all()
    assert record.state == "stopped"
    assert store.load_fit(result.profile_key, "subtractive") is not None
    # Another run starts without the request.
    assert run_small(store, points=8).points == 8


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (MeasurementError("the device is gone"), "failed", "the device is gone"),
        (ZeroDivisionError("oops"), "failed", "ZeroDivisionError: oops"),
        (KeyboardInterrupt(), "interrupted", "it was interrupted"),
    ],
)
def test_error_that_ends_a_campaign_is_recorded(store, error, state, reason):
    profile = describe_profile(make_simulated_measurer())
    with pytest.raises(type(error)), record_campaign(store, profile, "net"):
        raise error
    (found,) = store.campaigns.list_all()
    assert (found.state, found.reason) == (state, reason)


def test_campaign_of_another_storage_is_not_recorded():
    profile = describe_profile(make_simulated_measurer())
    with record_campaign(MemoryLog(), profile, "net") as record:
        assert record.key == "" and not record.is_stop_requested()
        assert not record.is_stop_requested()


# -- energies that come later -------------------------------------------------------------------

TARGET = Target(make_family("lenet5:4,8,16,16"), Setup(batch=8))
OPTIONS = MeasureOptions(on="simulated:7", meter="later")


def run_guided(store, points):
    with open_any_measurer(OPTIONS, allows_later=True) as measurer:
        result = run_campaign(measurer, store, find_estimator("additive"), TARGET, points=points)
        return result, find_profile_key(measurer)


def test_campaign_stores_windows_and_neither_energies_nor_fits_and_resumes(store):
    result, key = run_guided(store, 12)
    profile = store.load_profile(key)
    recorded = [one for one in profile.observations if one.is_pending]
    assert result.new <= len(profile.observations)
    assert len(recorded) > result.new / 2
    assert all(one.energy_j is None for one in profile.observations)
    assert all(one.pulses for one in recorded if one.trial.network.layers)
    assert dict(profile.fits) == {}
    again, _ = run_guided(store, 12)
    assert (again.new, again.points) == (0, result.points)
    # The energy that stands in is as uncertain as the time.
    one = next(one for one in store.load_observations(key) if one.pulses)
    guided = add_stand_in(one)
    assert guided.energy_sd_j / guided.energy_j == one.duration_sd_s / one.duration_s
    assert drop_energy(guided) == one


def test_commands_that_need_the_energy_now_refuse_the_recorder():
    with pytest.raises(InputError, match="joulecast profile NET"):
        open_any_measurer(OPTIONS)
