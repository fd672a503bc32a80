"""Logarithms of sums around log values."""

import numpy as np
import pytest

from joulecast.gp.logsums.linearisation import linearise, log_sums
from joulecast.gp.weighted_sums import WeightedSums
from logsums_examples import draw_sums


@pytest.fixture
def counts():
    return draw_sums(np.random.default_rng(0), 10, 3, 6).counts


def test_linearisation_has_value_and_slope_of_the_sum(counts):
    rng = np.random.default_rng(1)
    values = rng.normal(size=10)
    linear = linearise(counts, values)
    assert linear.evaluate(values) == pytest.approx(log_sums(counts, values))
    step = 1e-6 * rng.normal(size=10)
    change = log_sums(counts, values + step) - log_sums(counts, values - step)
    assert 2.0 * linear.weights.total(step) == pytest.approx(change, rel=1e-5, abs=1e-12)
    assert linear.weights.sum_entries(linear.weights.weight) == pytest.approx(np.ones(counts.size))


def test_single_inputs_are_exact(counts):
    values, other = np.random.default_rng(2).normal(size=(2, 10))
    linear = linearise(
        counts.__class__(3, counts.row[:3], counts.column[:3], counts.weight[:3]), values
    )
    assert linear.evaluate(other) == pytest.approx(log_sums(counts, other)[:3])


def test_large_and_small_values_do_not_overflow():
    counts = WeightedSums(2, np.array([0, 0, 1]), np.arange(3), np.array([2.0, 1.0, 1.0]))
    found = log_sums(counts, np.array([1000.0, -1000.0, -2000.0]))
    assert found == pytest.approx([1000.0 + np.log(2.0), -2000.0])
    assert log_sums(WeightedSums(1, *np.zeros((2, 0), int), np.zeros(0)), np.zeros(1))[0] == -np.inf
