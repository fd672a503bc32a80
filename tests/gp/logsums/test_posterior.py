"""Conditioning on sums."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.linalg import WeightedSums
from joulecast.gp.logsums.inputs import (
    ALL_INPUTS,
    LogInputs,
    LogObservations,
    LogSums,
    linearise,
    log_sums,
)
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    correct_row_weights,
    explain_inputs,
    linearise_observations,
    predict_log_means,
    predict_log_totals,
)
from joulecast.gp.logsums.prior import KernelTerm, LogSumProcess, prior_log_mean
from logsums_examples import (
    draw_fitted,
    draw_inputs,
    draw_sums,
    draw_values,
    make_process,
    to_matrix,
)


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
    fitted = FittedLogSums.start(process, process.theta_prior[0], inputs, data)
    found, _ = explain_inputs(condition_logsums(linearise_observations(fitted)), inputs)
    cov = fitted.prior.covariance(inputs, inputs)
    draws = rng.multivariate_normal(fitted.prior.mean(inputs), cov, 200_000)
    totals = np.log(np.exp(draws) @ counts.weight)
    weight = np.exp(-0.5 * ((totals - observed) / 0.05) ** 2)
    expected = weight @ draws / weight.sum()
    assert found.log_mean == pytest.approx(expected, abs=0.05)
    sd = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum())
    assert np.sqrt(found.log_variance) == pytest.approx(sd, rel=tolerance)


@pytest.fixture(scope="module")
def fitted():
    return linearise_observations(draw_fitted(np.random.default_rng(4))[0])


def test_some_observations_condition_as_if_there_were_no_others(fitted):
    rows, new = np.array([0, 3, 5, 21, 30]), draw_inputs(np.random.default_rng(4), 10, 100)
    one = condition_logsums(replace(fitted, row_weights=None), rows)
    only = replace(
        fitted, observations=fitted.observations.take(rows), linear=fitted.linear.take(rows)
    )
    expected = predict_log_means(condition_logsums(only), new)
    assert predict_log_means(one, new) == pytest.approx(expected, abs=1e-12)


def test_row_weights_give_the_means_of_all_observations(fitted):
    new = draw_inputs(np.random.default_rng(5), 10, first_identity=100)
    posterior = condition_logsums(fitted)
    assert fitted.row_weights == pytest.approx(posterior.row_weights, rel=1e-6, abs=1e-8)
    exact, _ = explain_inputs(posterior, new)
    assert fitted.predict_mean(new) == pytest.approx(exact.log_mean, abs=1e-9)
    found, _ = explain_inputs(condition_logsums(fitted, np.arange(10)), new)
    assert found.log_mean == pytest.approx(exact.log_mean, abs=1e-9)
    assert (found.log_variance >= exact.log_variance - 1e-12).all()


def test_corrected_row_weights_solve_the_equations_of_their_rows(fitted):
    """From zeros, correcting all rows is solving all equations at once."""
    rows = np.arange(fitted.observations.size)
    for start, some in (
        (np.zeros(len(rows)), rows),
        (fitted.row_weights + np.where(rows < 8, 1.0, 0.0), rows[:8]),
    ):
        found = correct_row_weights(replace(fitted, row_weights=start), some)
        assert found.row_weights == pytest.approx(fitted.row_weights, rel=1e-6, abs=1e-8)


def test_covariances_of_observations_are_exact(fitted):
    weights = to_matrix(fitted.linear.weights, fitted.inputs.size)
    sums = fitted.observations.sums
    exact = weights @ fitted.prior.covariance(fitted.inputs, fitted.inputs) @ weights.T
    exact += fitted.prior.discrepancy_covariance(sums, sums)
    left, right = np.array([2, 20, 31]), np.array([0, 25, 30, 31])
    found = fitted.narrow(left).covary_rows(fitted.narrow(right))
    assert found == pytest.approx(exact[np.ix_(left, right)], abs=1e-10)


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


NOISE_SD = 0.02


def draw_blocks(rng):
    """Return 70 sums over 190 uncertain inputs: 40 alone, and 30 blocks of 12 never seen alone."""
    alone, blocks, length, size = 40, 30, 12, 190
    entries = [[one] for one in range(alone)]
    entries += [sorted(rng.choice(np.arange(alone, size), length, False)) for _ in range(blocks)]
    row = np.repeat(np.arange(alone + blocks), [len(one) for one in entries])
    weight = rng.integers(1, 4, len(row)).astype(float)
    counts = WeightedSums(alone + blocks, row, np.concatenate(entries), weight)
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.2, 0.5)),
        KernelTerm(0, (0, 1), shared_sd=(0.4, 0.5)),
    )
    process = LogSumProcess(((1e-3, 0.5),), terms, nugget_sd=(0.25, 0.5), noise_sd=(NOISE_SD, 0.1))
    inputs = LogInputs(
        np.exp(1.5 * rng.normal(size=(size, 1))),
        2.0 * rng.normal(size=(size, 2)),
        rng.integers(0, 5, (size, 1)),
        np.zeros(size, int),
        np.arange(size),
    )
    values = prior_log_mean(inputs, np.array([1e-3])) + 0.5 * rng.normal(size=size)
    log_values = log_sums(counts, values) + NOISE_SD * rng.normal(size=counts.size)
    observations = LogObservations(LogSums.of_counts(counts), log_values, np.zeros(counts.size))
    return FittedLogSums.start(process, process.theta_prior[0], inputs, observations)


def test_observed_sums_of_uncertain_inputs_are_predicted():
    fitted = linearise_observations(draw_blocks(np.random.default_rng(0)))
    posterior = condition_logsums(fitted)
    found = predict_log_totals(posterior, fitted.inputs, fitted.observations.sums)
    assert found.log_mean == pytest.approx(fitted.observations.log_values, abs=3.0 * NOISE_SD)
    # The inputs of blocks remain uncertain: only their sums are known.
    inputs, _ = explain_inputs(posterior, fitted.inputs)
    assert np.median(np.sqrt(inputs.log_variance[40:])) > 0.15
    assert np.sqrt(found.log_variance).max() < 1.5 * NOISE_SD
