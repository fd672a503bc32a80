"""Conditioning on sums, by Gauss-Newton steps."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums import posterior as posterior_module
from joulecast.gp.logsums.linearisation import log_sums
from joulecast.gp.logsums.log_inputs import LogObservations, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.prior_covariance import log_prior_covariance
from joulecast.gp.logsums.prior_mean import prior_log_mean
from joulecast.gp.logsums.totals import predict_inputs
from joulecast.gp.weighted_sums import WeightedSums
from logsums_examples import draw_fitted, draw_inputs, draw_values, make_process


def test_posterior_mean_reproduces_observed_sums(monkeypatch):
    """After enough steps the sums of the posterior means are the observed ones, within noise."""
    monkeypatch.setattr(posterior_module, "_MAX_STEPS", 20)
    monkeypatch.setattr(posterior_module, "_TOLERANCE", 1e-9)
    fitted, _ = draw_fitted(np.random.default_rng(0), structure_sd=(1e-3, 0.1), sum_sd=(1e-3, 0.1))
    posterior = condition_logsums(fitted)
    totals = log_sums(posterior.sums.counts, posterior.log_values)
    assert totals == pytest.approx(fitted.observations.log_values, abs=0.06)


def test_few_steps_are_nearly_as_good_as_many(monkeypatch):
    rng = np.random.default_rng(1)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 20, first_identity=100)
    few = predict_inputs(condition_logsums(fitted), new)
    monkeypatch.setattr(posterior_module, "_MAX_STEPS", 30)
    monkeypatch.setattr(posterior_module, "_TOLERANCE", 1e-10)
    many = predict_inputs(condition_logsums(fitted), new)
    assert few.log_mean == pytest.approx(many.log_mean, abs=0.02)


def test_posterior_of_sums_agrees_with_importance_sampling():
    """Two inputs of which only the sum is known: the mean of one, by weighted draws."""
    rng = np.random.default_rng(3)
    process = make_process(noise_sd=(0.05, 0.1), structure_sd=(1e-3, 0.1), sum_sd=(1e-3, 0.1))
    inputs = draw_inputs(rng, 2)
    values = draw_values(rng, process, inputs)
    counts = WeightedSums(1, np.zeros(2, int), np.arange(2), np.array([1.0, 3.0]))
    observed = log_sums(counts, values) + 0.3
    data = LogObservations(LogSums.of_counts(counts), observed, np.zeros(1))
    fitted = FittedLogSums(process, process.prior.means, inputs, data)
    found = predict_inputs(condition_logsums(fitted), inputs)
    cov = log_prior_covariance(process, fitted.hyper, inputs, inputs)
    mean = prior_log_mean(inputs, fitted.hyper.coefficients)
    draws = rng.multivariate_normal(mean, cov, 200_000)
    totals = np.log(np.exp(draws) @ counts.weight)
    weight = np.exp(-0.5 * ((totals - observed) / 0.05) ** 2)
    expected = weight @ draws / weight.sum()
    assert found.log_mean == pytest.approx(expected, abs=0.05)
    # What is known of each alone is skewed, which a normal distribution cannot be.
    sd = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum())
    assert np.sqrt(found.log_variance) == pytest.approx(sd, rel=0.2)


def test_some_observations_condition_as_if_there_were_no_others():
    rng = np.random.default_rng(4)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 10, first_identity=100)
    rows = np.array([0, 3, 5, 21, 30])
    one = predict_inputs(condition_logsums(fitted, rows), new)
    only = replace(fitted, observations=fitted.observations.take(rows))
    two = predict_inputs(condition_logsums(only), new)
    assert one.log_mean == pytest.approx(two.log_mean, abs=1e-12)
