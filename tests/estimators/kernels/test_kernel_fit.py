"""Test what is fitted to kernels and whole networks."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.kernels.estimator import fit_setup
from joulecast.estimators.kernels.fitted_kernels import fit_process
from joulecast.estimators.kernels.kernel_points import CostPoint, RunOverhead, SetupPoints
from kernel_examples import draw_convs, find_durations, make_linear


def make_points(kernels, power_w=10.0):
    durations = find_durations(kernels)
    return [
        CostPoint((one,), float(duration), 0.01, power_w, 0.01)
        for one, duration in zip(kernels, durations, strict=True)
    ]


def make_network_point(seed, factor):
    kernels = draw_convs(10, seed)
    total = factor * float(find_durations(kernels).sum())
    return CostPoint(tuple(kernels), total, 0.01, 10.0, 0.01)


def fit_points(*points):
    return fit_setup(SetupPoints(RunOverhead(), tuple(points)), fit_process)


def test_kinds_and_main_operators_have_regressions():
    model = fit_points(*make_points(draw_convs(20)))
    assert set(model.duration.regressions) == {"conv+relu", "conv+..."}
    assert model.duration.find_regression("conv+bn+add") is not None
    assert model.duration.find_regression("fc") is None
    assert model.power.mean.rates[-1] == pytest.approx(10.0)


def test_kind_with_few_kernels_costs_what_its_work_costs():
    model = fit_points(*make_points([*draw_convs(20), make_linear(100, 100)]))
    assert "fc" not in model.duration.regressions
    log_costs, cov = model.duration.predict([make_linear(200, 200), make_linear(300, 300)])
    assert np.isfinite(log_costs).all()
    # One rate for all of them: their errors are the same.
    assert cov[0, 1] == pytest.approx(cov[0, 0]) and cov[0, 0] >= 0.2**2


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_whole_networks_show_a_factor(factor):
    networks = [make_network_point(seed, factor) for seed in range(5, 12)]
    model = fit_points(*make_points(draw_convs(60)), *networks)
    found = model.duration.factor
    assert np.exp(found.log_mean) == pytest.approx(factor, rel=0.04)
    assert found.count == 7 and found.log_variance < 0.03**2
    assert np.exp(model.power.factor.log_mean) == pytest.approx(1.0, rel=0.03)


def test_without_networks_the_factor_is_unknown():
    found = fit_points(*make_points(draw_convs(20))).duration.factor
    assert found.count == 0 and found.log_mean == 0.0 and found.log_variance == pytest.approx(0.01)


def test_times_alone_are_enough():
    points = [replace(one, power_w=None) for one in make_points(draw_convs(20))]
    model = fit_points(*points)
    assert not model.power.regressions and model.power.mean.count == 0


def test_networks_alone_give_costs_by_work():
    model = fit_points(*(make_network_point(seed, 1.0) for seed in range(6)))
    assert not model.duration.regressions
    truth = find_durations(draw_convs(10, seed=9)).sum()
    found = np.exp(model.duration.predict(draw_convs(10, seed=9))[0]).sum()
    assert found == pytest.approx(truth, rel=0.4)
