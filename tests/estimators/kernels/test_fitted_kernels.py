"""Test sums of kernels and their intervals."""

import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.kernels import (
    KernelProcessEstimator,
    count_kernels,
    fit_process,
    fit_work_mean,
    group_by_setup,
    is_readable,
    make_overhead_trial,
    name_setup,
    read_points,
)
from joulecast.families import draw_family, make_family
from joulecast.records import Execution, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import run_short_campaign
from joulecast.variants import BLOCK, Part, make_isolated_trial
from kernel_examples import SETUP, TABLE, draw_convs, find_durations, make_conv

SHAPE = (3, 64, 64)


@pytest.fixture(scope="module")
def device():
    return make_simulated_device(5, noise=0.0)


@pytest.fixture(scope="module")
def fitted(device):
    """A fit to 45 trials that a campaign for a family proposes."""
    draw = random.Random(0)
    networks = tuple(draw_family("resnet", draw.randint, SHAPE) for _ in range(4))
    target = Target(make_family("resnet", SHAPE), SETUP, networks=networks)
    estimator = KernelProcessEstimator()
    return estimator.fit(run_short_campaign(estimator, target, 45, device))


def test_unseen_members_are_predicted(device, fitted):
    draw = random.Random(1)
    networks = [draw_family("resnet", draw.randint, SHAPE) for _ in range(8)]
    truth = [device.true_cost(Trial(network, SETUP)) for network in networks]
    found = fitted.predict(networks, [SETUP] * 8)
    energies = np.array([cost.energy_j for cost in truth])
    durations = np.array([cost.duration_s for cost in truth])
    assert np.abs(found.energy_j / energies - 1.0).mean() < 0.1
    assert np.abs(found.duration_s / durations - 1.0).mean() < 0.1
    assert (np.abs(found.energy_j - energies) < 2.5 * found.energy_sd_j).mean() > 0.7
    assert found.duration_sd_s is not None and (found.duration_sd_s > 0).all()


def test_durations_without_energies_give_no_energy(device):
    estimator, network = KernelProcessEstimator(), make_family("cnn5")
    metered = run_short_campaign(estimator, Target(network, SETUP), 12, device)
    timed = [replace(one, energy_j=None, energy_sd_j=None) for one in metered]
    found = estimator.fit(timed).predict([network], [SETUP], joint=True, per_layer=True)
    expected = estimator.fit(metered).predict([network], [SETUP])
    assert found.duration_s == pytest.approx(expected.duration_s)
    assert np.isnan(found.energy_j).all() and np.isnan(found.energy_sd_j).all()
    assert found.layers == ((),)


def test_kinds_that_were_never_measured_are_named(fitted):
    found = fitted.predict([make_family("transformer")], [SETUP])
    assert 0.3 < found.unseen_share[0] <= 1.0
    assert "attention" in found.notes[0][0]


def test_equal_networks_share_their_scatter(fitted):
    draw = random.Random(2)
    one, other = (draw_family("resnet", draw.randint, SHAPE) for _ in range(2))
    cov = fitted.predict([one, other, one], [SETUP] * 3, joint=True).energy_cov
    assert cov[0, 2] == pytest.approx(cov[0, 0])
    assert cov[0, 1] < np.sqrt(cov[0, 0] * cov[1, 1])


def fit_convs(count=60):
    kernels = draw_convs(count)
    return fit_process(kernels, find_durations(kernels), np.full(count, 0.01))


def test_unseen_kernels_are_predicted():
    others = draw_convs(40, seed=1)
    means, cov = fit_convs().predict(others)
    errors = np.log(find_durations(others)) - means
    assert np.abs(errors).mean() < 0.05
    assert (np.abs(errors) < 1.96 * np.sqrt(np.diag(cov))).mean() > 0.85
    assert np.linalg.eigvalsh(cov).min() > -1e-9


def test_powers_are_not_proportional_to_work():
    kernels = draw_convs(30)
    fitted = fit_process(kernels, np.full(30, 12.0), np.full(30, 0.01), by_work=False)
    means, _ = fitted.predict([make_conv(3, 3, 3), make_conv(500, 500, 100)])
    assert np.exp(means) == pytest.approx(12.0, rel=0.05)


def test_errors_of_similar_kernels_are_correlated():
    fitted = fit_convs(12)
    _, cov = fitted.predict([make_conv(300, 300, 90), make_conv(301, 300, 90), make_conv(3, 4, 5)])
    correlation = cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert correlation[0, 1] > 0.5 > correlation[0, 2]


def test_costs_of_kernels_that_ran_together_are_divided():
    kernels = draw_convs(40)
    rates = np.array([2e-12, 3e-10, 0.0, 5e-6])
    groups = [kernels[at : at + 2] for at in range(0, 40, 2)]
    costs = np.array([(count_kernels(group) @ rates).sum() for group in groups])
    assert fit_work_mean(groups, costs).rates == pytest.approx(rates, rel=1e-3, abs=1e-20)


def observe(trial, duration_s, energy_j=None, **more):
    return Observation(trial, energy_j, duration_s=duration_s, duration_sd_s=0.0, **more)


def make_kernel_trial():
    return make_isolated_trial(Part(BLOCK, make_conv(8, 16, 10).network.layers), SETUP)


def test_kernel_costs_what_is_left_of_a_run_divided_by_its_copies():
    trial = make_kernel_trial()
    copies = trial.execution.copies
    empty = observe(make_overhead_trial(SETUP), 1e-3, 2e-3)
    seen = observe(trial, 1e-3 + copies * 4e-3, 2e-3 + copies * 12e-3)
    overhead, (point,) = read_points([seen, empty], TABLE)
    assert overhead.duration_s == 1e-3 and overhead.energy_j == 2e-3
    assert point.is_single and point.kernels[0].count == copies
    assert point.duration_s == pytest.approx(copies * 4e-3)
    assert point.power_w == pytest.approx(3.0)


def test_overhead_is_zero_where_no_empty_graph_was_observed():
    overhead, (point,) = read_points([observe(make_kernel_trial(), 1.0)], TABLE)
    assert overhead.duration_s == 0.0 and point.power_w is None


def test_kernel_costs_something_even_if_the_overhead_was_larger():
    empty = observe(make_overhead_trial(SETUP), 5e-3)
    _, (point,) = read_points([observe(make_kernel_trial(), 4e-3), empty], TABLE)
    assert point.duration_s == pytest.approx(4e-4)
    assert point.duration_sd_share == pytest.approx(0.1)


def test_steps_of_an_observation_are_divided():
    trial = make_kernel_trial()
    ten = replace(trial, execution=replace(trial.execution, steps=10))
    one, other = (
        read_points([observe(each, total)], TABLE)[1][0].duration_s
        for each, total in ((trial, 2.0), (ten, 20.0))
    )
    assert one == pytest.approx(other)


def test_networks_have_all_their_kernels():
    network = make_family("resnet18", (3, 32, 32))
    _, (point,) = read_points([observe(Trial(network, SETUP), 1.0)], TABLE)
    assert not point.is_single
    assert sum(kernel.count for kernel in point.kernels) > len(point.kernels)


def test_batch_size_and_loss_do_not_tell_setups_of_inference_apart():
    assert name_setup(SETUP) == name_setup(Setup(8, "inference", optimizer="adam", loss="mse"))
    assert name_setup(SETUP) != name_setup(replace(SETUP, threads=2))
    assert name_setup(Setup()) != name_setup(Setup(optimizer="adam"))


def test_only_whole_steps_with_a_duration_are_read():
    trial = make_kernel_trial()
    assert is_readable(observe(trial, 1.0))
    assert not is_readable(Observation(trial, energy_j=1.0))
    graph = Trial(trial.network, SETUP, Execution(mode="graph"))
    assert not is_readable(observe(graph, 1.0))
    groups = group_by_setup([observe(trial, 1.0), observe(graph, 1.0)])
    assert [len(group) for group in groups.values()] == [1]
