"""Plots of fitted curves show what the process predicts."""

import numpy as np
import pytest

from figures.example_plots import CURVE, LATER_CURVE, SURFACE, list_marks
from joulecast.figures import plot_acquisition_step, plot_curve, plot_curve_errors, sample_curve
from joulecast.figures.marks import Points, Surface
from joulecast.gp.regression import fit_gaussian_process


def test_sampled_curve_equals_the_prediction_of_its_process():
    points = [(1, 1), (64, 1), (1, 32), (64, 32), (30, 9)]
    process = fit_gaussian_process(points, [0.1, 0.5, 0.4, 2.0, 0.6], [1e-6] * 5)
    curve = sample_curve(process, "a layer", ["cin", "cout"], {(9.0, 20.0): 0.5})
    (surface,) = list_marks(plot_curve(curve), Surface)
    for row, column in ((0, 0), (3, 20), (24, 7)):
        (mean,), _ = process.predict(np.array([[surface.x[column], surface.y[row]]]))
        assert surface.z[row][column] == pytest.approx(mean)
    assert [list(point.widths) for point in curve.training_points] == process.inputs.tolist()
    (held_out,) = curve.held_out_points
    (mean,), _ = process.predict(np.array([[9.0, 20.0]]))
    assert held_out.predicted_j == pytest.approx(mean)
    assert held_out.error_percent == pytest.approx(100 * (mean / 0.5 - 1))


def test_errors_are_those_of_the_held_out_points():
    (points,) = list_marks(plot_curve_errors(SURFACE), Points)
    assert points.colour_values == tuple(point.error_percent for point in SURFACE.held_out_points)
    (points,) = list_marks(plot_curve_errors(CURVE), Points)
    assert points.y == tuple(point.error_percent for point in CURVE.held_out_points)


def test_acquired_point_is_where_the_variance_was_largest():
    before, after = plot_acquisition_step(CURVE, LATER_CURVE).panels
    largest = next(mark for mark in before.marks if mark.name == "largest variance")
    assert largest.x[0] == CURVE.axes[0][int(np.argmax(CURVE.sds_j))]
    new = next(mark for mark in after.marks if mark.name == "newly measured")
    assert new.x == (43.0,)
    assert (before.y.low, before.y.high) == (after.y.low, after.y.high)
