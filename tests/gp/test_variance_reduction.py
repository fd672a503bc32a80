"""Candidate measurements agree with predictions of single inputs."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.conditioning import condition
from joulecast.gp.prediction import predict_sums
from joulecast.gp.variance_reduction import predict_measurements
from joulecast.gp.weighted_sums import WeightedSums


def test_variance_of_a_measurement_is_that_of_the_input_and_the_noise(fitted, new_inputs, sums):
    one = replace(fitted, thetas=fitted.thetas[:1], discrepancy_sd=0.0)
    single = predict_sums(one, new_inputs, WeightedSums.of_single_inputs(new_inputs.size))
    candidates = predict_measurements(one, new_inputs, sums)
    noise_sd = condition(one, one.thetas[0]).hyper.noise_sd
    assert candidates.mean == pytest.approx(single.mean, rel=1e-9)
    expected = single.variance + (noise_sd * single.mean) ** 2
    assert candidates.variance == pytest.approx(expected, rel=1e-7)


def test_variance_reduction_is_squared_covariance_over_variance(fitted, new_inputs, sums):
    candidates = predict_measurements(fitted, new_inputs, sums)
    scale = np.linspace(0.5, 2.0, sums.size)
    expected = [
        np.mean((scale * candidates.covariance[:, p]) ** 2) / candidates.variance[p]
        for p in range(new_inputs.size)
    ]
    assert candidates.variance_reduction(scale) == pytest.approx(np.array(expected))
