"""Matern 5/2 kernels between many points.

    ℓ_a      length scale of axis a
    x̃_a      = √5·x_a / ℓ_a, a scaled point
    d        = |x̃ - x̃'|
    M(d)     = (1 + d + d²/3)·exp(-d)
    dM/d(d²) = -(1 + d)·exp(-d) / 6

Functions take scaled points, so that a kernel depends on their distance alone. Matrices are made in
strips of rows that fit the cache.
"""

from __future__ import annotations

import math

import numpy as np

from joulecast.gp.linalg import Floats, iterate_strips

_ROOT5 = math.sqrt(5.0)


def scale_points(points: Floats, length_scales: Floats) -> Floats:
    """Return points divided by their length scales, times √5."""
    return np.asarray(points * (_ROOT5 / length_scales))


def matern52(squared_distances: Floats) -> Floats:
    """Return the kernel at squared distances of scaled points, in place of its argument."""
    squares = squared_distances
    np.maximum(squares, 0.0, out=squares)
    distance = np.sqrt(squares)
    squares /= 3.0
    squares += distance
    squares += 1.0
    np.negative(distance, out=distance)
    squares *= np.exp(distance, out=distance)
    return squares


def matern52_with_gradient(points: Floats, workspace: Floats) -> tuple[Floats, Floats]:
    """Return the kernel M among scaled points, and -2·dM/d(d²).

    Both are written into ``workspace``, 2 x P x P: reusing memory is faster than allocating it.
    """
    size = len(points)
    centered = points - points.mean(axis=0)
    one, two = factor_squared_distances(centered, centered)
    kernel, gradient = workspace
    for rows in iterate_strips(size, size):
        squares = one[rows] @ two[:, rows.start :]
        distance = np.sqrt(np.maximum(squares, 0.0))
        decay = np.exp(-distance)
        distance += 1.0
        squares /= 3.0
        squares += distance
        squares *= decay
        distance *= decay
        distance /= 3.0
        # Both are symmetric: a strip right of the diagonal is also the one below it.
        for matrix, strip in ((kernel, squares), (gradient, distance)):
            matrix[rows, rows.start :] = strip
            matrix[rows.start :, rows] = strip.T
    return kernel, gradient


def factor_squared_distances(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return two matrices whose product is the squared distances between two sets of points."""
    left_squares, right_squares = ((points**2).sum(axis=1) for points in (left, right))
    one = np.column_stack([-2.0 * left, left_squares, np.ones(len(left))])
    return one, np.vstack([right.T, np.ones(len(right)), right_squares])
