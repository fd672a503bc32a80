"""What the additive estimator proposes to measure next."""

from dataclasses import replace

import pytest

from additive_examples import (
    FAMILY,
    SETUP,
    draw_networks,
    list_probes,
    observe_blocks,
    observe_idle,
    observe_step,
    predict,
    true_energies,
)
from joulecast.estimators.additive.acquisition import (
    read_target,
)
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.layers import set_up_layer, split_layers
from joulecast.estimators.base import Target
from joulecast.families import make_family
from joulecast.operators import make_layer
from joulecast.records import MODES, Input, Network, Observation
from joulecast.variants import (
    make_isolated_network,
    make_isolated_trial,
    read_isolated_block,
    split_blocks,
)


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
