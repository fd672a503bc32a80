"""The negative log posterior of the hyper-parameters and its gradient."""

import numpy as np
import pytest

from gp_examples import (
    AXES,
    BASIS_SIZE,
    OFFSET_SD,
    draw_inputs,
    draw_theta,
    draw_training_data,
    make_hyperprior,
)
from joulecast.gp.covariance import prior_covariance
from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.log_posterior import LogPosterior


@pytest.mark.parametrize("shared_axes", [0, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_equals_finite_differences(seed, shared_axes):
    rng = np.random.default_rng(seed)
    inputs = draw_inputs(rng, 12, shared_axes)
    prior = make_hyperprior(inputs)
    posterior = LogPosterior(inputs, draw_training_data(rng, inputs, 17), prior)
    theta = draw_theta(rng, prior)
    evaluate = posterior.negative_log_posterior
    steps = 1e-5 * np.eye(len(theta))
    differences = [evaluate(theta + step)[0] - evaluate(theta - step)[0] for step in steps]
    assert evaluate(theta)[1] == pytest.approx(np.array(differences) / 2e-5, abs=1e-5)


def test_evaluations_do_not_depend_on_earlier_ones():
    """The memory of kernels is reused from one θ to the next."""
    rng = np.random.default_rng(5)
    inputs = draw_inputs(rng, 9)
    prior, data = make_hyperprior(inputs), draw_training_data(rng, inputs, 12)
    one, two = (0.2 * rng.normal(size=(2, len(prior.medians)))) - 1.0
    evaluate = LogPosterior(inputs, data, prior).negative_log_posterior
    first, _, again = evaluate(one), evaluate(two), evaluate(one)
    assert first[0] == again[0]
    assert (first[1] == again[1]).all()


def test_likelihood_equals_that_of_a_dense_normal():
    rng = np.random.default_rng(6)
    inputs = draw_inputs(rng, 11)
    prior, data = make_hyperprior(inputs), draw_training_data(rng, inputs, 15)
    theta = draw_theta(rng, prior)
    hyper = HyperParameters.unpack(theta, BASIS_SIZE, AXES, OFFSET_SD)
    weights = data.counts / data.values[:, None] * inputs.mean(hyper)
    cov = weights @ prior_covariance(inputs, hyper) @ weights.T
    cov += np.diag(hyper.noise_sd**2 + data.relative_variance)
    cov += data.correlated_error_covariance(weights.sum(axis=1))
    residual = 1.0 - weights.sum(axis=1)
    dense = 0.5 * residual @ np.linalg.solve(cov, residual) + 0.5 * np.linalg.slogdet(cov)[1]
    value, _ = LogPosterior(inputs, data, prior).negative_log_posterior(theta)
    assert value == pytest.approx(dense + prior.negative_log_density(theta)[0], rel=1e-10)
