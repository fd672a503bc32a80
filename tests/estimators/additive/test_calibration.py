"""Coverage of the intervals of `additive` on a few simulated devices.

``benchmarks/calibration`` measures it on hundreds of devices. Networks of one device share errors,
so that the bounds here are loose.
"""

import random

import numpy as np
import pytest

from additive_examples import list_probes, observe_blocks, observe_idle, observe_step
from joulecast.campaign import run_campaign
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.gp.lognormal import log_variance
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import MODES, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store

FAMILY, SETUP = "cnn5", Setup(batch=32)
DEVICES = range(300, 302)
SECONDS = 12.0
# Half the width of a 95 % interval, in standard deviations.
HALF_WIDTH = 1.96
WAYS = ("campaign", "probes", "isolated layers", "ten networks")


def draw_networks(seed, *counts):
    rng = random.Random(seed)
    return [tuple(draw_family(FAMILY, rng.randint) for _ in range(count)) for count in counts]


def run_campaign_on(seed):
    """Return observations of a short campaign with noise, then with probes of other networks."""
    device = make_simulated_device(seed)
    learn, test = draw_networks(seed, 8, 12)
    target = Target(make_family(FAMILY), SETUP, uncertainty_share=0.0, networks=learn)
    probed = Target(make_family(FAMILY), SETUP, networks=test, modes=MODES)
    runtime, meter = SimulatedRuntime(device, MODES), SimulatedMeter(device)
    clock = MeasureClock(device.now, device.sleep, device.now)
    with (
        Measurer(runtime, meter, rounds=1, clock=clock) as measurer,
        open_store(":memory:") as store,
    ):
        done = run_campaign(measurer, store, AdditiveEstimator(), target, seconds=SECONDS)
        observations = list(store.load_observations(done.profile_key))
        trials = list_probes(probed, observations)
        return observations, [*observations, *map(measurer.time, trials)]


def list_observations(seed):
    """Return the observations of a device by the way in which they were made."""
    device = make_simulated_device(seed, noise=0.0)
    campaign, with_probes = run_campaign_on(seed)
    learn, more = draw_networks(seed + 1000, 8, 10)
    eager = [observe_step(device, Trial(one, SETUP)) for one in more]
    isolated = [*observe_blocks(device, learn, SETUP), *eager[:2], observe_idle(device)]
    whole = [*eager, observe_idle(device)]
    return dict(zip(WAYS, (campaign, with_probes, isolated, whole), strict=True))


@pytest.fixture(scope="module")
def judged():
    """Error in standard deviations, and relative error, of energies and durations by way.

    Arrays of n x 2 x 2: networks of all devices, energy and duration, z and relative error.
    """
    found = {way: [] for way in WAYS}
    for seed in DEVICES:
        device, test = make_simulated_device(seed), draw_networks(seed, 8, 12)[1]
        costs = [device.true_cost(Trial(network, SETUP)) for network in test]
        truth = np.array([[cost.energy_j, cost.duration_s] for cost in costs])
        for way, observations in list_observations(seed).items():
            one = AdditiveEstimator().fit(observations).predict(test, [SETUP] * len(test))
            mean = np.column_stack([one.energy_j, one.duration_s])
            sd = np.column_stack([one.energy_sd_j, one.duration_sd_s])
            scores = np.log(truth / mean) / np.sqrt(log_variance(mean, sd**2))
            found[way].append(np.stack([scores, sd / mean, truth / mean - 1.0], axis=2))
    return {way: np.concatenate(rows) for way, rows in found.items()}


def assert_honest(scores, shares, rms):
    """Compare coverage, and the root mean square of errors in standard deviations."""
    assert shares[0] <= np.mean(np.abs(scores) < HALF_WIDTH) <= shares[1]
    assert rms[0] <= np.sqrt(np.mean(scores**2)) <= rms[1]


def test_energy_intervals_have_about_their_level(judged):
    scores = np.concatenate([rows[:, 0, 0] for rows in judged.values()])
    assert_honest(scores, (0.90, 0.995), (0.6, 1.3))


@pytest.mark.parametrize("way", WAYS)
def test_intervals_hold_whatever_was_observed(judged, way):
    """Those of durations may be wider than they need to be."""
    energies, durations = judged[way][:, :, 0].T
    assert_honest(energies, (0.85, 1.0), (0.35, 1.6))
    assert_honest(durations, (0.85, 1.0), (0.0, np.inf))


def test_probes_narrow_intervals_without_raising_errors(judged):
    plain, probed = (judged[way] for way in ("campaign", "probes"))
    errors = [np.abs(rows[:, 0, 2]).mean() for rows in (plain, probed)]
    assert errors[1] < errors[0] < 0.1
    assert probed[:, 0, 1].mean() < 0.8 * plain[:, 0, 1].mean()


def test_few_networks_widen_intervals(judged):
    """Ten networks tell less than the layers of eight."""
    sd_shares = {way: rows[:, 0, 1].mean() for way, rows in judged.items()}
    assert sd_shares["ten networks"] > 1.3 * sd_shares["isolated layers"]
