"""The additive estimator: its contract, what it proposes, transfers and recovers."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    FAMILY,
    SETUP,
    count_network,
    draw_networks,
    encode_sums,
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
from joulecast.estimators.additive.acquisition import (
    read_target,
)
from joulecast.estimators.additive.encode import SourceMean
from joulecast.estimators.additive.estimator import (
    AdditiveEstimator,
    find_unseen_shares,
    note_extrapolation,
    predict_runs,
    update_prediction,
)
from joulecast.estimators.additive.layers import (
    count_layers,
    make_overhead,
    set_up_layer,
    split_layers,
)
from joulecast.estimators.additive.observations import (
    MeasuredKind,
    MeasuredNetwork,
    add_kinds,
    choose_sum_error_sd_share,
    decompose_observations,
    find_idle_power,
    find_latest_unit,
    hash_layers,
    is_step,
    share_half_precisions,
    split_phases,
    summarise_kinds,
    summarise_networks,
)
from joulecast.estimators.additive.predict import DURATIONS, HOST_TIME, POWERS, predict_totals
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    MIXED_TIME_SUM_ERROR_SD_SHARE,
    READ_MODULE_SUM_ERROR_SD_SHARE,
    Prediction,
    Target,
)
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.gp.lognormal import log_variance, lognormal_interval
from joulecast.gp.logsums import selection as relinearisation
from joulecast.operators import make_layer
from joulecast.records import (
    MODES,
    OWN_NET,
    Execution,
    Input,
    LayerEstimate,
    Network,
    Observation,
    Setup,
    StepTotals,
    Trial,
)
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.testing.estimators import EstimatorContract, observe, run_short_campaign
from joulecast.variants import (
    make_isolated_network,
    make_isolated_trial,
    read_isolated_block,
    split_blocks,
)


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


def make_target(count, **options):
    networks = tuple(draw_networks(count, seed=1))
    return Target(make_family(FAMILY), SETUP, networks=networks, modes=MODES, **options)


def follow_proposals(device, target, limit=60):
    """Measure what the estimator proposes; return proposals and observations."""
    estimator, observations, proposals = AdditiveEstimator(), [observe_idle(device)], []
    fitted = None
    while len(observations) < limit:
        proposal = estimator.propose(target, observations, fitted)
        fitted = proposal.fitted
        proposals.append(proposal)
        if proposal.trial is None:
            break
        observation = observe_step(device, proposal.trial, proposal.with_energy)
        cost_s = 2.0 if proposal.with_energy else 0.5
        observations.append(replace(observation, cost_s=cost_s))
    return proposals, observations


def test_every_kind_is_measured_twice_first(device):
    proposals, _ = follow_proposals(device, make_target(8), limit=8)
    # One whole network runs between the two rounds, two more follow.
    sizes = [len(proposal.trial.network.layers) for proposal in proposals[:7]]
    assert sizes == [1, 1, 5, 1, 1, 5, 5]
    isolated = [proposals[at].trial.network.layers[0].kind for at in (0, 1, 3, 4)]
    assert sorted(isolated) == ["conv2d", "conv2d", "linear", "linear"]
    assert all(proposal.with_energy for proposal in proposals[:7])


def test_proposals_bring_the_target_within_its_share(device):
    target = make_target(4, uncertainty_share=0.1)
    proposals, observations = follow_proposals(device, target)
    assert proposals[-1].trial is None
    assert proposals[-1].uncertainty_share <= 0.1
    assert "known within 10.0 %" in proposals[-1].reason
    assert any(not proposal.with_energy for proposal in proposals[:-1])
    prediction = predict(AdditiveEstimator().fit(observations), target.networks)
    assert prediction.energy_j == pytest.approx(true_energies(device, target.networks), rel=0.15)


def test_refused_trial_is_not_proposed_again():
    target, estimator = make_target(3), AdditiveEstimator()
    first = estimator.propose(target, [])
    second = estimator.propose(target, [Observation(first.trial)])
    assert second.trial is not None
    assert second.trial.key != first.trial.key


def test_probing_proposes_energies_of_kinds_without_any(device):
    """All layers were timed, but only other kinds were measured with energy."""
    network = draw_networks(1, seed=3)[0]
    timed = [
        observe_step(device, make_isolated_trial(placed.block, SETUP, mode), energy=False)
        for placed in split_blocks(network)
        for mode in ("graph", "eager")
    ]
    unrelated = [*observe_blocks(device, [make_family("lstm")]), observe_idle(device)]
    target = Target(network, SETUP, acquisition="probe", modes=MODES, uncertainty_share=0.05)
    proposal = AdditiveEstimator().propose(target, [*unrelated, *timed])
    assert proposal.trial is not None and proposal.with_energy
    assert proposal.uncertainty_share > 0.3


def test_rule_of_the_paper_is_available(device):
    proposals, _ = follow_proposals(device, make_target(6, acquisition="energy"), limit=14)
    by_rule = [one for one in proposals if one.trial and "standard deviation" in one.reason]
    assert by_rule
    assert all(proposal.with_energy for proposal in by_rule)


def test_structures_that_no_eager_step_showed_run_in_isolation(device):
    """Host time of a network that may not run as a whole comes from its layers, each once."""
    network = draw_networks(1, seed=51)[0]
    target = Target(network, SETUP, networks=(network,), modes=MODES, acquisition="probe")
    _, observations = follow_proposals(device, target)
    eager = [
        one
        for one in observations
        if one.trial.execution.mode == "eager" and one.trial.network.layers
    ]
    structures = [set_up_layer(read_isolated_block(one.trial), SETUP).structure for one in eager]
    assert len(set(structures)) == len(structures) > 0
    assert all(one.energy_j is None and one.issue_s for one in eager)
    layers = split_layers(network, SETUP)
    assert set(structures) == {one.layer.structure for one in layers}


def test_only_isolated_layers_are_proposed_without_graphs(device):
    """Durations contain the host then, whatever the networks are."""
    networks = tuple(draw_networks(2, seed=81))
    target = Target(networks[0], SETUP, networks=networks, modes=("eager",))
    proposals, _ = follow_proposals(device, target, limit=10)
    assert all(len(one.trial.network.layers) == 1 for one in proposals if one.trial)


def test_after_timing_all_layers_probes_measure_the_largest_energies(device, observations):
    """Durations alone do not show what slow kernels draw."""
    network = draw_networks(1, seed=33)[0]
    target = Target(network, SETUP, "probe", networks=(network,), modes=MODES)
    estimator, seen, metered = AdditiveEstimator(), list(observations), []
    for _ in range(40):
        proposal = estimator.propose(target, seen)
        if proposal.trial is None:
            break
        for trial in proposal.probes:
            seen.append(observe_step(device, trial, energy=False))
        if not proposal.probes:
            seen.append(observe_step(device, proposal.trial, proposal.with_energy))
            metered += [proposal] if proposal.with_energy else []
    assert proposal.trial is None
    assert metered and "of the energy" in metered[0].reason
    layers = read_target(target, seen)
    energies_j = {
        layer.key: true_energies(device, [make_isolated_network(layers.blocks[layer.key])])[0]
        for layer in layers.layers
    }
    covered_j = sum(energies_j[key] for key in layers.energy_keys)
    assert covered_j > 0.5 * sum(energies_j.values()) or len(layers.energy_keys) >= 6


@pytest.fixture(scope="module")
def target():
    networks = tuple(draw_networks(5, seed=1))
    return Target(networks[0], SETUP, networks=networks, modes=MODES)


def test_measured_timed_and_refused_layers_are_distinguished(device, target):
    first, second, third, *_ = observe_blocks(device, target.networks)
    observations = [first, replace(second, energy_j=None), Observation(third.trial)]
    layers = read_target(target, observations)
    assert (len(layers.energy_keys), len(layers.duration_keys), len(layers.refused_keys)) == (
        1,
        2,
        1,
    )
    assert layers.observation_count == 2
    (refused,) = layers.refused_keys
    assert not layers.lacks(refused, with_energy=True)
    (timed_only,) = layers.duration_keys - layers.energy_keys
    assert layers.lacks(timed_only, with_energy=True)
    assert not layers.lacks(timed_only, with_energy=False)


def test_probes_are_all_layers_that_were_not_timed(device, target):
    everything = observe_blocks(device, target.networks, energy=False)
    half = everything[: len(everything) // 2]
    assert len(list_probes(target, [])) == len(everything)
    assert len(list_probes(target, half)) == len(everything) - len(half)
    assert not list_probes(target, everything)


def test_output_without_weights_is_timed_once(device):
    """It runs without its loss, which it would not train; that shows it all the same."""
    first = make_layer("linear", cin=8, cout=8)
    total = replace(make_layer("elementwise", fn="add", inputs=2, shape=(8,)), reads=(1, 2))
    network = Network((first, first, replace(total, join="add")), Input((8,)))
    target = Target(network, SETUP, modes=MODES)
    (trial,) = (
        probe for probe in list_probes(target, []) if probe.network.layers[0].kind == "elementwise"
    )
    shown = observe_blocks(device, [network], energy=False)
    assert trial.execution.upstream == "random"
    assert not list_probes(target, shown)


@pytest.fixture(scope="module")
def source(observations):
    return AdditiveEstimator().fit(observations).as_source("simulated-201", "key")


def observe_twin(observations, time_factor=1.7, power_factor=0.6):
    """Return observations of a device with the same law, only slower and of less power."""
    return [
        replace(
            one,
            duration_s=time_factor * one.duration_s,
            issue_s=None if one.issue_s is None else time_factor * one.issue_s,
            energy_j=one.energy_j and time_factor * power_factor * one.energy_j,
        )
        for one in observations
    ]


@pytest.fixture(scope="module")
def few(device):
    """A few observations of a twin of the source."""
    parts = observe_blocks(device, draw_networks(1, seed=8))
    eager = observe_step(device, Trial(draw_networks(1, seed=8)[0], SETUP), energy=False)
    return observe_twin([*parts, eager, observe_idle(device)])


@pytest.fixture(scope="module")
def transferred(few, source):
    return AdditiveEstimator((source,)).fit(few)


def list_operators(networks):
    counts = [count_layers(split_layers(one, SETUP)) for one in networks]
    return encode_sums(counts).operators


def mape(fitted, networks, truth_j):
    return 100 * np.mean(np.abs(predict(fitted, networks).energy_j / truth_j - 1))


def test_residuals_are_what_the_roofline_lacks(source, model):
    operators = list_operators(draw_networks(2, seed=1))
    inputs = model.encoder.encode_durations(operators)
    costs = model.duration.prior.coefficients
    expected = model.duration.predict_mean(inputs) - np.log(inputs.basis @ costs)
    found = source.predict_residuals(operators)
    assert found[:, 0] == pytest.approx(expected)
    assert np.abs(found).max() > 0.05
    # The same operators again, in another order and only some of them.
    assert (source.predict_residuals(operators[3:0:-1]) == found[3:0:-1]).all()


def test_device_like_its_source_needs_fewer_observations(few, transferred, device):
    networks = draw_networks(20, seed=9)
    truth_j = 1.7 * 0.6 * np.array(true_energies(device, networks))
    cold = AdditiveEstimator().fit(few)
    assert mape(transferred, networks, truth_j) < 0.8 * mape(cold, networks, truth_j)
    share = transferred.duration.prior.coefficients[-1]
    assert 0.5 < share < 1.5


def test_source_that_teaches_nothing_does_no_harm(few, source, device):
    """Its residuals are of the opposite sign, so that none of them is shared."""
    flipped = replace(source.duration, input_weights=negate(source.duration.input_weights))
    unlike = replace(source, duration=flipped)
    networks = draw_networks(20, seed=9)
    truth_j = 1.7 * 0.6 * np.array(true_energies(device, networks))
    cold, fitted = (AdditiveEstimator(one).fit(few) for one in ((), (unlike,)))
    assert fitted.duration.prior.coefficients[-1] < 0.4
    assert mape(fitted, networks, truth_j) < 1.3 * mape(cold, networks, truth_j)


def negate(packed):
    return type(packed).pack(-packed.unpack())


def test_own_observations_outweigh_sources(few, source):
    """Whatever the source says, parts that were measured cost what was measured."""
    strange = [replace(one, duration_s=3.0 * one.duration_s) for one in few[:3]]
    fitted = AdditiveEstimator((source,)).fit([*strange, *few[3:]])
    operators = [one for layer in fitted_layers(strange) for one, _ in layer.operators_alone]
    assert operators
    cold = AdditiveEstimator().fit([*strange, *few[3:]])
    one, two = (
        fit.duration.predict_mean(fit.encoder.encode_durations(operators)) for fit in (fitted, cold)
    )
    totals = [np.log(np.exp(values).sum()) for values in (one, two)]
    assert totals[0] == pytest.approx(totals[1], abs=0.1)


def fitted_layers(observations):
    return [layer for one in decompose_observations(observations) for layer in one.counts]


def test_intervals_stay_honest():
    """On three devices of other laws, from few parts of each."""
    first = make_simulated_device(210, noise=0.0)
    learnt = AdditiveEstimator().fit(observe_all(first, draw_networks(6, seed=1)))
    source, errors = learnt.as_source("first", "first"), []
    for seed in (211, 212, 213):
        device, networks = make_simulated_device(seed, noise=0.0), draw_networks(15, seed=3)
        fitted = AdditiveEstimator((source,)).fit(observe_all(device, draw_networks(2, seed=2)))
        found = predict(fitted, networks)
        pairs = zip(found.energy_j, found.energy_sd_j**2, strict=True)
        sds = np.sqrt([log_variance(*one) for one in pairs])
        errors.extend(np.log(found.energy_j / true_energies(device, networks)) / sds)
    inside = np.mean(np.abs(errors) < 1.96)
    assert inside >= 0.85


def observe_all(device, networks):
    eager = [observe_step(device, Trial(one, SETUP), energy=False) for one in networks[:2]]
    return [*observe_blocks(device, networks), *eager, observe_idle(device)]


def test_later_fits_keep_their_sources(few, transferred, source, device):
    more = observe_twin(observe_blocks(device, draw_networks(1, seed=11)))
    again = AdditiveEstimator().fit([*few, *more[:2]], transferred)
    assert again.sources == (source,) and again.fitted_count == transferred.fitted_count
    anew = AdditiveEstimator().fit([*few, *more, *observe_twin(few, 1.71)], transferred)
    assert anew.sources == (source,) and anew.fitted_count > transferred.fitted_count
    other = replace(source, name="another")
    assert AdditiveEstimator((other,)).fit(few, transferred).sources == (other,)


def test_predictions_name_the_sources(transferred):
    found = transferred.predict(draw_networks(1), [SETUP], per_layer=True)
    assert found.notes[0][0].startswith("Transferred from simulated-201: ")


def test_device_that_started_from_others_can_be_a_source(transferred, few):
    chained = AdditiveEstimator((transferred.as_source("twin", "twin"),)).fit(few)
    restored = AdditiveEstimator().load(json.loads(json.dumps(chained.to_dict())))
    networks = draw_networks(2, seed=4)
    assert (predict(restored, networks).energy_j == predict(chained, networks).energy_j).all()
    assert restored.sources[0].encoder.sources[0].name == "simulated-201"


def test_several_sources_have_a_share_each(few, source):
    fitted = AdditiveEstimator((source, replace(source, name="another"))).fit(few)
    shares = fitted.duration.prior.coefficients[-2:]
    assert 0.5 < shares.sum() < 1.5


def test_source_without_a_posterior_mean_is_conditioned(model, monkeypatch):
    """Fits of very many observations keep no weights of all of them."""
    monkeypatch.setattr(relinearisation, "_MAX_JOINT_ROWS", 10)
    large = relinearisation.keep_linearisation(model.duration)
    assert large.row_weights is None
    inputs = model.encoder.encode_durations(list_operators(draw_networks(2, seed=1)))
    one, two = (SourceMean.from_fitted(each).predict(inputs)[0] for each in (large, model.duration))
    assert one == pytest.approx(two, abs=0.02)


@pytest.fixture(scope="module")
def network():
    return draw_networks(1, seed=3)[0]


def test_network_and_isolated_parts_have_the_same_layers(device, network):
    parts = decompose_observations(observe_blocks(device, [network], mode="eager"))
    (whole,) = decompose_observations([observe_step(device, Trial(network, SETUP))])
    assert set(whole.counts) == {layer for one in parts for layer in one.counts}
    assert all(one.is_isolated for one in parts) and not whole.is_isolated
    sum_var = ISOLATED_SUM_ERROR_SD_SHARE**2
    assert whole.energy_relative_var - parts[0].energy_relative_var == pytest.approx(sum_var)


def test_idle_device_and_own_modules_are_left_out(device, network):
    run = observe_step(device, Trial(network, SETUP))
    assert not is_step(observe_idle(device))
    assert not decompose_observations([observe_idle(device), replace(run, source=OWN_NET)])


def test_imported_run_is_per_step_and_pays_its_overhead_once(network):
    trial = Trial(network, SETUP, Execution(steps=50))
    run = Observation(trial, energy_j=100.0, duration_s=5.0, provenance="imported", source="log")
    (one,) = decompose_observations([run])
    assert (one.energy_j, one.duration_s) == (2.0, 0.1)
    assert one.counts[make_overhead("log")] == 1 / 50
    assert one.is_imported


def test_sum_error_is_larger_if_a_host_runs_ahead_without_graphs(device, network):
    eager = decompose_observations(observe_blocks(device, [network], mode="eager"))
    ahead = [replace(one, issue_s=0.1 * one.duration_s) for one in eager]
    bound = [replace(one, issue_s=one.duration_s) for one in eager]
    graphs = [replace(ahead[0], mode="graph"), *ahead[1:]]
    shares = [choose_sum_error_sd_share(some) for some in (ahead, bound, graphs)]
    assert shares == [MIXED_TIME_SUM_ERROR_SD_SHARE, *[ISOLATED_SUM_ERROR_SD_SHARE] * 2]


def test_idle_power_is_that_of_steps_without_layers(device, network):
    run, idle = observe_step(device, Trial(network, SETUP)), observe_idle(device)
    assert find_idle_power([run]) is None
    assert find_idle_power([run, idle]) == pytest.approx(idle.energy_j / idle.duration_s)


def test_latest_unit_is_the_one_to_estimate_for(observations):
    other = observe_on_unit(observations, "other", 1.0, 0.0)
    own = observe_on_unit(observations[:1], "own", 1.0, 1e6)
    assert find_latest_unit([*own, *other]) == "own"
    assert find_latest_unit([]) == ""


def test_observations_are_decomposed_once(observations):
    first, second = decompose_observations(observations), decompose_observations(observations)
    assert all(one is two for one, two in zip(first, second, strict=True))
    copies = [replace(one) for one in observations]
    assert decompose_observations(copies) == first


def _observe(device, phase, count):
    network = draw_networks(1, seed=3)[0]
    one = observe_step(device, Trial(network, replace(SETUP, phase=phase)))
    return [replace(one, run=f"{phase} {at}") for at in range(count)]


def test_phases_with_many_energies_are_apart_and_share_the_idle_device(device):
    training, inferences = _observe(device, "train", 60), _observe(device, "inference", 60)
    idle = observe_idle(device)
    found = split_phases([*training, idle, *inferences])
    assert found == ([*training, idle], [idle, *inferences])
    few = [*training, *inferences[1:]]
    assert split_phases(few) == (few, [])


@pytest.fixture(scope="module")
def kinds(observations):
    return summarise_kinds(decompose_observations(observations))


def predict_all(model, *networks):
    return predict_totals(model, [count_network(network) for network in networks], 0.0)


def linear_network(width):
    return Network((make_layer("linear", cin=width, cout=width),), Input((width,)))


def test_distinct_layers_are_counted(device):
    networks = draw_networks(3, seed=1)
    parts = observe_blocks(device, networks)
    timed = observe_blocks(device, draw_networks(1, seed=2), energy=False)
    found = summarise_kinds(decompose_observations([*parts, *parts, *timed]))
    for label in ("conv2d fp32", "linear+loss fp32"):
        own = [one for one in parts if label in list_labels(one)]
        assert found[label].energy_points == len(own) > 0
        assert found[label].duration_points > found[label].energy_points


def test_kinds_of_further_layers_are_added(device):
    first = observe_blocks(device, draw_networks(2, seed=1))
    second = observe_blocks(device, draw_networks(2, seed=2))
    keys = {one.trial.key for one in first}
    second = [one for one in second if one.trial.key not in keys]
    one, two, both = (
        summarise_kinds(decompose_observations(some)) for some in (first, second, [*first, *second])
    )
    assert add_kinds(one, two) == both
    assert add_kinds(one, {}) == one


def list_labels(observation):
    (one,) = decompose_observations([observation])
    return {layer.label for layer in one.counts}


def test_unseen_share_is_that_of_unmeasured_labels(model, kinds):
    shares = find_unseen_shares(
        kinds, predict_all(model, draw_networks(1, seed=5)[0], make_family("transformer:64,2"))
    )
    assert shares[0] == 0.0
    assert 0.1 < shares[1] < 1.0
    assert find_unseen_shares({}, predict_all(model, draw_networks(1, seed=5)[0])) == (1.0,)


def test_kinds_that_were_never_measured_are_noted(model, kinds):
    (notes,) = note_extrapolation(kinds, predict_all(model, make_family("lstm")))
    assert "lstm fp32 was never measured: estimated from similar operators" in notes


def test_sizes_beyond_measured_ones_are_noted(model, kinds):
    small, large = note_extrapolation(kinds, predict_all(model, *map(linear_network, (64, 16384))))
    assert not any("linear" in one for one in small)
    assert any(one.startswith("extrapolated") and "linear fp32" in one for one in large)


def test_half_precisions_share_what_was_measured():
    fp16, bf16, fp32 = MeasuredKind(1), MeasuredKind(2), MeasuredKind(3)
    measured = {"relu fp16": fp16, "gelu bf16 inference": bf16, "add fp32": fp32, "add fp16": fp16}
    shared = share_half_precisions(measured)
    assert shared["relu bf16"] == fp16 and shared["gelu fp16 inference"] == bf16
    assert shared["add fp32"] == fp32 and len(shared) == 7


def test_prediction_moves_by_the_ratio_of_variances():
    layers = ((LayerEstimate("a", "linear", 10.0, 1),),) * 2
    prediction = Prediction(
        energy_j=np.array([10.0, 10.0]),
        energy_sd_j=np.array([1.0, 1.0]),
        energy_cov=np.eye(2),
        duration_s=np.array([1.0, 1.0]),
        layers=layers,
        unseen_share=(0.0, 0.0),
        device_energy_j=np.array([5.0, 5.0]),
    )
    updated = update_prediction(prediction, [MeasuredNetwork(14.0, 3.0, 2.0), None])
    assert updated.energy_j == pytest.approx([11.0, 10.0])
    assert updated.duration_s == pytest.approx([1.25, 1.0])
    assert updated.energy_sd_j == pytest.approx([0.75**0.5, 1.0])
    assert np.diag(updated.energy_cov) == pytest.approx(updated.energy_sd_j**2)
    assert updated.device_energy_j == pytest.approx([5.5, 5.0])
    assert [one[0].energy_j for one in updated.layers] == pytest.approx([11.0, 10.0])


def test_whole_eager_steps_are_summarised(device):
    network = draw_networks(1, seed=3)[0]
    run = observe_step(device, Trial(network, SETUP))
    graphs = observe_blocks(device, [network])
    measured = summarise_networks([run, run, *graphs])
    layers = split_layers(network, SETUP)
    assert list(measured) == [hash_layers(layers)]
    (found,) = measured.values()
    assert found.energy_j == pytest.approx(run.energy_j)
    assert found.energy_var_j2 == pytest.approx((0.03 * run.energy_j) ** 2)
    assert hash_layers(layers, is_graph=True) not in measured
