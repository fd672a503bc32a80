"""Test the linear function of work."""

import numpy as np
import pytest

from joulecast.estimators.kernels.fitted_kernels import count_kernels, find_depth, fit_work_mean
from kernel_examples import draw_convs, make_conv, make_linear


def test_depth_is_the_flops_of_one_output():
    assert find_depth(make_linear(30, 7)) == 60
    assert find_depth(make_conv(8, 16, 10, 3)) == 2 * 8 * 9


def test_rates_are_found_again():
    kernels = draw_convs(40)
    rates = np.array([2e-12, 3e-10, 4e-9, 5e-6])
    found = fit_work_mean([(kernel,) for kernel in kernels], count_kernels(kernels) @ rates)
    assert found.rates == pytest.approx(rates, rel=1e-3)
    others = draw_convs(5, seed=1)
    assert np.exp(found.log_costs(others)) == pytest.approx(count_kernels(others) @ rates, rel=1e-3)


def test_costs_of_kernels_that_ran_together_are_divided():
    kernels = draw_convs(40)
    rates = np.array([2e-12, 3e-10, 0.0, 5e-6])
    groups = [kernels[at : at + 2] for at in range(0, 40, 2)]
    costs = np.array([(count_kernels(group) @ rates).sum() for group in groups])
    assert fit_work_mean(groups, costs).rates == pytest.approx(rates, rel=1e-3, abs=1e-20)


def test_error_of_an_exact_fit_is_unknown():
    kernels = draw_convs(2)
    assert fit_work_mean([(kernel,) for kernel in kernels], np.array([1.0, 2.0])).log_sd >= 0.2
