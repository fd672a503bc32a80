"""Trials that contradict earlier observations are repeated, refusals and failures noted."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from joulecast.campaign.trial_log import TrialLog
from joulecast.errors import DeviceAwayError, DeviceLostError, MeterLostError, OutOfMemoryError
from joulecast.families import make_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from memory_log import MemoryLog

TRIAL = Trial(make_family("lenet5:4,6,24,16"), Setup(batch=10))


@pytest.fixture
def measurer():
    device = make_simulated_device(5)
    clock = MeasureClock(device.now, device.sleep, device.now)
    with make_measurer(SimulatedRuntime(device), SimulatedMeter(device), clock=clock) as opened:
        yield opened


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


def test_error_that_loses_the_device_is_stored_and_raised(measurer, monkeypatch):
    def fail(self, trial):
        raise RuntimeError("forward() fails") from RuntimeError("CUDA error: an illegal access")

    monkeypatch.setattr(SimulatedRuntime, "prepare", fail)
    trials = TrialLog(measurer, MemoryLog(), [])
    with pytest.raises(DeviceLostError, match="run the same command again"):
        trials.measure(TRIAL, True, "conv2d fp32")
    assert [one.trial for one in trials.log.observations] == [TRIAL]


def test_lack_of_memory_does_not_lose_the_device(measurer, monkeypatch):
    def fail(self, trial):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(SimulatedRuntime, "prepare", fail)
    assert TrialLog(measurer, MemoryLog(), []).measure(TRIAL, True, "large") is None


# ---------------------------------------------------------------------------------------------
# Two campaigns with one store


@pytest.fixture
def stores(tmp_path):
    """Yield a store that was opened twice, as by two processes."""
    place, shipped = tmp_path / "store.sqlite", Path(os.devnull) / "nothing"
    with open_store(place, shipped=shipped) as one, open_store(place, shipped=shipped) as other:
        yield one, other


def test_trial_that_another_campaign_measured_is_taken_over(measurer, stores):
    first, second = (TrialLog(measurer, store, []) for store in stores)
    seen = first.measure(TRIAL, with_energy=True, reason="first")
    assert second.measure(TRIAL, with_energy=True, reason="second") == seen
    assert (first.new, second.new) == (1, 0)
    assert second.stored == second.believed == [seen]
    # A trial that is known is repeated on request.
    assert second.measure(TRIAL, with_energy=True, reason="again") != seen
    assert second.new == 1


def test_time_of_another_campaign_is_no_energy(measurer, stores):
    first, second = (TrialLog(measurer, store, []) for store in stores)
    timed = first.measure(TRIAL, with_energy=False, reason="first")
    seen = second.measure(TRIAL, with_energy=True, reason="second")
    assert seen.energy_j is not None
    assert second.believed == [timed, seen]


def test_time_and_energy_of_another_campaign_are_both_taken_over(measurer, stores):
    first, second = (TrialLog(measurer, store, []) for store in stores)
    timed = first.measure(TRIAL, with_energy=False, reason="time")
    metered = first.measure(TRIAL, with_energy=True, reason="energy")
    assert second.measure(TRIAL, with_energy=False, reason="time") == timed
    assert second.measure(TRIAL, with_energy=True, reason="energy") == metered
    assert second.new == 0


def test_refusal_of_another_campaign_is_taken_over(measurer, stores):
    first, second = (TrialLog(measurer, store, []) for store in stores)
    refusal = measurer.make_refusal(TRIAL, "it needs 9 GiB")
    stores[0].add_observation(refusal)
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
