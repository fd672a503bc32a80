"""Test the regressions of one kind of kernel."""

import json

import numpy as np
import pytest

from joulecast.estimators.kernels.fitted_kernels import (
    ProcessRegression,
    fit_process,
    list_log_features,
)
from kernel_examples import draw_convs, find_durations, make_conv


def fit_convs(count=60):
    kernels = draw_convs(count)
    return fit_process(kernels, find_durations(kernels), np.full(count, 0.01))


def test_unseen_kernels_are_predicted():
    others = draw_convs(40, seed=1)
    means, cov = fit_convs().predict(others)
    errors = np.log(find_durations(others)) - means
    assert np.abs(errors).mean() < 0.05
    assert (np.abs(errors) < 1.96 * np.sqrt(np.diag(cov))).mean() > 0.85
    assert np.linalg.eigvalsh(cov).min() > -1e-9


def test_fit_is_restored_exactly():
    fitted = fit_convs(20)
    restored = ProcessRegression.from_dict(json.loads(json.dumps(fitted.to_dict())))
    others = draw_convs(5, seed=1)
    for one, two in zip(fitted.predict(others), restored.predict(others), strict=True):
        assert (one == two).all()
    assert restored.count == 20


def test_powers_are_not_proportional_to_work():
    kernels = draw_convs(30)
    fitted = fit_process(kernels, np.full(30, 12.0), np.full(30, 0.01), by_work=False)
    means, _ = fitted.predict([make_conv(3, 3, 3), make_conv(500, 500, 100)])
    assert np.exp(means) == pytest.approx(12.0, rel=0.05)


def test_errors_of_similar_kernels_are_correlated():
    fitted = fit_convs(12)
    _, cov = fitted.predict([make_conv(300, 300, 90), make_conv(301, 300, 90), make_conv(3, 4, 5)])
    correlation = cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert correlation[0, 1] > 0.5 > correlation[0, 2]


def test_full_tiles_are_a_feature():
    points = list_log_features([make_conv(8, 8, 13), make_conv(8, 8, 14), make_conv(8, 8, 16)], ())
    assert points[:, -1].tolist() == [0.0, 1.0, 3.0]
