"""The additive estimator: its contract, and networks on simulated devices that it recovers."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    FAMILY,
    SETUP,
    draw_networks,
    list_probes,
    observe_blocks,
    observe_idle,
    observe_on_unit,
    observe_step,
    predict,
    true_energies,
)
from joulecast.estimators.additive import estimator
from joulecast.estimators.additive import observations as phases
from joulecast.estimators.additive.estimator import AdditiveEstimator, predict_runs
from joulecast.estimators.additive.predict import DURATIONS, HOST_TIME, POWERS
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    READ_MODULE_SUM_ERROR_SD_SHARE,
    Target,
)
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import (
    MODES,
    OWN_NET,
    Execution,
    Network,
    Observation,
    Setup,
    StepTotals,
    Trial,
)
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.testing.estimators import EstimatorContract, observe, run_short_campaign
from joulecast.variants import make_isolated_trial, split_blocks


class TestContract(EstimatorContract):
    unseen_setup = Setup(batch=10, precision="bf16")
    tolerance_share = 1e-4
    restart_tolerance_share = 0.03

    def make_estimator(self):
        return AdditiveEstimator()


def test_network_of_measured_layers_is_their_sum(device, fitted):
    """Isolated layers give the energy of the whole network, to which nothing was fitted."""
    networks = draw_networks(8, seed=1)
    prediction = predict(fitted, networks)
    costs = [device.true_cost(Trial(network, SETUP)) for network in networks]
    # This device draws idle power between launches, where the estimator expects that of kernels.
    assert prediction.energy_j == pytest.approx([cost.energy_j for cost in costs], rel=0.06)
    assert prediction.duration_s == pytest.approx([cost.duration_s for cost in costs], rel=0.03)


def test_fit_is_kept_where_few_observations_were_dropped(observations, fitted, monkeypatch):
    """A new observation may contradict an old one; a large profile is not fitted again for it."""
    fewer, again = observations[1:], AdditiveEstimator().fit(observations[1:])
    # What was forgotten does not stay in a small fit.
    assert AdditiveEstimator().fit(fewer, fitted).to_dict() == again.to_dict()
    monkeypatch.setattr(estimator, "_DROPPED_SHARE", 0.5)
    kept = AdditiveEstimator().fit(fewer, fitted)
    assert kept.fitted_count == fitted.fitted_count
    assert kept.duration.theta.tolist() == fitted.duration.theta.tolist()


def test_probes_reduce_error_and_uncertainty(device, observations, fitted):
    """Under the same hyper-parameters; a new fit may learn that it was too certain."""
    networks = draw_networks(4, seed=21)
    target = Target(make_family(FAMILY), SETUP, networks=tuple(networks), modes=MODES)
    probes = list_probes(target, observations)
    assert probes
    timed = [observe_step(device, trial, energy=False) for trial in probes]
    probed = [*observations, *timed]
    assert not list_probes(target, probed)
    truth_j = np.array(true_energies(device, networks))
    before = predict(fitted, networks)
    extended = AdditiveEstimator().fit(probed, fitted)
    assert extended.fitted_count == fitted.fitted_count
    after = predict(extended, networks)
    errors = [np.abs(one.energy_j / truth_j - 1).mean() for one in (before, after)]
    assert errors[1] < errors[0]
    assert after.energy_sd_j.mean() < before.energy_sd_j.mean()


def test_own_module_moves_its_own_estimate_and_no_other(device, observations, fitted):
    """It may do more than its layers show, which costs no other network anything."""
    own, *others = draw_networks(6, seed=33)
    run = observe_step(device, Trial(own, SETUP))
    costly = replace(run, energy_j=1.2 * run.energy_j, source=OWN_NET)
    extended = AdditiveEstimator().fit([*observations, costly])
    before, after = (predict(one, [own, *others]) for one in (fitted, extended))
    errors_j = [abs(one.energy_j[0] - costly.energy_j) for one in (before, after)]
    assert errors_j[1] < 0.8 * errors_j[0]
    assert after.energy_sd_j[0] < before.energy_sd_j[0]
    assert after.energy_j[1:] == pytest.approx(before.energy_j[1:], rel=1e-6)


def test_unseen_kind_has_a_wide_interval_and_is_named(device, fitted):
    network = make_family("transformer:64,2")
    prediction = predict(fitted, [network])
    assert 0.3 < prediction.unseen_share[0] < 1.0
    known = predict(fitted, draw_networks(1, seed=2))
    sd_shares = [one.energy_sd_j[0] / one.energy_j[0] for one in (known, prediction)]
    assert sd_shares[1] > 2.0 * sd_shares[0]
    largest = next(iter(prediction.uncertainty_sources[0]))
    assert largest in (DURATIONS, HOST_TIME, POWERS)
    assert 0.2 < prediction.energy_j[0] / true_energies(device, [network])[0] < 5


def test_unseen_precision_has_a_wide_interval(fitted):
    network = draw_networks(1, seed=2)[0]
    known = predict(fitted, [network])
    unseen = predict(fitted, [network], replace(SETUP, precision="bf16"))
    assert unseen.unseen_share[0] == pytest.approx(1.0)
    known_share, unseen_share = (one.energy_sd_j[0] / one.energy_j[0] for one in (known, unseen))
    assert unseen_share > 0.3 > 3.0 * known_share


def test_device_energy_is_separate_from_waiting_for_the_host():
    """The device energy of a launch-bound network is far below that of its step."""
    device = make_simulated_device(202, noise=0.0)
    setup = Setup(batch=10)
    networks = draw_networks(6, seed=8, family="lenet5")
    eager = [observe_step(device, Trial(one, setup), energy=False) for one in networks[:2]]
    parts = observe_blocks(device, networks, setup)
    fitted = AdditiveEstimator().fit([*parts, *eager, observe_idle(device)])
    prediction = predict(fitted, networks, setup)
    graph = Execution(mode="graph")
    graphs_j = [device.true_cost(Trial(one, setup, graph)).energy_j for one in networks]
    assert prediction.device_energy_j == pytest.approx(graphs_j, rel=0.05)
    assert prediction.energy_j == pytest.approx(true_energies(device, networks, setup), rel=0.10)
    assert (prediction.device_energy_j < 0.9 * prediction.energy_j).any()


def test_energy_above_idle_adds_up_without_graphs():
    """All observations are eager, and the host runs ahead."""
    device = make_simulated_device(203, noise=0.0)
    setup, networks = Setup(batch=64), draw_networks(8, seed=2)
    parts = observe_blocks(device, networks, setup, mode="eager")
    fitted = AdditiveEstimator().fit([*parts, observe_idle(device)])
    assert fitted.mode == "eager"
    prediction = predict(fitted, networks, setup)
    assert prediction.energy_j == pytest.approx(true_energies(device, networks, setup), rel=0.06)


def test_durations_add_up_if_the_host_waits_for_every_operator():
    """As on a CPU, issuing a step is running it."""
    device = make_simulated_device(204, noise=0.0)
    networks = draw_networks(6, seed=2)
    parts = [
        replace(one, issue_s=one.duration_s)
        for one in observe_blocks(device, networks, mode="eager")
    ]
    fitted = AdditiveEstimator().fit([*parts, observe_idle(device)])
    assert fitted.mode == "eager"
    assert fitted.sum_error_sd_share == ISOLATED_SUM_ERROR_SD_SHARE
    prediction = predict(fitted, networks)
    by_key = {one.trial.key: one for one in parts}
    for at, network in enumerate(networks):
        trials = [make_isolated_trial(placed.block, SETUP) for placed in split_blocks(network)]
        sum_s = sum(by_key[trial.key].duration_s / trial.execution.copies for trial in trials)
        assert prediction.duration_s[at] == pytest.approx(sum_s, rel=0.02)


def test_variants_of_the_paper_are_fitted_to(device):
    """Eager variants, as the paper measures them, enter without subtraction."""
    target = Target(make_family(FAMILY), SETUP)
    variants = run_short_campaign(SubtractiveEstimator(), target, 45, device)
    networks = draw_networks(10, seed=9)
    prediction = predict(AdditiveEstimator().fit([*variants, observe_idle(device)]), networks)
    truth_j = np.array(true_energies(device, networks))
    assert np.abs(prediction.energy_j / truth_j - 1).mean() < 0.2


def test_hyper_parameters_are_kept_until_there_are_half_as_many_observations_again(
    device, observations, fitted
):
    estimator, thetas = AdditiveEstimator(), (fitted.duration.theta, fitted.power.theta)
    parts = observe_blocks(device, draw_networks(8, seed=77), energy=True)
    few, many = ([*observations, *parts[:count]] for count in (10, 30))
    extended = estimator.fit(few, fitted)
    assert extended.observation_count == fitted.observation_count + 10
    assert extended.fitted_count == fitted.observation_count
    kept = extended.duration.theta, extended.power.theta
    assert all((one == two).all() for one, two in zip(kept, thetas, strict=True))
    again = estimator.fit(many, extended)
    assert again.observation_count >= 1.5 * fitted.observation_count
    assert again.fitted_count == again.observation_count
    assert (again.duration.theta != thetas[0]).any()


def test_observations_of_another_unit_are_adjusted_to_this_one(observations):
    """A few observations of one's own unit, which takes 8 % less, adjust those of the other."""
    estimator, networks = AdditiveEstimator(), draw_networks(6, seed=61)
    other = observe_on_unit(observations, "other", 1.0, 0.0)
    with_energy = [one for one in observations if one.energy_j]
    own = observe_on_unit(with_energy[:6], "own", 0.92, 1e6)
    fitted = estimator.fit([*other, *own])
    assert json.loads(json.dumps(fitted.to_dict())) == fitted.to_dict()
    unnamed = [replace(one, device=replace(one.device, unit="")) for one in (*other, *own)]
    other_j, adjusted_j, mixed_j = (
        predict(fit, networks).device_energy_j
        for fit in (estimator.fit(other), fitted, estimator.fit(unnamed))
    )
    assert (adjusted_j / other_j).mean() == pytest.approx(0.92, abs=0.015)
    assert (mixed_j / other_j).mean() > 0.95


def test_energies_of_another_unit_are_used_if_there_are_no_others(device, observations):
    """Durations of one's own unit without energies do not make everything cheaper."""
    estimator, networks = AdditiveEstimator(), draw_networks(6, seed=61)
    many = [*observe_blocks(device, draw_networks(12, seed=5)), observe_idle(device)]
    timed = [replace(one, energy_j=None) for one in observations if one.trial.network.layers]
    own = observe_on_unit(timed, "own", 1.0, 1e6)
    fitted = estimator.fit([*observe_on_unit(many, "other", 1.0, 0.0), *own])
    plain_j = predict(estimator.fit(many), networks).device_energy_j
    assert predict(fitted, networks).device_energy_j == pytest.approx(plain_j, rel=0.05)


PREDICT = """
import json, sys
before = set(sys.modules)
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.families import make_family
from joulecast.records import Setup
fitted = AdditiveEstimator().load(json.load(open(sys.argv[1])))
prediction = fitted.predict([make_family("lenet5:3,5,20,20")], [Setup(batch=8)])
assert prediction.energy_j[0] > 0
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - {"joulecast"} - set(sys.stdlib_module_names)))
"""


def test_prediction_loads_numpy_alone(tmp_path):
    """Fitting may load more; an estimate must start fast."""
    device, setup = make_simulated_device(7, noise=0.0), Setup(batch=8)
    parts = [placed.block for placed in split_blocks(make_family("lenet5"))]
    trials = [*(make_isolated_trial(part, setup) for part in parts), Trial(Network(), Setup())]
    fitted = AdditiveEstimator().fit([observe(device, trial) for trial in trials])
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fitted.to_dict()))
    command = [sys.executable, "-c", PREDICT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numpy"]


def test_a_module_that_was_read_is_less_certain(fitted):
    """It may do work that no layer shows."""
    network = draw_networks(1, seed=12)[0]
    read = replace(network, totals=StepTotals(1.0, 1.0, 1))
    one, two = (predict(fitted, [own]) for own in (network, read))
    added = two.energy_sd_j[0] ** 2 - one.energy_sd_j[0] ** 2
    assert one.energy_j == pytest.approx(two.energy_j)
    share = READ_MODULE_SUM_ERROR_SD_SHARE
    assert added > 0.8 * (share * one.energy_j[0]) ** 2


def test_training_and_inference_have_models_of_their_own(device, monkeypatch):
    """Given enough of both; each predicts its phase, whatever was observed of the other."""
    monkeypatch.setattr(phases, "_MIN_OWN_ENERGIES", 20)
    networks = draw_networks(6, seed=8)
    inference = replace(SETUP, phase="inference")
    training = observe_blocks(device, networks)
    forward = observe_blocks(device, networks, inference)
    additive = AdditiveEstimator()
    both = additive.fit([*training, *forward])
    assert both.inference is not None
    some = networks[:3]
    for setup, own in ((SETUP, additive.fit(training)), (inference, additive.fit(forward))):
        alone = own.predict(some, [setup] * 3)
        assert both.predict(some, [setup] * 3).energy_j == pytest.approx(alone.energy_j)
    mixed = both.predict(some, [SETUP, inference, SETUP], joint=True)
    assert mixed.energy_cov is not None and mixed.energy_cov[0, 1] == 0.0
    restored = additive.load(both.to_dict()).predict(some, [inference] * 3)
    assert restored.energy_j == pytest.approx(both.predict(some, [inference] * 3).energy_j)
    assert additive.fit([*training, *forward], both).observation_count == both.observation_count


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
def fitted_runs(runs):
    return AdditiveEstimator().fit(runs)


def test_run_is_its_steps_and_one_overhead(fitted_runs, device):
    networks = draw_networks(20, seed=3)
    short, long = (
        predict_runs(fitted_runs, networks, SETUP, n, SOURCE) for n in (STEPS, 11 * STEPS)
    )
    step_j = predict(fitted_runs, networks).energy_j
    assert long.energy_j - short.energy_j == pytest.approx(10 * STEPS * step_j, rel=5e-3)
    overhead_j = short.energy_j - STEPS * step_j
    assert overhead_j == pytest.approx(overhead_j[0], rel=0.02)
    truth_j = np.array([import_run(device, network).energy_j for network in networks])
    assert np.mean(np.abs(short.energy_j / truth_j - 1)) < NOISE_SHARE


def test_intervals_contain_single_runs_and_narrow_with_repeats(fitted_runs, device):
    networks = draw_networks(100, seed=4)
    totals = predict_runs(fitted_runs, networks, SETUP, STEPS, SOURCE)
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
    fitted_runs = AdditiveEstimator().fit([import_run(device, network) for network in networks])
    assert fitted_runs.measured_networks == {}
    truth_j = np.array(true_energies(device, networks))
    error = predict(fitted_runs, networks).energy_j / truth_j - 1
    overhead_share = OVERHEAD_J / STEPS / truth_j
    assert abs(np.median(error)) < 0.4 * np.median(overhead_share)


def test_source_without_runs_is_refused(fitted_runs):
    with pytest.raises(MissingError, match="another log"):
        predict_runs(fitted_runs, draw_networks(1, seed=2), SETUP, STEPS, "another log")
