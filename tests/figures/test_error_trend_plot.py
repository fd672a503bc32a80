"""Plots of errors against a property of the networks."""

from figures.example_plots import TREND
from joulecast.figures import Axis, plot_error_trend


def test_errors_keep_their_sign_unless_their_size_is_asked_for():
    (signed,) = plot_error_trend(TREND, Axis("Layers")).panels
    flops = next(mark for mark in signed.marks if mark.name == "flops")
    assert flops.x == (10.0, 20.0, 30.0) and flops.y == (-5.0, -10.0, -15.0)
    assert signed.marks[0].name == "no error"
    (sizes,) = plot_error_trend(TREND, Axis("Layers"), is_absolute=True).panels
    assert next(mark for mark in sizes.marks if mark.name == "flops").y == (5.0, 10.0, 15.0)
    assert sizes.y.low == 0.0 and all(mark.name != "no error" for mark in sizes.marks)
