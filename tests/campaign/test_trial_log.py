"""Trials that contradict earlier observations are repeated, refusals and failures noted."""

from dataclasses import replace

import pytest

from joulecast.campaign.trial_log import TrialLog
from joulecast.errors import DeviceLostError, OutOfMemoryError
from joulecast.families import make_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
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
