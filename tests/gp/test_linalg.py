"""Products, Cholesky factors and inverses equal those of numpy."""

import numpy as np
import pytest

from joulecast.gp import linalg
from joulecast.gp.kernels import matern52, matern52_with_gradient
from joulecast.gp.linalg import (
    WeightedSums,
    cholesky_with_inverse,
    factorise_covariance,
    invert_covariance,
    matmul,
)


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_factors_inverses_and_log_determinants_of_a_covariance(size):
    half = np.random.default_rng(size).normal(size=(size, size))
    matrix = half @ half.T + np.eye(size)
    factor, factor_inverse = cholesky_with_inverse(matrix)
    assert factor == pytest.approx(np.linalg.cholesky(matrix), rel=1e-8, abs=1e-8)
    assert factor_inverse @ factor == pytest.approx(np.eye(size), abs=1e-8)
    assert factorise_covariance(matrix) == pytest.approx(factor, rel=1e-8, abs=1e-8)
    inverse, half_log_det = invert_covariance(matrix)
    assert inverse == pytest.approx(np.linalg.inv(matrix), abs=1e-9)
    assert half_log_det == pytest.approx(0.5 * np.linalg.slogdet(matrix)[1])


def test_nearly_singular_matrix_gets_jitter():
    """Rounding alone decides whether a matrix of equal rows is positive definite."""
    matrix = np.ones((90, 90)) - 1e-12 * np.eye(90)
    factor, _ = cholesky_with_inverse(matrix)
    assert factor @ factor.T == pytest.approx(matrix, abs=1e-6)
    assert np.isfinite(invert_covariance(matrix)[0]).all()
    assert matrix[0, 0] == 1.0 - 1e-12


@pytest.mark.parametrize("solve", [cholesky_with_inverse, factorise_covariance, invert_covariance])
@pytest.mark.parametrize("size", [3, 90])
def test_indefinite_matrix_is_refused(solve, size):
    with pytest.raises(np.linalg.LinAlgError):
        solve(-np.eye(size))


@pytest.mark.parametrize(("rows", "columns"), [(700, 40), (30, 150), (0, 3), (3, 0)])
def test_tiled_product_equals_that_of_numpy(rows, columns):
    rng = np.random.default_rng(8)
    left, right = rng.normal(size=(rows, columns)), rng.normal(size=(columns, 70))
    assert matmul(left, right) == pytest.approx(left @ right, abs=1e-10)


def test_sums_equal_products_with_the_dense_matrix():
    """Thirty sums over forty inputs; the last one is empty."""
    rng, size, inputs = np.random.default_rng(2), 30, 40
    entries = [sorted(rng.choice(inputs, 1 + k % 6, False)) for k in range(size - 1)]
    row = np.repeat(np.arange(size - 1), [len(one) for one in entries])
    weight = rng.integers(1, 5, len(row)).astype(float)
    sums = WeightedSums(size, row, np.concatenate(entries), weight)
    matrix = np.zeros((size, inputs))
    matrix[sums.row, sums.column] = sums.weight
    values, other = rng.normal(size=inputs), rng.normal(size=(inputs, 3))
    assert sums.total(values) == pytest.approx(matrix @ values)
    assert sums.matmul(other) == pytest.approx(matrix @ other)


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
