"""Doubtful observations are measured again, on the unit at hand and not for ever."""

from dataclasses import replace

import pytest

from joulecast.campaign.trial_log import TrialLog, list_doubtful, repeat_doubtful
from joulecast.kinds import make_layer
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Device, Setup
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.variants import Part, make_isolated_trial
from memory_log import MemoryLog


@pytest.fixture
def measurer():
    device = make_simulated_device(5)
    clock = MeasureClock(device.now, device.sleep, device.now)
    own = (SimulatedRuntime(device), SimulatedMeter(device))
    with make_measurer(*own, rounds=1, clock=clock) as opened:
        yield opened


@pytest.fixture
def observations(measurer):
    trials = [
        make_isolated_trial(
            Part("hidden", (make_layer("linear", cin=64 + 24 * at, cout=128),)), Setup(), "graph"
        )
        for at in range(20)
    ]
    return [measurer.time(trial) for trial in trials]


def test_undisturbed_observations_are_not_doubted(observations):
    assert list_doubtful(observations, "") == []


def test_slow_observation_is_repaired_and_not_doubted_again(measurer, observations):
    true = observations[7]
    observations[7] = replace(true, duration_s=6 * true.duration_s)
    trials = TrialLog(measurer, MemoryLog(), observations)
    assert repeat_doubtful(trials) == 1
    believed = [one for one in trials.believed if one.trial == true.trial]
    assert len(believed) == 2
    assert all(one.duration_s == pytest.approx(true.duration_s, rel=0.1) for one in believed)
    assert trials.new == 0
    assert repeat_doubtful(trials) == 0


def test_windows_that_disagreed_are_doubted(observations):
    unsure = replace(observations[3], duration_sd_s=0.5 * observations[3].duration_s, count=3)
    assert list_doubtful([*observations[:3], unsure], "") == [unsure]


def test_trial_that_is_implausible_but_right_is_repeated_once(measurer, observations):
    """Two measurements that agree are believed, whatever their neighbours say."""
    odd = replace(observations[7], duration_s=6 * observations[7].duration_s)
    both = [*observations[:7], odd, odd, *observations[8:]]
    assert list_doubtful(both, "") == []


def test_observations_of_another_unit_are_not_repeated_here(observations):
    true = observations[7]
    observations[7] = replace(true, duration_s=6 * true.duration_s, device=Device("x", unit="b"))
    assert list_doubtful(observations, "") == []


def test_number_of_repeats_is_limited(measurer, observations):
    spread = [replace(one, duration_sd_s=one.duration_s, count=3) for one in observations]
    trials = TrialLog(measurer, MemoryLog(), spread)
    assert repeat_doubtful(trials, most=4) == 4
    assert len(trials.log.observations) == 4
