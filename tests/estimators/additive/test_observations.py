"""Observations as sums over layers, and what was measured of kinds and networks."""

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    count_network,
    draw_networks,
    observe_blocks,
    observe_idle,
    observe_on_unit,
    observe_step,
)
from joulecast.estimators.additive.estimator import (
    find_unseen_shares,
    note_extrapolation,
    update_prediction,
)
from joulecast.estimators.additive.layers import make_overhead, split_layers
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
from joulecast.estimators.additive.predict import predict_totals
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    MIXED_TIME_SUM_ERROR_SD_SHARE,
    Prediction,
)
from joulecast.families import make_family
from joulecast.operators import make_layer
from joulecast.records import OWN_NET, Execution, Input, LayerEstimate, Network, Observation, Trial


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


def predict(model, *networks):
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
        kinds, predict(model, draw_networks(1, seed=5)[0], make_family("transformer:64,2"))
    )
    assert shares[0] == 0.0
    assert 0.1 < shares[1] < 1.0
    assert find_unseen_shares({}, predict(model, draw_networks(1, seed=5)[0])) == (1.0,)


def test_kinds_that_were_never_measured_are_noted(model, kinds):
    (notes,) = note_extrapolation(kinds, predict(model, make_family("lstm")))
    assert "lstm fp32 was never measured: estimated from similar operators" in notes


def test_sizes_beyond_measured_ones_are_noted(model, kinds):
    small, large = note_extrapolation(kinds, predict(model, *map(linear_network, (64, 16384))))
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
