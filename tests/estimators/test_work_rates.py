"""Test rates per FLOP, byte and launch."""

import numpy as np
import pytest

from joulecast.estimators.base import count_work, fit_work_rates
from joulecast.kinds import Work

RATES = np.array([3e-12, 2e-10, 5e-6])


def draw_work(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 1.0, (count, 3)) * [1e10, 1e7, 20.0]


def test_rates_are_recovered_although_they_differ_by_orders_of_magnitude():
    work = draw_work(20)
    rates, error_share = fit_work_rates(work, work @ RATES, work @ RATES)
    assert rates == pytest.approx(RATES, rel=1e-6)
    assert error_share == pytest.approx(0.0, abs=1e-6)


def test_rates_are_never_negative():
    work = draw_work(20)
    costs = work @ (RATES * [1.0, -1.0, 1.0])
    rates, _ = fit_work_rates(work, np.maximum(costs, 1e-6), np.ones(20))
    assert (rates >= 0).all()


def test_error_share_is_the_root_mean_square_of_relative_errors():
    work = draw_work(200)
    noise = np.random.default_rng(1).normal(1.0, 0.05, 200)
    costs = work @ RATES * noise
    _, error_share = fit_work_rates(work, costs, costs)
    assert error_share == pytest.approx(0.05, rel=0.2)


def test_work_is_counted_as_flops_bytes_and_launches():
    counted = count_work(Work(flops=7.0, size_bytes=5.0, launches=2))
    assert counted == pytest.approx([7.0, 5.0, 2.0])
