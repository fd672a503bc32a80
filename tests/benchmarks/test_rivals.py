"""Test the rivals: a plug-in of two estimators that pass the contract of all estimators."""

import random

import numpy as np
import pytest

from benchmarks.rivals import neuralpower
from benchmarks.rivals.kernel_forest import KernelForestEstimator
from benchmarks.rivals.neuralpower import NeuralPowerEstimator
from joulecast.estimators import ESTIMATORS, find_estimator, fit_profile, list_estimator_names
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.records import Device, Observation, Profile, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import (
    SETUP,
    EstimatorContract,
    draw_networks,
    make_observations,
    run_short_campaign,
)
from joulecast.variants import split_network

RIVALS = ("kernel-forest", "neuralpower")


def test_rivals_are_found_by_name_and_not_built_in(rivals):
    assert list_estimator_names()[-2:] == RIVALS
    assert not set(RIVALS) & set(ESTIMATORS)
    profile = Profile(Device("a", "b"), "torch-2", "gpu", "simulated", make_observations())
    for name in RIVALS:
        assert fit_profile(profile, name).estimate(draw_networks(1), SETUP)[0].energy_j > 0


class TestNeuralPower(EstimatorContract):
    make_estimator = NeuralPowerEstimator


class TestKernelForest(EstimatorContract):
    make_estimator = KernelForestEstimator


def test_neuralpower_recovers_a_device_on_which_stages_cost_what_their_work_says():
    networks = [draw_family("lenet5", random.Random(4).randint)]

    def find_cost(stage):
        work = stage.work
        duration_s = 1e-5 * work.launches + 1e-11 * work.size_bytes + 1e-12 * work.flops
        return 20.0 * duration_s, duration_s

    def observe(trial):
        stage, times = neuralpower.read_stage(Observation(trial)).stage, trial.execution.copies
        energy_j, duration_s = find_cost(stage)
        return Observation(trial, energy_j * times, None, duration_s * times)

    estimator, target = neuralpower.NeuralPowerEstimator(), Target(make_family("lenet5"), SETUP)
    seen = []
    while (trial := estimator.propose(target, seen).trial) is not None:
        seen.append(observe(trial))
    sizes = {}
    for stage in (neuralpower.read_stage(one).stage for one in seen):
        sizes.setdefault(stage.type_key, set()).add(stage.block)
    # Four types and three stages; the first convolution has only six widths.
    assert sorted(map(len, sizes.values())) == [6] * 3 + [20] * 9
    fitted = estimator.fit(seen)
    assert estimator.load(fitted.to_dict()).observation_count == len(seen)
    found = fitted.predict(networks, [SETUP])
    parts = [placed.block for network in networks for placed in split_network(network)]
    truth = [find_cost(one) for part in parts for one in neuralpower.list_stages(part, SETUP)]
    assert found.energy_j[0] == pytest.approx(sum(cost[0] for cost in truth), rel=0.02)
    assert found.unseen_share == (0.0,)


def test_sizes_that_a_device_refuses_are_replaced_and_types_given_up():
    estimator, device = neuralpower.NeuralPowerEstimator(), make_simulated_device(1)
    target, seen = Target(make_family("lenet5:4,6,24,16"), SETUP), []
    while (trial := estimator.propose(target, seen).trial) is not None:
        is_refused = trial.network.layers[0].kind == "conv2d"
        energy_j = None if is_refused else device.true_cost(trial).energy_j
        seen.append(Observation(trial, energy_j, None, energy_j and 1.0))
    refused = [one for one in seen if one.energy_j is None]
    assert 0 < len(refused) <= 10 and len(seen) > 60


def test_polynomial_keeps_the_few_terms_that_made_the_values():
    rng = np.random.default_rng(0)
    columns = rng.uniform(0.05, 1.0, (40, 4))
    values = 0.5 + 3.0 * columns[:, 0] * columns[:, 1]
    fitted, left_out = neuralpower.fit_polynomial(columns, values, 3)
    unseen = rng.uniform(0.05, 1.0, (20, 4))
    assert fitted.predict(unseen) == pytest.approx(
        0.5 + 3.0 * unseen[:, 0] * unseen[:, 1], rel=1e-3
    )
    assert left_out == pytest.approx(values, rel=1e-2)
    assert len(fitted.weights) <= 5


def test_forest_shares_the_campaign_of_the_process():
    forest = KernelForestEstimator()
    target, device = Target(make_family("lenet5"), SETUP), make_simulated_device(3, noise=0.0)
    assert forest.campaign == "kernel-gp"
    seen = run_short_campaign(forest, target, 3, device)
    process = find_estimator("kernel-gp")
    assert forest.propose(target, seen).trial == process.propose(target, seen).trial
    assert Trial(target.network, SETUP).key not in {one.trial.key for one in seen[:1]}
