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
    observe_device,
    observe_idle,
    observe_on_unit,
    observe_step,
    predict,
    true_energies,
)
from joulecast.estimators.additive import estimator as module
from joulecast.estimators.additive import observations as phases
from joulecast.estimators.additive.acquisition import read_target
from joulecast.estimators.additive.encode import SourceMean
from joulecast.estimators.additive.estimator import (
    AdditiveEstimator,
    find_unseen_shares,
    note_extrapolation,
    predict_runs,
)
from joulecast.estimators.additive.layers import set_up_layer, split_layers
from joulecast.estimators.additive.observations import (
    MeasuredKind,
    add_kinds,
    choose_sum_error_sd_share,
    decompose_observations,
    find_idle_power,
    share_half_precisions,
    summarise_kinds,
)
from joulecast.estimators.additive.predict import (
    DURATIONS,
    HOST_TIME,
    POWERS,
    predict_durations,
    predict_totals,
)
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    MIXED_TIME_SUM_ERROR_SD_SHARE,
    READ_MODULE_SUM_ERROR_SD_SHARE,
    Target,
)
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.gp.lognormal import log_variance, lognormal_interval
from joulecast.gp.logsums import selection as relinearisation
from joulecast.operators import make_layer, network_work
from joulecast.records import (
    MODES,
    OWN_NET,
    Execution,
    Input,
    Network,
    Observation,
    Setup,
    StepTotals,
    Trial,
)
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.testing.estimators import EstimatorContract, run_short_campaign
from joulecast.variants import (
    make_isolated_network,
    make_isolated_trial,
    read_isolated_block,
    split_blocks,
)

ADDITIVE = AdditiveEstimator()


class TestContract(EstimatorContract):
    unseen_setup = Setup(batch=10, precision="bf16")
    tolerance_share = 1e-4
    restart_tolerance_share = 0.03
    make_estimator = AdditiveEstimator


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
    fewer, again = observations[1:], ADDITIVE.fit(observations[1:])
    # What was forgotten does not stay in a small fit.
    assert ADDITIVE.fit(fewer, fitted).to_dict() == again.to_dict()
    monkeypatch.setattr(module, "_DROPPED_SHARE", 0.5)
    kept = ADDITIVE.fit(fewer, fitted)
    assert kept.fitted_count == fitted.fitted_count
    assert kept.duration.theta.tolist() == fitted.duration.theta.tolist()


def test_hyper_parameters_are_kept_until_there_are_half_as_many_observations_again(
    device, observations, fitted
):
    blocks = observe_blocks(device, draw_networks(8, seed=77))
    few, many = ([*observations, *blocks[:count]] for count in (10, 30))
    extended = ADDITIVE.fit(few, fitted)
    assert extended.observation_count == fitted.observation_count + 10
    assert extended.fitted_count == fitted.observation_count
    assert (extended.duration.theta == fitted.duration.theta).all()
    assert (extended.power.theta == fitted.power.theta).all()
    again = ADDITIVE.fit(many, extended)
    assert again.fitted_count == again.observation_count >= 1.5 * fitted.observation_count
    assert (again.duration.theta != fitted.duration.theta).any()


def test_own_module_moves_its_own_estimate_most(device, observations, fitted):
    """It may do more than its layers show: other networks of its family have a part of that."""
    own, *others = draw_networks(6, seed=33)
    run = observe_step(device, Trial(own, SETUP))
    costly = replace(run, energy_j=1.2 * run.energy_j, source=OWN_NET)
    extended = ADDITIVE.fit([*observations, costly])
    before, after = (predict(one, [own, *others]) for one in (fitted, extended))
    errors_j = [abs(one.energy_j[0] - costly.energy_j) for one in (before, after)]
    assert errors_j[1] < errors_j[0]
    assert after.energy_sd_j[0] < before.energy_sd_j[0]
    moved = after.energy_j / before.energy_j
    assert np.all(moved[1:] > 1.0) and np.all(moved[1:] < moved[0])


def test_unseen_kinds_and_precisions_have_wide_intervals(device, fitted):
    network, unknown = draw_networks(1, seed=2)[0], make_family("transformer:64,2")
    setups = SETUP, SETUP, replace(SETUP, precision="bf16")
    found = fitted.predict([network, unknown, network], setups, per_layer=True)
    assert {layer.kind for layer in found.layers[1] if not layer.seen} >= {"sdpa", "layer_norm"}
    known, kind, precision = found.energy_sd_j / found.energy_j
    assert 0.3 < found.unseen_share[1] < found.unseen_share[2] == pytest.approx(1.0)
    assert kind > 2.0 * known and precision > 0.3 > 3.0 * known
    assert next(iter(found.uncertainty_sources[1])) in (DURATIONS, HOST_TIME, POWERS)
    assert 0.2 < found.energy_j[1] / true_energies(device, [unknown])[0] < 5


def test_device_energy_is_separate_from_waiting_for_the_host():
    """The device energy of a launch-bound network is far below that of its step."""
    device, setup = make_simulated_device(202, noise=0.0), Setup(batch=10)
    networks = draw_networks(6, seed=8, family="lenet5")
    fitted = ADDITIVE.fit(observe_device(device, networks, setup))
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
    blocks = observe_blocks(device, networks, setup, mode="eager")
    fitted = ADDITIVE.fit([*blocks, observe_idle(device)])
    assert fitted.mode == "eager"
    prediction = predict(fitted, networks, setup)
    assert prediction.energy_j == pytest.approx(true_energies(device, networks, setup), rel=0.06)


def test_durations_add_up_if_the_host_waits_for_every_operator():
    """As on a CPU, issuing a step is running it."""
    device, networks = make_simulated_device(204, noise=0.0), draw_networks(6, seed=2)
    eager = observe_blocks(device, networks, mode="eager")
    blocks = [replace(one, issue_s=one.duration_s) for one in eager]
    fitted = ADDITIVE.fit([*blocks, observe_idle(device)])
    assert fitted.mode == "eager"
    assert fitted.sum_error_sd_share == ISOLATED_SUM_ERROR_SD_SHARE
    by_key = {one.trial.key: one for one in blocks}
    sums_s = []
    for network in networks:
        trials = [make_isolated_trial(placed.block, SETUP) for placed in split_blocks(network)]
        sums_s.append(sum(by_key[one.key].duration_s / one.execution.copies for one in trials))
    assert predict(fitted, networks).duration_s == pytest.approx(sums_s, rel=0.02)


def test_variants_of_the_paper_are_fitted_to(device):
    """Eager variants, as the paper measures them, enter without subtraction."""
    target = Target(make_family(FAMILY), SETUP)
    variants = run_short_campaign(SubtractiveEstimator(), target, 45, device)
    networks = draw_networks(10, seed=9)
    fitted = ADDITIVE.fit([*variants, observe_idle(device)])
    assert find_mape(fitted, networks, true_energies(device, networks)) < 20


def find_mape(fitted, networks, truth_j):
    return 100 * np.mean(np.abs(predict(fitted, networks).energy_j / truth_j - 1))


def test_observations_of_another_unit_are_adjusted_to_the_latest(observations):
    """A few observations of one's own unit, which takes 8 % less, adjust those of the other."""
    networks = draw_networks(6, seed=61)
    other = observe_on_unit(observations, "other", 1.0, 0.0)
    with_energy = [one for one in observations if one.energy_j]
    own = observe_on_unit(with_energy[:6], "own", 0.92, 1e6)
    fitted = ADDITIVE.fit([*own, *other])
    assert json.loads(json.dumps(fitted.to_dict())) == fitted.to_dict()
    unnamed = [replace(one, device=replace(one.device, unit="")) for one in (*other, *own)]
    other_j, adjusted_j, mixed_j = (
        predict(fit, networks).device_energy_j
        for fit in (ADDITIVE.fit(other), fitted, ADDITIVE.fit(unnamed))
    )
    assert (adjusted_j / other_j).mean() == pytest.approx(0.92, abs=0.015)
    assert (mixed_j / other_j).mean() > 0.95


def test_energies_of_another_unit_are_used_if_there_are_no_others(device, observations):
    """Durations of one's own unit without energies do not make everything cheaper."""
    networks = draw_networks(6, seed=61)
    many = [*observe_blocks(device, draw_networks(12, seed=5)), observe_idle(device)]
    timed = [replace(one, energy_j=None) for one in observations if one.trial.network.layers]
    own = observe_on_unit(timed, "own", 1.0, 1e6)
    fitted = ADDITIVE.fit([*observe_on_unit(many, "other", 1.0, 0.0), *own])
    plain_j = predict(ADDITIVE.fit(many), networks).device_energy_j
    assert predict(fitted, networks).device_energy_j == pytest.approx(plain_j, rel=0.05)


PREDICT = """
import json, sys
before = set(sys.modules)
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.families import make_family
from joulecast.records import Setup
fitted = AdditiveEstimator().load(json.load(open(sys.argv[1])))
prediction = fitted.predict([make_family("cnn5")], [Setup(batch=32)])
assert prediction.energy_j[0] > 0
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - {"joulecast"} - set(sys.stdlib_module_names)))
"""


def test_prediction_loads_numpy_alone(fitted, tmp_path):
    """Fitting may load more; an estimate must start fast."""
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fitted.to_dict()))
    command = [sys.executable, "-c", PREDICT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numpy"]


def test_a_module_that_was_read_is_less_certain(fitted):
    """It may do work that no layer shows."""
    network = draw_networks(1, seed=12)[0]
    found = predict(fitted, [network, replace(network, totals=StepTotals(1.0, 1.0, 1))])
    assert found.energy_j[0] == pytest.approx(found.energy_j[1])
    added = found.energy_sd_j[1] ** 2 - found.energy_sd_j[0] ** 2
    assert added > 0.8 * (READ_MODULE_SUM_ERROR_SD_SHARE * found.energy_j[0]) ** 2


def test_training_and_inference_have_models_of_their_own(device, monkeypatch):
    """Given enough of both; each predicts its phase, whatever was observed of the other."""
    monkeypatch.setattr(phases, "_MIN_OWN_ENERGIES", 20)
    networks, inference = draw_networks(6, seed=8), replace(SETUP, phase="inference")
    idle, training = observe_idle(device), observe_blocks(device, networks)
    forward = observe_blocks(device, networks, inference)
    assert ADDITIVE.fit([*training, idle, *forward[:19]]).inference is None
    both, some = ADDITIVE.fit([*training, idle, *forward]), networks[:3]
    assert both.inference is not None
    restored = ADDITIVE.load(both.to_dict())
    for setup, own in ((SETUP, training), (inference, forward)):
        alone_j = predict(ADDITIVE.fit([*own, idle]), some, setup).energy_j
        for fitted in (both, restored):
            assert predict(fitted, some, setup).energy_j == pytest.approx(alone_j)
    mixed = both.predict(some, [SETUP, inference, SETUP], joint=True)
    assert mixed.energy_cov is not None and mixed.energy_cov[0, 1] == 0.0
    assert (
        ADDITIVE.fit([*training, idle, *forward], both).observation_count == both.observation_count
    )


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
def fitted_runs(device):
    """A fit to forty runs with noisy energies; noise comes in pairs: its mean is zero."""
    half = NOISE_SHARE * np.random.default_rng(5).standard_normal(20)
    pairs = zip(draw_networks(40, seed=1), [*half, *-half], strict=True)
    return ADDITIVE.fit([import_run(device, network, float(noise)) for network, noise in pairs])


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
    with pytest.raises(MissingError, match="another log"):
        predict_runs(fitted_runs, networks, SETUP, STEPS, "another log")


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
    fitted = ADDITIVE.fit([import_run(device, network) for network in networks])
    truth_j = np.array(true_energies(device, networks))
    error = predict(fitted, networks).energy_j / truth_j - 1
    assert abs(np.median(error)) < 0.4 * np.median(OVERHEAD_J / STEPS / truth_j)


# What it proposes to measure next.


def make_target(count, seed=1, **options):
    networks = tuple(draw_networks(count, seed=seed))
    return Target(networks[0], SETUP, **{"networks": networks, "modes": MODES, **options})


def follow_proposals(device, target, limit=60, seen=()):
    """Measure what the estimator proposes; return proposals and observations."""
    observations, proposals, fitted = list(seen) or [observe_idle(device)], [], None
    limit += len(seen)
    while len(observations) < limit:
        proposal = ADDITIVE.propose(target, observations, fitted)
        fitted = proposal.fitted
        proposals.append(proposal)
        if proposal.trial is None:
            break
        observation = observe_step(device, proposal.trial, proposal.with_energy)
        cost_s = 2.0 if proposal.with_energy else 0.5
        observations.append(replace(observation, cost_s=cost_s))
    return proposals, observations


def test_campaigns_begin_with_whole_networks_and_all_kinds(device):
    target = make_target(8)
    proposals, _ = follow_proposals(device, target, limit=12)
    trials = [proposal.trial for proposal in proposals[:10]]
    # Six networks, and two layers of each of two kinds.
    assert [len(trial.network.layers) for trial in trials] == [5, 1, 1, 5, 5, 1, 1, 5, 5, 5]
    isolated = [trials[at].network.layers[0].kind for at in (1, 2, 5, 6)]
    assert isolated == ["conv2d", "linear"] * 2
    assert all(proposal.with_energy for proposal in proposals[:10])
    flops = {
        network: network_work(network, SETUP).total.flops
        for network in (target.network, *target.networks)
    }
    largest, smallest, middle = (flops[trials[at].network] for at in (0, 3, 4))
    assert (largest, smallest) == (max(flops.values()), min(flops.values()))
    assert middle == sorted(flops.values())[len(flops) // 2]


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_whole_networks_correct_what_isolated_layers_share(device, mode):
    """Layers alone take 10 % longer than in a network, at 5 % more power."""
    setup = replace(SETUP, batch=512)
    networks = draw_networks(26, seed=91)
    target, others = networks[:12], networks[20:]
    alone = [
        replace(one, duration_s=1.1 * one.duration_s, energy_j=1.1 * 1.05 * one.energy_j)
        for one in observe_blocks(device, networks[12:20], setup, mode)
    ]
    whole = [observe_step(device, Trial(network, setup)) for network in others]
    truth_j = np.array(true_energies(device, target, setup))

    def find_bias(observations):
        fitted = ADDITIVE.fit([*observations, observe_idle(device)])
        return np.mean(np.log(predict(fitted, target, setup).energy_j / truth_j))

    assert find_bias(alone) > 0.08
    assert abs(find_bias([*alone, *whole])) < 0.03


def test_proposals_bring_the_target_within_its_share(device):
    target = make_target(12, uncertainty_share=0.1)
    proposals, observations = follow_proposals(device, target)
    assert proposals[-1].trial is None
    assert proposals[-1].uncertainty_share <= 0.1
    assert "known within 10.0 %" in proposals[-1].reason
    assert any(not proposal.with_energy for proposal in proposals[:-1])
    prediction = predict(ADDITIVE.fit(observations), target.networks)
    assert prediction.energy_j == pytest.approx(true_energies(device, target.networks), rel=0.15)


def test_refused_trial_is_not_proposed_again():
    first = ADDITIVE.propose(make_target(3), [])
    second = ADDITIVE.propose(make_target(3), [Observation(first.trial)])
    assert second.trial is not None and second.trial.key != first.trial.key


def test_probing_proposes_energies_of_kinds_without_any(device):
    """All layers were timed, but only other kinds were measured with energy."""
    target = make_target(1, 3, networks=(), acquisition="probe", uncertainty_share=0.05)
    timed = [
        one
        for mode in ("graph", "eager")
        for one in observe_blocks(device, [target.network], mode=mode, energy=False)
    ]
    unrelated = [*observe_blocks(device, [make_family("lstm")]), observe_idle(device)]
    proposal = ADDITIVE.propose(target, [*unrelated, *timed])
    assert proposal.trial is not None and proposal.with_energy
    assert proposal.uncertainty_share > 0.3


def test_rule_of_the_paper_is_available(device):
    proposals, _ = follow_proposals(device, make_target(6, acquisition="energy"), limit=14)
    by_rule = [one for one in proposals if one.trial and "standard deviation" in one.reason]
    assert by_rule and all(proposal.with_energy for proposal in by_rule)


def test_structures_that_no_eager_step_showed_run_in_isolation(device):
    """Host time of a network that may not run as a whole comes from its layers, each once."""
    target = make_target(1, 51, acquisition="probe")
    _, observations = follow_proposals(device, target)
    eager = [
        one
        for one in observations
        if one.trial.execution.mode == "eager" and one.trial.network.layers
    ]
    structures = [set_up_layer(read_isolated_block(one.trial), SETUP).structure for one in eager]
    assert all(one.energy_j is None and one.issue_s for one in eager)
    expected = {one.layer.structure for one in split_layers(target.network, SETUP)}
    assert sorted(structures) == sorted(expected)


def test_everything_is_eager_without_graphs(device):
    proposals, _ = follow_proposals(device, make_target(2, 81, modes=("eager",)), limit=10)
    trials = [one.trial for one in proposals if one.trial]
    assert {trial.mode for trial in trials} == {"eager"}
    assert [len(trial.network.layers) for trial in trials[:4]] == [5, 1, 1, 5]


def test_after_timing_all_layers_probes_measure_the_largest_energies(device, observations):
    """Durations alone do not show what slow kernels draw."""
    target = make_target(1, 33, acquisition="probe")
    proposals, seen = follow_proposals(device, target, 40, observations)
    assert proposals[0].trial in proposals[0].probes and proposals[-1].trial is None
    metered = [one for one in proposals if one.trial and one.with_energy]
    assert metered and "of the energy" in metered[0].reason
    layers = read_target(target, seen)
    energies_j = {
        layer.key: true_energies(device, [make_isolated_network(layers.blocks[layer.key])])[0]
        for layer in layers.layers
    }
    covered_j = sum(energies_j[key] for key in layers.energy_keys)
    assert covered_j > 0.5 * sum(energies_j.values()) or len(layers.energy_keys) >= 6


def test_measured_timed_and_refused_layers_are_distinguished(device):
    target = make_target(5)
    first, second, third, *_ = observe_blocks(device, target.networks)
    layers = read_target(target, [first, replace(second, energy_j=None), Observation(third.trial)])
    (measured,), (refused,) = layers.energy_keys, layers.refused_keys
    (timed,) = layers.duration_keys - layers.energy_keys
    assert measured in layers.duration_keys and layers.observation_count == 2
    assert not layers.lacks(refused, with_energy=True)
    assert [layers.lacks(timed, with_energy=flag) for flag in (True, False)] == [True, False]


def test_probes_are_all_layers_that_were_not_timed(device):
    target = make_target(5)
    everything = observe_blocks(device, target.networks, energy=False)
    for count in (0, len(everything) // 2, len(everything)):
        assert len(list_probes(target, everything[:count])) == len(everything) - count


def test_output_without_weights_is_timed_once(device):
    """It runs without its loss, which it would not train; that shows it all the same."""
    first = make_layer("linear", cin=8, cout=8)
    total = replace(make_layer("elementwise", fn="add", inputs=2, shape=(8,)), reads=(1, 2))
    network = Network((first, first, replace(total, join="add")), Input((8,)))
    target = Target(network, SETUP, modes=MODES)
    probes = {one.network.layers[0].kind: one for one in list_probes(target, [])}
    assert probes["elementwise"].execution.upstream == "random"
    assert not list_probes(target, observe_blocks(device, [network], energy=False))


# Devices that start from others: like ones, unlike ones, and what is stored of them.


@pytest.fixture(scope="module")
def source(fitted):
    return fitted.as_source("simulated-201", "key")


TIME_FACTOR, POWER_FACTOR = 1.7, 0.6


def observe_twin(observations, time_factor=TIME_FACTOR):
    """Return observations of a device with the same law, only slower and of less power."""
    return [
        replace(
            one,
            duration_s=time_factor * one.duration_s,
            issue_s=None if one.issue_s is None else time_factor * one.issue_s,
            energy_j=one.energy_j and time_factor * POWER_FACTOR * one.energy_j,
        )
        for one in observations
    ]


@pytest.fixture(scope="module")
def few(device):
    """A few observations of a twin of the source."""
    return observe_twin(observe_device(device, draw_networks(1, seed=8)))


@pytest.fixture(scope="module")
def transferred(few, source):
    return AdditiveEstimator((source,)).fit(few)


def list_operators(networks):
    return encode_sums([count_network(one) for one in networks]).operators


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


def test_like_source_helps_and_an_unlike_one_does_no_harm(few, source, transferred, device):
    """Residuals of the opposite sign teach nothing, so that none of them is shared."""
    weights = source.duration.input_weights
    negated = replace(source.duration, input_weights=type(weights).pack(-weights.unpack()))
    unlike = AdditiveEstimator((replace(source, duration=negated),)).fit(few)
    networks = draw_networks(20, seed=9)
    truth_j = TIME_FACTOR * POWER_FACTOR * np.array(true_energies(device, networks))
    like, other, cold = (
        find_mape(one, networks, truth_j) for one in (transferred, unlike, ADDITIVE.fit(few))
    )
    assert like < 0.8 * cold and other < 1.3 * cold
    assert 0.5 < transferred.duration.prior.coefficients[-1] < 1.5
    assert unlike.duration.prior.coefficients[-1] < 0.4
    # Several sources have a share each.
    both = AdditiveEstimator((source, replace(source, name="another"))).fit(few)
    assert 0.5 < both.duration.prior.coefficients[-2:].sum() < 1.5


def test_own_observations_outweigh_sources(few, source):
    """Whatever the source says, blocks that were measured cost what was measured."""
    strange = [replace(one, duration_s=3.0 * one.duration_s) for one in few[:3]]
    layers = [layer for one in decompose_observations(strange) for layer in one.counts]
    operators = [one for layer in layers for one, _ in layer.operators_alone]
    assert operators
    totals = []
    for sources in ((source,), ()):
        fitted = AdditiveEstimator(sources).fit([*strange, *few[3:]])
        means = fitted.duration.predict_mean(fitted.encoder.encode_durations(operators))
        totals.append(np.log(np.exp(means).sum()))
    assert totals[0] == pytest.approx(totals[1], abs=0.1)


def test_intervals_stay_honest():
    """On three devices of other laws, from few blocks of each."""

    def observe_networks(seed, *drawn):
        device = make_simulated_device(seed, noise=0.0)
        return device, observe_device(device, draw_networks(*drawn))

    learnt = ADDITIVE.fit(observe_networks(210, 6, 1)[1])
    source, errors = learnt.as_source("first", "first"), []
    for seed in (211, 212, 213):
        device, observations = observe_networks(seed, 2, 2)
        networks = draw_networks(15, seed=3)
        found = predict(AdditiveEstimator((source,)).fit(observations), networks)
        sds = np.sqrt(log_variance(found.energy_j, found.energy_sd_j**2))
        errors.extend(np.log(found.energy_j / true_energies(device, networks)) / sds)
    assert np.mean(np.abs(errors) < 1.96) >= 0.85


def test_later_fits_keep_their_sources(few, transferred, source, device):
    more = observe_twin(observe_blocks(device, draw_networks(1, seed=11)))
    again = ADDITIVE.fit([*few, *more[:2]], transferred)
    assert again.sources == (source,) and again.fitted_count == transferred.fitted_count
    anew = ADDITIVE.fit([*few, *more, *observe_twin(few, 1.71)], transferred)
    assert anew.sources == (source,) and anew.fitted_count > transferred.fitted_count
    other = replace(source, name="another")
    assert AdditiveEstimator((other,)).fit(few, transferred).sources == (other,)


def test_sources_are_named_and_stored(transferred, few):
    found = transferred.predict(draw_networks(1), [SETUP], per_layer=True)
    assert found.notes[0][0].startswith("Transferred from simulated-201: ")
    # A device that started from others can be a source.
    chained = AdditiveEstimator((transferred.as_source("twin", "twin"),)).fit(few)
    restored = ADDITIVE.load(json.loads(json.dumps(chained.to_dict())))
    networks = draw_networks(2, seed=4)
    assert (predict(restored, networks).energy_j == predict(chained, networks).energy_j).all()
    assert restored.sources[0].encoder.sources[0].name == "simulated-201"


def test_source_without_a_posterior_mean_is_conditioned(model, monkeypatch):
    """Fits of very many observations keep no weights of all of them."""
    monkeypatch.setattr(relinearisation, "_MAX_JOINT_ROWS", 10)
    monkeypatch.setattr(relinearisation, "_BATCH", 5)
    large = relinearisation.keep_linearisation(model.duration)
    assert large.row_weights is None
    inputs = model.encoder.encode_durations(list_operators(draw_networks(2, seed=1)))
    one, two = (SourceMean.from_fitted(each).predict(inputs)[0] for each in (large, model.duration))
    assert one == pytest.approx(two, abs=0.02)


# Observations as sums over layers, and what was measured of kinds and networks.


@pytest.fixture(scope="module")
def network():
    return draw_networks(1, seed=3)[0]


@pytest.fixture(scope="module")
def run(device, network):
    return observe_step(device, Trial(network, SETUP))


def test_network_and_isolated_blocks_have_the_same_layers(device, network, run):
    blocks = decompose_observations(observe_blocks(device, [network], mode="eager"))
    # The idle device is left out; a user's module may do more than its layers show.
    own = replace(run, source=OWN_NET)
    whole, module = decompose_observations([run, observe_idle(device), own])
    assert module.counts == whole.counts
    assert module.energy_relative_var > whole.energy_relative_var
    assert set(whole.counts) == {layer for one in blocks for layer in one.counts}
    assert all(one.is_isolated for one in blocks) and not whole.is_isolated
    sum_var = ISOLATED_SUM_ERROR_SD_SHARE**2
    assert whole.energy_relative_var - blocks[0].energy_relative_var == pytest.approx(sum_var)


def test_sum_error_is_larger_if_a_host_runs_ahead_without_graphs(device, network):
    eager = decompose_observations(observe_blocks(device, [network], mode="eager"))
    ahead = [replace(one, issue_s=0.1 * one.duration_s) for one in eager]
    bound = [replace(one, issue_s=one.duration_s) for one in eager]
    graphs = [replace(ahead[0], mode="graph"), *ahead[1:]]
    shares = [choose_sum_error_sd_share(some) for some in (ahead, bound, graphs)]
    assert shares == [MIXED_TIME_SUM_ERROR_SD_SHARE, *[ISOLATED_SUM_ERROR_SD_SHARE] * 2]


def test_idle_power_is_that_of_steps_without_layers(device, run):
    idle = observe_idle(device)
    assert find_idle_power([run]) is None
    assert find_idle_power([run, idle]) == pytest.approx(idle.energy_j / idle.duration_s)


def test_observations_are_decomposed_once(observations):
    first, second = decompose_observations(observations), decompose_observations(observations)
    assert all(one is two for one, two in zip(first, second, strict=True))
    assert decompose_observations([replace(one) for one in observations]) == first


@pytest.fixture(scope="module")
def kinds(observations):
    return summarise_kinds(decompose_observations(observations))


def predict_all(model, *networks):
    return predict_totals(model, [count_network(network) for network in networks], 0.0)


def test_distinct_layers_are_counted_and_added(device):
    first = observe_blocks(device, draw_networks(2, seed=1))
    timed = observe_blocks(device, draw_networks(2, seed=2), energy=False)
    keys = {one.trial.key for one in first}
    timed = [one for one in timed if one.trial.key not in keys]
    rows = [decompose_observations(some) for some in (first, timed)]
    one, two, both = map(summarise_kinds, (rows[0], rows[1], [*rows[0], *rows[0], *rows[1]]))
    assert add_kinds(one, two) == both and add_kinds(one, {}) == one
    for label in ("conv2d fp32", "linear+loss fp32"):
        own = [row for row in rows[0] if label in {layer.label for layer in row.counts}]
        assert both[label].duration_points > both[label].energy_points == len(own) > 0


def test_unmeasured_kinds_and_sizes_are_unseen_and_noted(model, kinds):
    def linear(width):
        return Network((make_layer("linear", cin=width, cout=width),), Input((width,)))

    known, unknown = draw_networks(1, seed=5)[0], make_family("transformer:64,2")
    shares = find_unseen_shares(kinds, predict_all(model, known, unknown))
    assert shares[0] == 0.0 and 0.1 < shares[1] < 1.0
    assert find_unseen_shares({}, predict_all(model, known)) == (1.0,)
    totals = predict_all(model, make_family("lstm"), linear(64), linear(16384))
    unseen, small, large = note_extrapolation(kinds, totals)
    assert "lstm fp32 was never measured: estimated from similar operators" in unseen
    assert not any("linear" in one for one in small)
    assert any(one.startswith("extrapolated") and "linear fp32" in one for one in large)


def test_half_precisions_share_what_was_measured():
    fp16, bf16, fp32 = MeasuredKind(1), MeasuredKind(2), MeasuredKind(3)
    measured = {"relu fp16": fp16, "gelu bf16 inference": bf16, "add fp32": fp32, "add fp16": fp16}
    shared = share_half_precisions(measured)
    assert shared["relu bf16"] == fp16 and shared["gelu fp16 inference"] == bf16
    assert shared["add fp32"] == fp32 and len(shared) == 7


def test_steps_bound_their_kernels(device):
    """A step that its host limits, but that is shorter than similar layers suggest."""
    setup = replace(SETUP, batch=512)
    network, *others = draw_networks(9, seed=95)
    longer = [
        replace(one, duration_s=1.3 * one.duration_s)
        for one in observe_blocks(device, others, setup)
    ]
    step = observe_step(device, Trial(network, setup))
    step = replace(step, issue_s=step.duration_s)

    def predict_device_s(observed):
        fitted = ADDITIVE.fit([*observed, observe_idle(device)])
        return predict_totals(fitted, [count_network(network, setup)], 0.0).durations.total[0]

    before_s, after_s = predict_device_s(longer), predict_device_s([*longer, step])
    assert before_s > 1.2 * step.duration_s
    assert after_s - step.duration_s < 0.8 * (before_s - step.duration_s)


def test_intervals_are_wider_at_aligned_sizes_until_some_were_measured(device):
    """Channels in multiples of 64 run other kernels, here in half the time of others."""
    setup = replace(SETUP, batch=256, precision="tf32")
    rng = np.random.default_rng(7)

    def observe_conv(width, factor):
        layer = make_layer("conv2d", cin=width, cout=width, space=(16, 16), kernel=(3, 3))
        block = split_blocks(Network((layer,), Input((width, 16, 16))))[0].block
        one = observe_step(device, make_isolated_trial(block, setup, "graph"))
        return replace(one, duration_s=factor * one.duration_s, energy_j=factor * one.energy_j)

    others = [observe_conv(int(width) | 1, 1.0) for width in rng.integers(60, 560, 24)]
    aligned = [observe_conv(width, 0.5) for width in (64, 192, 320, 448, 576)]

    def predict_ratios(observed):
        """Return estimated over measured durations of aligned layers, and their log sds."""
        fitted = ADDITIVE.fit([*observed, observe_idle(device)])
        counts = [{set_up_layer(read_isolated_block(one.trial), setup): 1.0} for one in aligned]
        sums = fitted.encoder.sum_layers(counts, [False] * len(counts))
        found = predict_durations(fitted.encoder, fitted.duration, sums)
        measured_s = [one.duration_s / one.trial.execution.copies for one in aligned]
        return found.total / measured_s, np.sqrt(found.logs.log_variance)

    unseen, unseen_sds = predict_ratios(others)
    assert np.all(np.abs(np.log(unseen)) < 3.0 * unseen_sds)
    seen, seen_sds = predict_ratios([*others, *aligned[1:4:2]])
    assert np.abs(np.log(seen)).mean() < 0.5 * np.abs(np.log(unseen)).mean()
    assert seen_sds.mean() < 0.7 * unseen_sds.mean()
