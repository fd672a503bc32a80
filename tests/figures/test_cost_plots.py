"""Plots of error against budget and cost."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures.example_plots import RUNS, list_marks
from joulecast.figures import Axis, CostPlotOptions, plot_error_by_budget, plot_error_by_cost
from joulecast.figures.marks import Band, Label, Line
from joulecast.views.style import COLOURS, SPARE_COLOURS


def test_band_contains_its_line_and_every_run():
    plot = plot_error_by_budget(RUNS)
    (band,) = list_marks(plot, Band)
    line = next(line for line in list_marks(plot, Line) if line.name == "guided")
    assert band.x == line.x == (10, 20, 30)
    assert line.y == tuple(statistics.fmean(y) for y in ((30, 25), (12, 15), (8, 9)))
    assert all(low <= y <= high for low, y, high in zip(band.low, line.y, band.high, strict=True))


def test_runs_with_other_budgets_are_interpolated():
    runs = {"guided": [[(10, 30.0), (20, 10.0), (40, 5.0)], [(12, 20.0), (36, 8.0)]]}
    (line,) = list_marks(plot_error_by_budget(runs, Axis("Device time", "s")), Line)
    assert line.x == (12, 20, 36)
    assert line.y == pytest.approx((23.0, 13.0, 7.0))


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6))
def test_labels_keep_their_order_and_distance(errors):
    lines = {f"line {i}": [(5.0, 50.0), (160.0, error)] for i, error in enumerate(errors)}
    plot = plot_error_by_cost(lines, CostPlotOptions(noise_percent=0.5))
    (panel,) = plot.panels
    ends = {line.name: line.y[-1] for line in list_marks(plot, Line)}
    labels = sorted(list_marks(plot, Label), key=lambda label: label.y)
    assert [label.name for label in labels] == sorted(ends, key=lambda name: ends[name])
    least = (panel.y.high / panel.y.low) ** 0.06
    assert all(two.y[0] / one.y[0] > least for one, two in pairwise(labels))
    assert not plot.legend


def test_line_enters_from_above_the_upper_limit():
    lines = {"wild": [(5.0, 90000.0), (20.0, 20.0)], "lost": [(5.0, 500.0)]}
    plot = plot_error_by_cost(lines, CostPlotOptions(max_percent=100.0))
    (panel,) = plot.panels
    assert 100.0 <= panel.y.high < 120.0
    assert list_marks(plot, Line)[0].y == (90000.0, 20.0)
    assert all(label.y[0] < panel.y.high for label in list_marks(plot, Label))


def test_method_takes_the_colour_of_its_estimator():
    options = CostPlotOptions(estimator_of={"paper": "subtractive"})
    plot = plot_error_by_cost({"paper": [(5.0, 9.0)], "ours": [(5.0, 4.0)]}, options)
    colours = {line.name: line.colour for line in list_marks(plot, Line)}
    assert colours["paper"] == COLOURS["subtractive"]
    assert colours["ours"] in SPARE_COLOURS
