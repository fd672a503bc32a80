"""Weighted sums over inputs."""

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums

INPUTS = 40


@pytest.fixture
def sums():
    """Thirty sums over the inputs; the last one is empty."""
    rng, size = np.random.default_rng(2), 30
    entries = [sorted(rng.choice(INPUTS, 1 + k % 6, False)) for k in range(size - 1)]
    row = np.repeat(np.arange(size - 1), [len(one) for one in entries])
    weight = rng.integers(1, 5, len(row)).astype(float)
    return WeightedSums(size, row, np.concatenate(entries), weight)


def test_sums_equal_products_with_the_dense_matrix(sums):
    values = np.random.default_rng(0).normal(size=INPUTS)
    matrix = sums.to_matrix(INPUTS)
    assert not matrix[-1].any()
    assert sums.total(values) == pytest.approx(matrix @ values)
    other = np.random.default_rng(1).normal(size=(INPUTS, 3))
    assert sums.pattern.matmul(sums.weight, other) == pytest.approx(matrix @ other)


def test_entries_are_added_sum_by_sum(sums):
    assert sums.sum_entries(np.ones(len(sums.row))) == pytest.approx(
        (sums.to_matrix(INPUTS) != 0).sum(axis=1)
    )


def test_single_inputs_are_the_identity():
    assert (WeightedSums.of_single_inputs(4).to_matrix(4) == np.eye(4)).all()
