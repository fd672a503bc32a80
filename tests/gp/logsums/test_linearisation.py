"""Logarithms of sums around log values."""

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.posterior import linearise, log_sums
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


@pytest.mark.parametrize("is_shared", [False, True])
def test_expectation_of_a_sum_agrees_with_monte_carlo(is_shared):
    """Independent deviations average out and raise the sum; a common one does not."""
    rng, size, sd = np.random.default_rng(3), 12, 0.3
    counts = WeightedSums(1, np.zeros(size, int), np.arange(size), rng.uniform(1.0, 3.0, size))
    values = rng.normal(size=size)
    weight = linearise(counts, values).weights.weight
    sum_variance = sd**2 * (1.0 if is_shared else (weight**2).sum())
    linear = linearise(counts, values, np.full(size, sd**2), np.array([sum_variance]))
    noise = sd * rng.normal(size=(100_000, 1 if is_shared else size))
    drawn = np.log(np.exp(values + noise) @ counts.weight)
    found, plain = linear.evaluate(values)[0], log_sums(counts, values)[0]
    assert found == pytest.approx(drawn.mean(), abs=0.004)
    assert found - plain == pytest.approx(0.0 if is_shared else 0.03, abs=0.015)
    assert np.sqrt(sum_variance) == pytest.approx(drawn.std(), rel=0.05)
