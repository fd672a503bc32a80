"""Matern kernels."""

import numpy as np
import pytest

from joulecast.gp import linalg
from joulecast.gp.kernels import matern52, matern52_with_gradient


def test_kernel_and_gradient_do_not_depend_on_the_size_of_strips(monkeypatch):
    points, workspace = np.random.default_rng(4).normal(size=(30, 5)), np.empty((2, 30, 30))
    kernel, gradient = (found.copy() for found in matern52_with_gradient(points, workspace))
    monkeypatch.setattr(linalg, "_STRIP_SIZE", 50)
    again = matern52_with_gradient(points, workspace)
    assert again[0] == pytest.approx(kernel, rel=1e-9)
    assert again[1] == pytest.approx(gradient, rel=1e-9)
    assert (again[0] == again[0].T).all()


def test_gradient_is_the_derivative_by_squared_distance():
    squares = np.linspace(0.1, 20.0, 50)
    step = 1e-6
    difference = (matern52(squares + step) - matern52(squares - step)) / (2 * step)
    points = np.vstack([np.zeros(1), np.sqrt(squares)[:, None]])
    _, gradient = matern52_with_gradient(points, np.empty((2, 51, 51)))
    assert gradient[0, 1:] == pytest.approx(-2.0 * difference, rel=1e-4)


def test_kernel_among_points_is_that_of_their_distances():
    points = np.random.default_rng(3).normal(size=(6, 3)) + 9.0
    kernel, _ = matern52_with_gradient(points, np.empty((2, 6, 6)))
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    assert kernel == pytest.approx(matern52(squares), abs=1e-6)
