"""The posterior given training data."""

from dataclasses import replace

import numpy as np
import pytest

from gp_examples import draw_inputs, draw_training_data, make_hyperprior
from joulecast.gp.conditioning import FittedProcess
from joulecast.gp.prediction import posterior_input_mean


def test_exact_observations_of_single_inputs_are_reproduced():
    rng = np.random.default_rng(2)
    inputs = replace(draw_inputs(rng, 6), training_index=np.arange(6))
    data = draw_training_data(rng, inputs, 6)
    none = np.zeros((6, 0))
    data = replace(
        data, relative_variance=np.zeros(6), discrepancy_loadings=none, unit_loadings=none
    )
    theta = np.log(make_hyperprior(inputs).medians)
    theta[6] = np.log(1e-6)  # noise
    (draw,) = FittedProcess(inputs, data, 0.2, theta[None]).draws
    mean = posterior_input_mean(draw, inputs, draw.covariance_with(inputs))
    assert data.counts @ mean == pytest.approx(data.values, rel=1e-6)


def test_nugget_is_shared_with_the_equal_training_input_only(fitted, new_inputs):
    draw = fitted.draws[0]
    nugget = draw.covariance_with(new_inputs) - draw.covariance_with(
        replace(new_inputs, training_index=None)
    )
    expected = np.zeros_like(nugget)
    expected[np.arange(4), np.arange(4)] = draw.hyper.nugget_sd**2
    assert nugget == pytest.approx(expected)
