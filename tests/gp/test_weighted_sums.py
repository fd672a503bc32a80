"""Weighted sums over inputs and their prior variance."""

import numpy as np
import pytest

from joulecast.gp import weighted_sums
from joulecast.gp.covariance import prior_covariance
from joulecast.gp.weighted_sums import PriorSumVariance, WeightedSums


def test_sums_equal_products_with_the_dense_matrix(sums, new_inputs):
    values = np.random.default_rng(0).normal(size=new_inputs.size)
    matrix = sums.to_matrix(new_inputs.size)
    assert sums.total(values) == pytest.approx(matrix @ values)
    other = np.random.default_rng(1).normal(size=(new_inputs.size, 3))
    assert sums.pattern.matmul(sums.weight, other) == pytest.approx(matrix @ other)


def test_single_inputs_are_the_identity():
    assert (WeightedSums.of_single_inputs(4).to_matrix(4) == np.eye(4)).all()


def test_chunks_are_the_rows_of_the_whole(sums, new_inputs, monkeypatch):
    monkeypatch.setattr(weighted_sums, "_CHUNK_SIZE", 300)
    rows = []
    for index, chunk in sums.iterate_chunks(training_size=10):
        whole = np.zeros((chunk.size, new_inputs.size))
        whole[:, index] = chunk.to_matrix(len(index))
        rows.append(whole)
    assert len(rows) > 5
    assert (np.vstack(rows) == sums.to_matrix(new_inputs.size)).all()


def test_prior_variance_equals_the_dense_one(sums, new_inputs, fitted):
    hyper = fitted.draws[0].hyper
    mean = new_inputs.mean(hyper)
    costs = sums.to_matrix(new_inputs.size) * mean
    expected = np.diag(costs @ prior_covariance(new_inputs, hyper) @ costs.T)
    entries = sums.weight * mean[sums.column]
    variance = PriorSumVariance(new_inputs, sums).variance(entries, hyper)
    assert variance == pytest.approx(expected, rel=1e-9, abs=1e-15)
