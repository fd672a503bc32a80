"""Coverage of the intervals of `additive` on a few simulated devices.

``benchmarks/calibration`` measures it on hundreds of devices; the bounds here are loose.
"""

import random

import numpy as np
import pytest

from joulecast.campaign import run_campaign
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.target_pieces import list_probes, read_target
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
DEVICES = range(300, 306)
SECONDS = 12.0


def judge_device(seed):
    """Run a short campaign; return truth, mean and sd of other networks' costs.

    The four lists are energies without and with probes, then durations without and with probes.
    """
    device = make_simulated_device(seed)
    rng = random.Random(seed)
    learn, test = (
        tuple(draw_family(FAMILY, rng.randint) for _ in range(count)) for count in (8, 8)
    )
    estimator = AdditiveEstimator()
    target = Target(make_family(FAMILY), SETUP, uncertainty_share=0.0, networks=learn)
    probed = Target(make_family(FAMILY), SETUP, networks=test, modes=MODES)
    runtime, meter = SimulatedRuntime(device, MODES), SimulatedMeter(device)
    clock = MeasureClock(device.now, device.sleep, device.now)
    with (
        make_measurer(runtime, meter, rounds=1, clock=clock) as measurer,
        open_store(":memory:") as store,
    ):
        done = run_campaign(measurer, store, estimator, target, seconds=SECONDS)
        observations = store.load_observations(done.profile_key)
        trials = list_probes(probed, read_target(probed, observations))
        probes = [measurer.time(trial) for trial in trials]
    costs = [device.true_cost(Trial(network, SETUP)) for network in test]
    energies_j, durations_s = [c.energy_j for c in costs], [c.duration_s for c in costs]
    predictions = [
        estimator.fit([*observations, *more]).predict(test, [SETUP] * len(test))
        for more in ((), probes)
    ]
    return [
        *(list(zip(energies_j, p.energy_j, p.energy_sd_j, strict=True)) for p in predictions),
        *(list(zip(durations_s, p.duration_s, p.duration_sd_s, strict=True)) for p in predictions),
    ]


@pytest.fixture(scope="module")
def judged():
    """The four lists of ``judge_device`` over all devices, as arrays."""
    devices = [judge_device(seed) for seed in DEVICES]
    return [np.array([row for rows in arm for row in rows]) for arm in zip(*devices, strict=True)]


def measure_coverage(rows, level):
    intervals = [lognormal_interval(mean, sd**2, level) for _, mean, sd in rows]
    truths = [truth for truth, _, _ in rows]
    return np.mean([low <= t <= high for (low, high), t in zip(intervals, truths, strict=True)])


@pytest.mark.parametrize("with_probes", [False, True])
def test_energy_intervals_have_about_their_level(judged, with_probes):
    rows = judged[with_probes]
    assert measure_coverage(rows, 0.95) >= 0.8
    assert 0.2 <= measure_coverage(rows, 0.5) <= 0.9


@pytest.mark.parametrize("with_probes", [False, True])
def test_duration_intervals_have_at_least_about_their_level(judged, with_probes):
    assert measure_coverage(judged[2 + with_probes], 0.95) >= 0.85


def test_probes_narrow_intervals_without_raising_errors(judged):
    plain, probed = judged[:2]
    errors = [np.abs(rows[:, 1] / rows[:, 0] - 1).mean() for rows in (plain, probed)]
    assert max(errors) < 0.1
    assert probed[:, 2].mean() < 0.95 * plain[:, 2].mean()
