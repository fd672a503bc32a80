"""Predictions of sums agree with dense conditioning, in chunks or at once."""

from dataclasses import replace

import numpy as np
import pytest

from gp_examples import AXES, BASIS_SIZE, draw_inputs
from joulecast.gp import weighted_sums
from joulecast.gp.conditioning import condition
from joulecast.gp.covariance import prior_covariance
from joulecast.gp.fitting import fit_process
from joulecast.gp.hyperparameters import HyperPrior
from joulecast.gp.inputs import TrainingData
from joulecast.gp.prediction import predict_sum_means, predict_sums
from joulecast.gp.weighted_sums import WeightedSums


def test_chunks_give_the_same_prediction(fitted, new_inputs, sums, monkeypatch):
    whole = predict_sums(fitted, new_inputs, sums)
    monkeypatch.setattr(weighted_sums, "_CHUNK_SIZE", 300)
    assert len(list(sums.iterate_chunks(fitted.inputs.size))) > 5
    chunked = predict_sums(fitted, new_inputs, sums)
    for name in ("mean", "variance", "input_mean"):
        assert getattr(chunked, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_means_alone_equal_those_of_the_prediction(fitted, new_inputs, sums):
    prediction = predict_sums(fitted, new_inputs, sums)
    mean, input_mean = predict_sum_means(fitted, new_inputs, sums)
    used = np.unique(sums.column)
    assert mean == pytest.approx(prediction.mean, rel=1e-12)
    assert input_mean[used] == pytest.approx(prediction.input_mean[used], rel=1e-12)


def test_variances_are_the_diagonal_of_the_joint_covariance(fitted, new_inputs, sums):
    """Pairs within sums and the matrix over all inputs are two ways to one number."""
    single = predict_sums(fitted, new_inputs, sums)
    joint = predict_sums(fitted, new_inputs, sums, joint=True)
    assert np.diag(joint.covariance) == pytest.approx(single.variance, rel=1e-8, abs=1e-12)
    assert joint.mean == pytest.approx(single.mean, rel=1e-12)
    assert single.variance[-1] == single.mean[-1] == 0.0


def test_prediction_equals_dense_conditioning(fitted, new_inputs, sums):
    """Under one draw, by the textbook: K** - K*·C⁻¹·K*ᵀ, inputs and discrepancies together."""
    one = replace(fitted, thetas=fitted.thetas[:1])
    draw = condition(one, one.thetas[0])
    hyper, data, mean = draw.hyper, one.data, new_inputs.mean(draw.hyper)
    weights = data.counts / data.values[:, None] * one.inputs.mean(hyper)
    residual = 1.0 - weights.sum(axis=1)
    cov = weights @ prior_covariance(one.inputs, hyper) @ weights.T
    cov += np.diag(hyper.noise_sd**2 + data.relative_variance)
    cov += data.correlated_error_covariance(weights.sum(axis=1))
    cross = draw.covariance_with(new_inputs) @ weights.T
    costs = sums.to_matrix(len(mean)) * mean
    by_label = np.array([costs[:, new_inputs.labels == k].sum(axis=1) for k in range(5)]).T
    factors = one.discrepancy_sd * np.sqrt(by_label * by_label.sum(axis=1, keepdims=True))
    trained = factors[:, : data.discrepancy_loadings.shape[1]]
    sum_cross = costs @ cross + trained @ data.discrepancy_loadings.T
    prior = costs @ prior_covariance(new_inputs, hyper) @ costs.T + factors @ factors.T
    posterior = prior - sum_cross @ np.linalg.solve(cov, sum_cross.T)
    prediction = predict_sums(one, new_inputs, sums)
    assert prediction.variance == pytest.approx(np.diag(posterior), rel=1e-7, abs=1e-12)
    shift = cross @ np.linalg.solve(cov, residual)
    input_mean, used = mean * np.maximum(1.0 + shift, 0.05), np.unique(sums.column)
    assert prediction.input_mean[used] == pytest.approx(input_mean[used], rel=1e-8)
    discrepancy = data.discrepancy_loadings.T @ np.linalg.solve(cov, residual)
    total = sums.total(input_mean) + trained @ discrepancy
    assert prediction.mean == pytest.approx(total, rel=1e-8)


def test_discrepancy_is_learnt_for_sums_of_the_same_labels():
    """Single inputs cost 1; sums of label 0 cost 4 % more: so do others of it, not of label 1."""
    rng = np.random.default_rng(8)
    inputs = draw_inputs(rng, 8, shared_axes=0, labels=1)
    inputs = replace(inputs, labels=np.array([0] * 4 + [1] * 4), training_index=np.arange(8))
    medians = np.array([0.1] * BASIS_SIZE + [0.005] * 4 + [0.1] * AXES)
    prior = HyperPrior(medians, np.full(len(medians), 0.01), 0.005)
    costs = inputs.basis @ prior.medians[:BASIS_SIZE]
    several = np.zeros((3, 8))
    several[:, :4] = 1.0 + np.arange(12.0).reshape(3, 4) % 3
    counts = np.vstack([np.eye(8), several])
    values = counts @ costs * np.array([1.0] * 8 + [1.04] * 3)
    factors = np.zeros((11, 2))
    factors[8:, 0] = 0.05
    data = TrainingData(counts, values, np.full(11, 1e-6), factors, np.zeros((11, 0)))
    fitted = fit_process(inputs, data, prior, draw_count=0, discrepancy_sd=0.05)
    one = WeightedSums(1, np.zeros(4, int), np.arange(4), np.ones(4))
    prediction = predict_sums(fitted, inputs.take(np.arange(4)), one)
    assert prediction.mean == pytest.approx(1.04 * costs[:4].sum(), rel=0.012)
    two = WeightedSums(2, np.repeat([0, 1], 4), np.arange(8), np.full(8, 2.0))
    prediction = predict_sums(fitted, inputs, two)
    plain = np.array([2.0 * costs[:4].sum(), 2.0 * costs[4:].sum()])
    assert prediction.mean / plain - 1.0 == pytest.approx([0.04, 0.0], abs=0.012)
    relative_sd = np.sqrt(prediction.variance) / plain
    assert relative_sd[0] < 0.5 * relative_sd[1]
