"""Test the regression of residuals over several features."""

import json

import numpy as np
import pytest
from scipy.optimize import check_grad

from joulecast.gp.regression import (
    BIAS_VARIANCE,
    ResidualProcess,
    _NegativeLogLikelihood,
    fit_residual_process,
)


def draw_data(count=60, seed=0):
    """Return points, a smooth function of the first of two features, and its noise variances."""
    draw = np.random.default_rng(seed)
    points = draw.uniform(-2.0, 2.0, (count, 2))
    noise = np.full(count, 0.01**2)
    values = 0.5 * np.sin(2.0 * points[:, 0]) + draw.normal(0.0, 0.01, count)
    return points, values, noise


def test_smooth_function_is_learnt_and_the_other_feature_ignored():
    points, values, noise = draw_data()
    process = fit_residual_process(points, values, noise)
    others, truth, _ = draw_data(seed=1)
    mean, cov = process.predict(others)
    assert np.abs(mean - truth).mean() < 0.03
    assert process.length_scales[1] > 3.0 * process.length_scales[0]
    sds = np.sqrt(np.diag(cov) + process.nugget_variance + noise)
    assert (np.abs(mean - truth) < 1.96 * sds).mean() > 0.85


def test_gradient_is_that_of_the_objective():
    objective = _NegativeLogLikelihood(*draw_data(15), bias=1.0)
    theta = np.array([-1.0, 0.3, 0.7, -4.0])
    error = check_grad(lambda t: objective(t)[0], lambda t: objective(t)[1], theta)
    assert error < 1e-4 * np.abs(objective(theta)[1]).max()


def test_constant_feature_changes_nothing():
    points, values, noise = draw_data()
    padded = np.column_stack([points, np.full(len(points), 7.0)])
    mean, _ = fit_residual_process(points, values, noise).predict(points)
    again, _ = fit_residual_process(padded, values, noise).predict(padded)
    assert again == pytest.approx(mean, abs=1e-3)


def test_covariance_is_valid_and_restored_from_json():
    process = fit_residual_process(*draw_data(20))
    restored = ResidualProcess.from_dict(json.loads(json.dumps(process.to_dict())))
    others = draw_data(10, seed=2)[0]
    (mean, cov), (same_mean, same_cov) = process.predict(others), restored.predict(others)
    assert (mean == same_mean).all() and (cov == same_cov).all()
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    # Far from all points the signal is unknown; the bias is known in part.
    far = np.diag(process.predict(others + 100.0)[1])
    assert (far > process.signal_variance).all()
    assert (far < process.signal_variance + BIAS_VARIANCE).all()
