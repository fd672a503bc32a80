"""MAP estimates of the hyper-parameters."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums import fit as outliers
from joulecast.gp.logsums.fit import SumObjective, discount_outliers, fit_logsums, select_subset
from joulecast.gp.logsums.inputs import LogObservations, linearise
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums, predict_log_totals
from joulecast.gp.logsums.selection import keep_linearisation
from logsums_examples import draw_fitted, draw_inputs, make_process, to_matrix


def test_fit_finds_what_the_observations_were_drawn_from():
    fitted, _ = draw_fitted(np.random.default_rng(0), size=150, singles=130, several=40)
    found = fit_logsums(fitted.process, fitted.inputs, fitted.observations)
    assert found.prior.noise_sd == pytest.approx(0.02, rel=0.7)
    term = found.prior.terms[3]
    assert term.shared_sd**2 + term.regime_sd**2 == pytest.approx(0.25, rel=0.7)
    predicted = predict_log_totals(condition_logsums(found), found.inputs, found.observations.sums)
    assert predicted.log_mean == pytest.approx(found.observations.log_values, abs=0.15)


def test_subset_has_all_strata_and_few_inputs():
    fitted, _ = draw_fitted(np.random.default_rng(2), size=200, singles=150, several=100)
    sums = fitted.observations.sums
    strata = np.where(np.arange(250) < 240, 0, np.arange(250))
    observations = LogObservations(sums, np.zeros(250), np.zeros(250), strata)
    rows = select_subset(observations, 60)
    assert len(rows) == 60
    assert set(range(240, 250)) <= set(rows.tolist())
    rows = select_subset(observations, 250, max_inputs=40)
    several = sums.take(rows[rows >= 150])
    assert len(np.unique(several.counts.column)) <= 40


def test_subset_without_large_sums():
    fitted, _ = draw_fitted(np.random.default_rng(3), size=200, singles=50, several=100)
    counts = fitted.observations.sums.counts
    inputs = np.bincount(counts.row, minlength=counts.size)
    rows = select_subset(fitted.observations, 150, max_row_inputs=2)
    assert inputs.max() > 2 and len(rows) == np.count_nonzero(inputs <= 2)
    assert inputs[rows].max() <= 2


def make_objective(seed, caps=False, leaves_out=False):
    fitted, values = draw_fitted(np.random.default_rng(seed))
    inputs = draw_inputs(np.random.default_rng(seed), 30, caps=caps)
    process, counts = make_process(leaves_out=leaves_out), fitted.observations.sums.counts
    means, linear = process.theta_prior[0], linearise(counts, values)
    fitted = FittedLogSums(process, means, inputs, fitted.observations, linear)
    own = fitted.narrow(np.arange(fitted.observations.size))
    return SumObjective(process, own.inputs, own.observations, own.linear), own


@pytest.mark.parametrize(("caps", "leaves_out"), [(False, False), (True, False), (False, True)])
def test_gradient_equals_finite_differences(caps, leaves_out):
    objective, own = make_objective(0, caps, leaves_out)
    theta = own.theta + 0.3 * np.random.default_rng(0).normal(size=len(own.theta))
    evaluate = objective.negative_log_posterior
    steps = 1e-5 * np.eye(len(theta))
    differences = [evaluate(theta + step)[0] - evaluate(theta - step)[0] for step in steps]
    assert evaluate(theta)[1] == pytest.approx(np.array(differences) / 2e-5, abs=2e-5)


@pytest.mark.parametrize("leaves_out", [False, True])
def test_likelihood_equals_that_of_a_dense_normal(leaves_out):
    objective, own = make_objective(4, leaves_out=leaves_out)
    means, sds = own.process.theta_prior
    prior = own.process.unpack(means + 0.1)
    weights, sums = to_matrix(own.linear.weights, own.inputs.size), own.observations.sums
    cov = weights @ prior.covariance(own.inputs, own.inputs) @ weights.T
    cov += prior.discrepancy_covariance(sums, sums)
    cov += np.diag(prior.noise_sd**2 + own.observations.log_variance)
    residual = own.observations.log_values - own.linear.evaluate(prior.mean(own.inputs))
    dense = 0.5 * residual @ np.linalg.solve(cov, residual) + 0.5 * np.linalg.slogdet(cov)[1]
    value, _ = objective.negative_log_posterior(means + 0.1)
    assert value == pytest.approx(dense + 0.5 * ((0.1 / sds) ** 2).sum(), rel=1e-10)


def test_repeated_inputs_are_refused():
    _, own = make_objective(5)
    inputs = replace(own.inputs, identities=np.zeros(own.inputs.size, int))
    with pytest.raises(ValueError, match="only 1 are distinct"):
        SumObjective(own.process, inputs, own.observations, own.linear)


CLIFF = 7


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr(outliers, "_FEWEST_ROWS", 50)
    found, _ = draw_fitted(np.random.default_rng(0), size=120, singles=100, several=20)
    return keep_linearisation(found)


def slow_down(fitted, rows, factor):
    """Return the process with some observations that took so many times as long."""
    log_values = fitted.observations.log_values.copy()
    log_values[rows] += np.log(factor)
    observations = replace(fitted.observations, log_values=log_values)
    return keep_linearisation(replace(fitted, observations=observations))


def test_ordinary_observations_are_kept(fitted):
    assert discount_outliers(fitted) is None


def test_outlier_gets_the_variance_of_its_residual(fitted):
    found = discount_outliers(slow_down(fitted, [CLIFF], 1000.0))
    added = found.log_variance - fitted.observations.log_variance
    assert np.flatnonzero(added).tolist() == [CLIFF]
    assert added[CLIFF] == pytest.approx(np.log(1000.0) ** 2, rel=0.5)


def test_one_outlier_does_not_change_the_fit(fitted):
    plain, slow = (
        fit_logsums(one.process, one.inputs, one.observations)
        for one in (fitted, slow_down(fitted, [CLIFF], 1000.0))
    )
    others = np.arange(fitted.inputs.size) != fitted.observations.sums.counts.column[CLIFF]
    expected, found = (one.predict_mean(one.inputs)[others] for one in (plain, slow))
    assert found == pytest.approx(expected, abs=0.25)
    assert np.abs(found - expected).mean() < 0.05
