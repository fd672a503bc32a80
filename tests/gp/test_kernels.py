"""Matern kernels and prior covariances."""

import numpy as np
import pytest

from gp_examples import AXES, BASIS_SIZE, OFFSET_SD, draw_inputs
from joulecast.gp import linalg
from joulecast.gp.covariance import cross_covariance
from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.kernels import matern52, matern52_with_gradient


def test_kernels_do_not_depend_on_the_size_of_strips(monkeypatch):
    rng = np.random.default_rng(4)
    one, two = draw_inputs(rng, 30), draw_inputs(rng, 20)
    theta = 0.2 * rng.normal(size=BASIS_SIZE + 4 + AXES + 2)
    hyper = HyperParameters.unpack(theta, BASIS_SIZE, AXES, OFFSET_SD)
    whole = cross_covariance(one, two, hyper)
    workspace = np.empty((2, 30, 30))
    kernel, gradient = (found.copy() for found in matern52_with_gradient(one.points, workspace))
    monkeypatch.setattr(linalg, "_STRIP_SIZE", 50)
    assert cross_covariance(one, two, hyper) == pytest.approx(whole, rel=1e-12)
    again = matern52_with_gradient(one.points, workspace)
    assert again[0] == pytest.approx(kernel, rel=1e-9)
    assert again[1] == pytest.approx(gradient, rel=1e-9)
    assert (again[0] == again[0].T).all()


def test_matern_decreases_from_one():
    distance = np.linspace(0.0, 30.0, 200)
    value = matern52(distance**2)
    assert value[0] == 1.0
    assert (np.diff(value) < 0).all()
    assert value[-1] < 1e-10
