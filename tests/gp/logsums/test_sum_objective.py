"""The negative log posterior of θ and its gradient."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums.fit import SumObjective
from joulecast.gp.logsums.inputs import sort_by_cell
from joulecast.gp.logsums.posterior import linearise
from joulecast.gp.logsums.prior import discrepancy_covariance, log_prior_covariance, prior_log_mean
from logsums_examples import draw_fitted, draw_inputs, make_process


def make_objective(seed, caps=False, leaves_out=False):
    rng = np.random.default_rng(seed)
    fitted, values = draw_fitted(rng)
    inputs = replace(draw_inputs(np.random.default_rng(seed), 30, caps=caps))
    index, observations = sort_by_cell(inputs, fitted.observations)
    linear = linearise(observations.sums.counts, values[index])
    inputs = inputs.take(index)
    process = make_process(leaves_out=leaves_out)
    return SumObjective(process, inputs, observations, linear), observations, linear


@pytest.mark.parametrize(("caps", "leaves_out"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_equals_finite_differences(seed, caps, leaves_out):
    objective, _, _ = make_objective(seed, caps, leaves_out)
    prior = objective.process.prior
    theta = prior.means + 0.3 * np.random.default_rng(seed).normal(size=len(prior.means))
    evaluate = objective.negative_log_posterior
    steps = 1e-5 * np.eye(len(theta))
    differences = [evaluate(theta + step)[0] - evaluate(theta - step)[0] for step in steps]
    assert evaluate(theta)[1] == pytest.approx(np.array(differences) / 2e-5, abs=2e-5)


def test_gradient_by_basis_functions_of_the_logarithm():
    rng = np.random.default_rng(5)
    fitted, values = draw_fitted(rng)
    index, observations = sort_by_cell(fitted.inputs, fitted.observations)
    inputs = replace(fitted.inputs, log_basis=rng.normal(size=(fitted.inputs.size, 1))).take(index)
    coefficients = (*fitted.process.coefficients, (0.7, 0.7))
    process = replace(fitted.process, coefficients=coefficients)
    linear = linearise(observations.sums.counts, values[index])
    evaluate = SumObjective(process, inputs, observations, linear).negative_log_posterior
    theta, step = process.prior.means, np.zeros(len(process.prior.means))
    step[len(coefficients) - 1] = 1e-5
    difference = evaluate(theta + step)[0] - evaluate(theta - step)[0]
    expected = pytest.approx(difference / 2e-5, abs=2e-5)
    assert evaluate(theta)[1][len(coefficients) - 1] == expected


@pytest.mark.parametrize("leaves_out", [False, True])
def test_likelihood_equals_that_of_a_dense_normal(leaves_out):
    objective, observations, linear = make_objective(4, leaves_out=leaves_out)
    process, inputs, sums = objective.process, objective.inputs, observations.sums
    theta = process.prior.means + 0.1
    hyper = process.unpack(theta)
    weights = linear.weights.to_matrix(inputs.size)
    cov = weights @ log_prior_covariance(process, hyper, inputs, inputs) @ weights.T
    cov += discrepancy_covariance(hyper, sums, sums)
    cov += np.diag(hyper.noise_sd**2 + observations.log_variance)
    mean = prior_log_mean(inputs, hyper.coefficients)
    residual = observations.log_values - linear.offsets - weights @ mean
    dense = 0.5 * residual @ np.linalg.solve(cov, residual) + 0.5 * np.linalg.slogdet(cov)[1]
    value, _ = objective.negative_log_posterior(theta)
    assert value == pytest.approx(dense + process.prior.negative_log_density(theta)[0], rel=1e-10)


def test_repeated_inputs_are_refused():
    objective, observations, linear = make_objective(5)
    inputs = replace(objective.inputs, identities=np.zeros(objective.inputs.size, int))
    with pytest.raises(ValueError, match="only 1 are distinct"):
        SumObjective(objective.process, inputs, observations, linear)
