"""Whole runs of an imported log on a simulated device: overhead, noise and intervals."""

import json

import numpy as np
import pytest

from additive_examples import SETUP, draw_networks, predict, true_energies
from joulecast.errors import MissingError
from joulecast.estimators.additive.estimator import AdditiveEstimator, predict_runs
from joulecast.estimators.additive.fit import fit_model
from joulecast.estimators.additive.layers import count_layers, make_overhead, split_layers
from joulecast.estimators.additive.predict import predict_totals
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Execution, Observation, Trial

STEPS, OVERHEAD_J, OVERHEAD_S = 100, 60.0, 0.3
SOURCE = "imported log"
NOISE_SHARE = 0.06


def import_run(device, network, noise=0.0):
    cost = device.true_cost(Trial(network, SETUP))
    return Observation(
        Trial(network, SETUP, Execution(steps=STEPS)),
        energy_j=(STEPS * cost.energy_j + OVERHEAD_J) * (1 + noise),
        duration_s=STEPS * cost.duration_s + OVERHEAD_S,
        provenance="imported",
        source=SOURCE,
    )


@pytest.fixture(scope="module")
def runs(device):
    """Forty runs with noisy energies; noise comes in pairs, so that its mean is zero."""
    half = NOISE_SHARE * np.random.default_rng(5).standard_normal(20)
    noises = np.concatenate([half, -half]).tolist()
    pairs = zip(draw_networks(40, seed=1), noises, strict=True)
    return [import_run(device, network, noise) for network, noise in pairs]


@pytest.fixture(scope="module")
def fitted(runs):
    return AdditiveEstimator().fit(runs)


def test_noise_of_repeats_is_fitted(fitted):
    totals = predict_runs(fitted, draw_networks(1, seed=2), SETUP, STEPS, SOURCE)
    assert 0.6 * NOISE_SHARE < totals.repeat_sd_share < 1.5 * NOISE_SHARE


def test_run_is_its_steps_and_one_overhead(fitted, device):
    networks = draw_networks(20, seed=3)
    short, long = (predict_runs(fitted, networks, SETUP, n, SOURCE) for n in (STEPS, 11 * STEPS))
    step_j = predict(fitted, networks).energy_j
    assert long.energy_j - short.energy_j == pytest.approx(10 * STEPS * step_j, rel=5e-3)
    overhead_j = short.energy_j - STEPS * step_j
    assert overhead_j == pytest.approx(overhead_j[0], rel=0.02)
    truth_j = np.array([import_run(device, network).energy_j for network in networks])
    assert np.mean(np.abs(short.energy_j / truth_j - 1)) < NOISE_SHARE


def test_intervals_contain_single_runs_and_narrow_with_repeats(fitted, device):
    networks = draw_networks(200, seed=4)
    totals = predict_runs(fitted, networks, SETUP, STEPS, SOURCE)
    noises = NOISE_SHARE * np.random.default_rng(6).standard_normal(len(networks))
    contained = 0
    for at, network in enumerate(networks):
        low_j, high_j = lognormal_interval(totals.energy_j[at], totals.variance()[at], 0.95)
        contained += low_j < import_run(device, network, noises[at]).energy_j < high_j
    assert contained / len(networks) > 0.88
    assert np.all(totals.variance(4) < totals.variance())
    assert totals.variance(1e12) == pytest.approx(totals.energy_sd_j**2)


def test_imported_run_does_not_update_the_estimate_of_a_step(device):
    """The energy of a run contains its overhead, so that it is not the energy of its steps."""
    networks = draw_networks(25, seed=41)
    fitted = AdditiveEstimator().fit([import_run(device, network) for network in networks])
    assert fitted.measured_networks == {}
    truth_j = np.array(true_energies(device, networks))
    error = predict(fitted, networks).energy_j / truth_j - 1
    overhead_share = OVERHEAD_J / STEPS / truth_j
    assert abs(np.median(error)) < 0.4 * np.median(overhead_share)


def test_stored_fit_predicts_what_the_model_does(fitted, runs):
    """An overhead has no throughput that storing could lose."""
    model, networks = fit_model(runs), draw_networks(5, seed=7)
    overhead = make_overhead(SOURCE)
    counts = [
        {**count_layers(split_layers(network, SETUP)), overhead: 1 / STEPS} for network in networks
    ]
    fresh = predict_totals(model, counts, fitted.sum_error_sd_share)
    stored = AdditiveEstimator().load(json.loads(json.dumps(fitted.to_dict())))
    totals = predict_runs(stored, networks, SETUP, STEPS, SOURCE)
    assert totals.energy_j == pytest.approx(STEPS * fresh.energy_j, rel=1e-9)
    assert totals.energy_sd_j == pytest.approx(STEPS * np.sqrt(fresh.variance), rel=1e-9)


def test_source_without_runs_is_refused(fitted):
    with pytest.raises(MissingError, match="another log"):
        predict_runs(fitted, draw_networks(1, seed=2), SETUP, STEPS, "another log")
