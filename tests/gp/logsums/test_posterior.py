"""Conditioning on sums."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import LogObservations, LogSums
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    correct_row_weights,
    linearise_observations,
    log_sums,
)
from joulecast.gp.logsums.prior import log_prior_covariance, prior_log_mean
from joulecast.gp.logsums.totals import predict_inputs
from logsums_examples import draw_fitted, draw_inputs, draw_values, make_process


def scale_sds(process, factor):
    """Return the process with the standard deviations of all terms multiplied."""
    terms = []
    for term in process.terms:
        sds = [
            None if one is None else (factor * one[0], one[1])
            for one in (term.shared_sd, term.regime_sd)
        ]
        terms.append(replace(term, shared_sd=sds[0], regime_sd=sds[1]))
    return replace(process, terms=tuple(terms))


@pytest.mark.parametrize(("factor", "tolerance"), [(1.0, 0.3), (0.5, 0.2)])
def test_posterior_of_sums_agrees_with_importance_sampling(factor, tolerance):
    """Two inputs of which only the sum is known: the mean of one, by weighted draws.

    What is known of each alone is skewed, which a normal distribution cannot be: the standard
    deviation of the larger one is 25 % too small where that of the prior is 0.7, and 15 % at 0.35.
    """
    rng = np.random.default_rng(3)
    process = make_process(noise_sd=(0.05, 0.1), structure_sd=(1e-3, 0.1), sum_sd=(1e-3, 0.1))
    process = scale_sds(process, factor)
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
    sd = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum())
    assert np.sqrt(found.log_variance) == pytest.approx(sd, rel=tolerance)


def test_some_observations_condition_as_if_there_were_no_others():
    rng = np.random.default_rng(4)
    fitted, _ = draw_fitted(rng)
    new = draw_inputs(rng, 10, first_identity=100)
    rows = np.array([0, 3, 5, 21, 30])
    one = predict_inputs(condition_logsums(fitted, rows), new)
    only = replace(fitted, observations=fitted.observations.take(rows))
    two = predict_inputs(condition_logsums(only), new)
    assert one.log_mean == pytest.approx(two.log_mean, abs=1e-12)


def test_row_weights_give_the_means_of_all_observations():
    rng = np.random.default_rng(5)
    fitted = linearise_observations(draw_fitted(rng)[0])
    new = draw_inputs(rng, 10, first_identity=100)
    posterior = condition_logsums(fitted)
    assert fitted.row_weights == pytest.approx(posterior.row_weights, rel=1e-6, abs=1e-8)
    exact = predict_inputs(posterior, new)
    assert fitted.mean.predict(new) == pytest.approx(exact.log_mean, abs=1e-9)
    some = replace(condition_logsums(fitted, np.arange(10)), full_mean=fitted.mean)
    found = predict_inputs(some, new)
    assert found.log_mean == pytest.approx(exact.log_mean, abs=1e-9)
    assert (found.log_variance >= exact.log_variance - 1e-12).all()
    medians = predict_inputs(some, new, with_variance=False)
    assert medians.log_mean == pytest.approx(exact.log_mean, abs=1e-9)


def test_without_row_weights_there_is_no_mean_of_all_observations():
    fitted = draw_fitted(np.random.default_rng(6))[0]
    assert fitted.mean is None
    assert correct_row_weights(fitted, np.arange(3)) is fitted


def test_corrected_row_weights_solve_the_equations_of_their_rows():
    """From zeros, correcting all rows is solving all equations at once."""
    fitted = linearise_observations(draw_fitted(np.random.default_rng(7))[0])
    start = replace(fitted, row_weights=np.zeros(fitted.observations.size))
    found = correct_row_weights(start, np.arange(fitted.observations.size))
    assert found.row_weights == pytest.approx(fitted.row_weights, rel=1e-6, abs=1e-8)
    wrong = fitted.row_weights + np.where(np.arange(fitted.observations.size) < 8, 1.0, 0.0)
    found = correct_row_weights(replace(fitted, row_weights=wrong), np.arange(8))
    assert found.row_weights == pytest.approx(fitted.row_weights, rel=1e-6, abs=1e-8)
