"""Test how observations are read as costs of kernels."""

from dataclasses import replace

import pytest

from joulecast.estimators.kernels.fitted_kernels import (
    group_by_setup,
    is_readable,
    make_overhead_trial,
    name_setup,
    read_points,
)
from joulecast.families import make_family
from joulecast.records import Execution, Observation, Setup, Trial
from joulecast.variants import BLOCK, Part, make_isolated_trial
from kernel_examples import SETUP, TABLE, make_conv


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
