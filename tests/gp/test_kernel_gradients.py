"""Blocks of the observations' covariance."""

import numpy as np
import pytest

from gp_examples import draw_inputs, draw_theta, draw_training_data, make_hyperprior
from joulecast.gp import kernel_gradients
from joulecast.gp.kernel_gradients import KernelBlock, KernelGroup, KernelParameters
from joulecast.gp.kernels import matern52
from joulecast.gp.log_posterior import LogPosterior


def test_block_is_the_kernel_between_weighted_sums():
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(4, 6)) * (rng.random((4, 6)) < 0.6)
    row, column = np.nonzero(weights)
    points, members = rng.normal(size=(6, 2)), np.arange(6)
    group = KernelGroup(members, 6, points, row, column)
    kernel = KernelParameters(0.3, 0.7, 0.1, np.array([1.0, 2.0]))
    block = KernelBlock(group, kernel, weights[row, column])
    scaled = np.sqrt(5.0) * points / kernel.length_scales
    squares = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=2)
    dense = 0.3 + 0.7 * matern52(squares) + 0.1 * np.eye(6)
    expected = weights @ dense @ weights.T
    assert block.cov == pytest.approx(expected[group.block], rel=1e-9)


def test_sparse_weights_give_the_same_value_as_dense_ones(monkeypatch):
    rng = np.random.default_rng(8)
    inputs = draw_inputs(rng, 14)
    prior, data = make_hyperprior(inputs), draw_training_data(rng, inputs, 19)
    theta = draw_theta(rng, prior)
    dense = LogPosterior(inputs, data, prior).negative_log_posterior(theta)
    monkeypatch.setattr(kernel_gradients, "_MAX_DENSE_SIZE", 0)
    sparse = LogPosterior(inputs, data, prior).negative_log_posterior(theta)
    assert sparse[0] == pytest.approx(dense[0], rel=1e-12)
    assert sparse[1] == pytest.approx(dense[1], rel=1e-9, abs=1e-12)
