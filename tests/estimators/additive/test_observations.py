"""Observations as sums over layers."""

from dataclasses import replace

import pytest

from additive_examples import (
    SETUP,
    draw_networks,
    observe_idle,
    observe_on_unit,
    observe_parts,
    observe_step,
)
from joulecast.estimators.additive.layers import make_overhead
from joulecast.estimators.additive.observations import (
    choose_sum_error_sd_share,
    decompose_observations,
    find_idle_power,
    find_latest_unit,
    is_step,
    split_phases,
)
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    MIXED_TIME_SUM_ERROR_SD_SHARE,
)
from joulecast.records import OWN_NET, Execution, Observation, Trial


@pytest.fixture(scope="module")
def network():
    return draw_networks(1, seed=3)[0]


def test_network_and_isolated_parts_have_the_same_layers(device, network):
    parts = decompose_observations(observe_parts(device, [network], mode="eager"))
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
    eager = decompose_observations(observe_parts(device, [network], mode="eager"))
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
