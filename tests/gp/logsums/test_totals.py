"""Predictions of inputs, combinations and totals."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import LogObservations, LogSums
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    expected_variance_reduction,
    explain_inputs,
    linearise_observations,
    posterior_elasticities,
    predict_log_means,
    predict_log_totals,
)
from logsums_examples import draw_fitted, draw_inputs, draw_sums, to_matrix


def single_inputs(size):
    return LogSums.of_counts(WeightedSums.of_single_inputs(size))


def add_observations(fitted, known):
    """Return the posterior given further observations of the same inputs."""
    observations = fitted.observations.append(known)
    parts = fitted.process, fitted.theta, fitted.inputs, observations
    return condition_logsums(linearise_observations(FittedLogSums.start(*parts)))


def test_single_inputs_reproduce_gaussian_process_regression():
    """By the textbook: m = μ + k·(K + σ²I)⁻¹·(y - μ), and likewise the variance."""
    rng = np.random.default_rng(0)
    fitted, _ = draw_fitted(rng, several=0)
    new = draw_inputs(rng, 15, first_identity=100)
    data, prior = fitted.observations, fitted.prior
    inputs = fitted.inputs.take(data.sums.counts.column)
    cov = prior.covariance(inputs, inputs) + np.diag(prior.noise_sd**2 + data.log_variance)
    cross = prior.covariance(new, inputs)
    residual = data.log_values - np.log(data.sums.counts.weight) - prior.mean(inputs)
    mean = prior.mean(new) + cross @ np.linalg.solve(cov, residual)
    expected = prior.covariance(new, new) - cross @ np.linalg.solve(cov, cross.T)
    posterior = condition_logsums(fitted)
    found, _ = explain_inputs(posterior, new)
    assert found.log_mean == pytest.approx(mean, abs=1e-9)
    assert found.log_variance == pytest.approx(np.diag(expected), abs=1e-9)
    joint = predict_log_totals(posterior, new, single_inputs(15), joint=True)
    assert joint.log_covariance == pytest.approx(expected, abs=1e-9)
    assert joint.log_mean == pytest.approx(mean, abs=1e-9)


def test_joint_covariance_is_positive_semi_definite():
    rng = np.random.default_rng(4)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 25, first_identity=20)
    posterior = condition_logsums(linearise_observations(fitted))
    found = predict_log_totals(posterior, new, draw_sums(rng, 25, 10, 20), joint=True)
    assert found.log_covariance == pytest.approx(found.log_covariance.T, abs=1e-12)
    assert np.linalg.eigvalsh(found.log_covariance).min() > -1e-9
    assert np.diag(found.log_covariance) == pytest.approx(found.log_variance, rel=1e-6)


def test_chunks_give_the_same_prediction(monkeypatch):
    rng = np.random.default_rng(5)
    fitted, _ = draw_fitted(rng)
    new, sums = draw_inputs(rng, 25, first_identity=20), draw_sums(rng, 25, 10, 20)
    posterior = condition_logsums(linearise_observations(fitted))
    joint = predict_log_totals(posterior, new, sums, joint=True)
    monkeypatch.setattr("joulecast.gp.logsums.posterior._MAX_ENTRIES", 7)
    monkeypatch.setattr("joulecast.gp.logsums.posterior._INPUT_CHUNK", 4)
    chunked = predict_log_totals(posterior, new, sums)
    assert chunked.log_mean == pytest.approx(joint.log_mean, abs=1e-10)
    assert chunked.log_variance == pytest.approx(joint.log_variance, abs=1e-10)


def test_totals_agree_with_monte_carlo():
    """Mean and log variance of sums of correlated log-normals, by drawing the inputs."""
    rng = np.random.default_rng(6)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 12, first_identity=100)
    posterior = condition_logsums(linearise_observations(fitted))
    each = predict_log_totals(posterior, new, single_inputs(12), joint=True)
    values = np.exp(rng.multivariate_normal(each.log_mean, each.log_covariance, 100_000))
    row = np.repeat(np.arange(3), 4)
    counts = WeightedSums(3, row, np.arange(12), rng.integers(1, 5, 12).astype(float))
    drawn = values @ to_matrix(counts, 12).T
    found = predict_log_totals(posterior, new, LogSums.of_counts(counts))
    assert found.log_mean == pytest.approx(np.log(drawn).mean(axis=0), abs=0.03)
    assert found.log_variance == pytest.approx(np.log(drawn).var(axis=0), rel=0.15)


def test_discrepancy_of_a_structure_is_learnt():
    """Sums of structure 0 cost 10 % more than their inputs: so does another one of it."""
    rng = np.random.default_rng(8)
    fitted, values = draw_fitted(rng, size=12, singles=12, several=0, structure_sd=(0.1, 0.1))
    row = np.repeat(np.arange(6), 2)
    counts = WeightedSums(6, row, np.arange(12), np.ones(12))
    structures = WeightedSums(6, np.arange(6), np.zeros(6, int), np.ones(6))
    sums = LogSums(counts, structures, 50 + np.arange(6))
    log_values = np.log(counts.total(np.exp(values))) + 0.1
    known = LogObservations(sums, log_values, np.full(6, 1e-6))
    posterior = add_observations(fitted, known)
    one = WeightedSums(1, np.zeros(3, int), np.array([0, 4, 8]), np.ones(3))
    plain = predict_log_totals(posterior, fitted.inputs, LogSums.of_counts(one))
    share = WeightedSums(1, np.zeros(1, int), np.zeros(1, int), np.ones(1))
    again = predict_log_totals(posterior, fitted.inputs, LogSums(one, share, np.array([99])))
    assert again.log_mean - plain.log_mean == pytest.approx(0.1, abs=0.03)
    other = WeightedSums(1, np.zeros(1, int), np.ones(1, int), np.ones(1))
    discrepancy = posterior.predict_discrepancies(LogSums(one, share, np.array([99])))
    assert again.log_mean - plain.log_mean == pytest.approx(discrepancy, abs=1e-12)
    assert posterior.predict_discrepancies(LogSums.of_counts(one)) == 0.0
    unseen = predict_log_totals(posterior, fitted.inputs, LogSums(one, other, np.array([99])))
    assert unseen.log_mean == pytest.approx(plain.log_mean, abs=1e-12)
    assert unseen.log_variance > again.log_variance > plain.log_variance


def test_elasticities_follow_basis_and_points():
    """A basis function and a coordinate that both rise with a quantity."""
    rng = np.random.default_rng(10)
    fitted, _ = draw_fitted(rng)
    new, posterior = draw_inputs(rng, 12, first_identity=100), condition_logsums(fitted)

    def move(log_factor):
        basis, points = new.basis.copy(), new.points.copy()
        basis[:, 1] *= np.exp(log_factor)
        points[:, 0] += log_factor
        return replace(new, basis=basis, points=points)

    coarse = posterior_elasticities(posterior, move(-0.05), move(0.05), 0.1)
    fine = posterior_elasticities(posterior, move(-1e-4), move(1e-4), 2e-4)
    assert coarse == pytest.approx(fine, abs=0.02)
    terms = new.basis * fitted.prior.coefficients
    by_mean = terms[:, 1] / terms.sum(axis=1)
    assert np.abs(fine - by_mean).max() > 0.01


def test_caps_bind_the_prior_mean_alone():
    """Observations above a cap are believed; where there are none, no mean is far above it."""
    rng = np.random.default_rng(9)
    fitted, _ = draw_fitted(rng, several=0)
    caps, data = fitted.prior.mean(fitted.inputs) - 0.5, fitted.observations
    capped = replace(fitted, inputs=replace(fitted.inputs, log_caps=caps))
    found, _ = explain_inputs(condition_logsums(capped), capped.inputs)
    observed = data.log_values - np.log(data.sums.counts.weight)
    assert (observed > caps[data.sums.counts.column]).any()
    assert found.log_mean[data.sums.counts.column] == pytest.approx(observed, abs=0.06)
    few = capped.narrow(np.zeros(1, int))
    few.observations.log_variance[:] = 1e6
    assert (predict_log_means(condition_logsums(few), capped.inputs) < caps + 1e-3).all()


def test_reduction_is_what_observing_the_expected_value_achieves():
    """For single inputs it is exact: the variance does not depend on the value observed."""
    fitted, _ = draw_fitted(np.random.default_rng(0), size=30, singles=18, several=0)
    inputs, size = fitted.inputs, fitted.inputs.size
    posterior = condition_logsums(fitted)
    targets = candidates = single_inputs(size)
    found = expected_variance_reduction(posterior, inputs, targets, candidates)
    before = predict_log_totals(posterior, inputs, targets)
    for at in (0, 7, 29):
        one = candidates.take(np.array([at]))
        known = LogObservations(one, before.log_mean[[at]], np.zeros(1))
        after = predict_log_totals(add_observations(fitted, known), inputs, targets)
        expected = before.log_variance - after.log_variance
        assert found[:, at] == pytest.approx(expected, abs=1e-8)
