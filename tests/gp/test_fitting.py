"""MAP estimates and Laplace draws of hyper-parameters."""

import numpy as np
import pytest

from gp_examples import draw_inputs, draw_training_data, make_hyperprior
from joulecast.gp import fitting
from joulecast.gp.fitting import fit_process
from joulecast.gp.log_posterior import LogPosterior


def test_mode_is_a_minimum_below_the_medians():
    rng = np.random.default_rng(1)
    inputs = draw_inputs(rng, 10)
    data, prior = draw_training_data(rng, inputs, 14), make_hyperprior(inputs)
    fitted = fit_process(inputs, data, prior, draw_count=0)
    assert len(fitted.thetas) == 1
    evaluate = LogPosterior(inputs, data, prior).negative_log_posterior
    value, gradient = evaluate(fitted.thetas[0])
    assert value < evaluate(np.log(prior.medians))[0]
    assert np.abs(gradient).max() < 0.05


def test_draws_are_antithetic_pairs_around_the_mode(fitted):
    mode, *draws = fitted.thetas
    assert len(draws) == 4
    for one, two in ((0, 1), (2, 3)):
        assert 0.5 * (draws[one] + draws[two]) == pytest.approx(mode)
    assert not np.allclose(draws[0], draws[2])


def test_many_observations_need_one_pair_of_draws(monkeypatch):
    rng = np.random.default_rng(1)
    inputs = draw_inputs(rng, 5)
    data, prior = draw_training_data(rng, inputs, 7), make_hyperprior(inputs)
    monkeypatch.setattr(fitting, "MANY_OBSERVATIONS", 7)
    assert len(fit_process(inputs, data, prior, draw_count=8).thetas) == 3
