"""Intervals of `additive` hold about as often as they say, in a few simulated worlds.

A quick look at what ``benchmarks/calibration`` shows over hundreds of worlds; the bounds are loose.
"""

import random

import numpy as np
import pytest

from joulecast.campaign import run_campaign
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.gp.lognormal import lognormal_interval
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import MODES, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store

FAMILY, SETUP = "cnn5", Setup(batch=32)
WORLDS = range(300, 306)
SECONDS = 12.0


def judge_world(seed):
    """A short campaign, then other nets: estimates without and with probes, beside the truth."""
    world = make_simulated_device(seed)
    rng = random.Random(seed)
    learn, test = (
        tuple(draw_family(FAMILY, rng.randint) for _ in range(count)) for count in (8, 8)
    )
    estimator = AdditiveEstimator()
    target = Target(make_family(FAMILY), SETUP, uncertainty_share=0.0, networks=learn)
    wanted = Target(make_family(FAMILY), SETUP, networks=test, modes=MODES)
    runtime, meter = SimulatedRuntime(world, MODES), SimulatedMeter(world)
    clock = MeasureClock(world.now, world.sleep, world.now)
    with make_measurer(runtime, meter, rounds=1, clock=clock) as rig, open_store(":memory:") as store:
        done = run_campaign(rig, store, estimator, target, seconds=SECONDS)
        seen = store.load_observations(done.profile_key)
        probes = [rig.time(trial) for trial in estimator.list_probes(wanted, seen)]
    costs = [world.true_cost(Trial(net, SETUP)) for net in test]
    energies_j, durations_s = [c.energy_j for c in costs], [c.duration_s for c in costs]
    answers = [
        estimator.fit([*seen, *more]).predict(test, [SETUP] * len(test))
        for more in ((), probes)
    ]
    joules = [list(zip(energies_j, a.energy_j, a.energy_sd_j, strict=True)) for a in answers]
    seconds = [list(zip(durations_s, a.duration_s, a.duration_sd_s, strict=True)) for a in answers]
    return joules + seconds


@pytest.fixture(scope="module")
def judged():
    """Triples of truth, mean and deviation: joules without and with probes, seconds likewise."""
    worlds = [judge_world(seed) for seed in WORLDS]
    return [np.array([net for nets in arm for net in nets]) for arm in zip(*worlds, strict=True)]


def hold(triples, level):
    ends = [lognormal_interval(mean, sd**2, level) for _, mean, sd in triples]
    return np.mean([low <= t[0] <= high for (low, high), t in zip(ends, triples, strict=True)])


@pytest.mark.parametrize("probed", [False, True])
def test_intervals_hold_about_as_often_as_they_say(judged, probed):
    triples = judged[probed]
    assert hold(triples, 0.95) >= 0.8
    assert 0.2 <= hold(triples, 0.5) <= 0.9


@pytest.mark.parametrize("probed", [False, True])
def test_intervals_of_seconds_hold_at_least_as_often_as_they_say(judged, probed):
    assert hold(judged[2 + probed], 0.95) >= 0.85


def test_probes_make_estimates_surer(judged):
    """Timing the layers of the nets in question narrows intervals, and they still hold."""
    plain, probed = ([np.abs(t[:, 1] / t[:, 0] - 1).mean(), t[:, 2].mean()] for t in judged[:2])
    assert max(plain[0], probed[0]) < 0.1
    assert probed[1] < 0.95 * plain[1]
