"""Plots of accuracy show the numbers of their rows."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures.example_plots import MAKERS, ROWS, list_marks
from joulecast.figures import (
    ScoredEstimate,
    compute_mape_percent,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_mape_points,
    to_plotly,
)
from joulecast.figures.marks import Bars, Line, Points


def test_estimates_have_intervals_and_hover_texts():
    plot = plot_estimates(ROWS)
    for points in list_marks(plot, Points):
        rows = [row for row in ROWS if row.estimator == points.name]
        assert points.low == tuple(row.interval_j[0] for row in rows)
        assert points.high == tuple(row.interval_j[1] for row in rows)
        pairs = zip(rows, points.hover_texts, strict=True)
        assert all(row.net in text for row, text in pairs)
    (line,) = list_marks(plot, Line)
    assert line.x == line.y
    trace = next(trace for trace in to_plotly(plot).data if trace.name == "flops")
    assert np.add(trace.y, trace.error_y.array) == pytest.approx(
        [row.interval_j[1] for row in ROWS if row.estimator == "flops"]
    )


def test_bars_are_mean_errors_and_noise_is_a_line():
    plot = plot_mape_bars(ROWS, {"cnn5": 1.5, "unknown": 9.0})
    heights = {bars.name: bars.y for bars in list_marks(plot, Bars)}
    for name, values in heights.items():
        for family, value in zip(("lenet5", "cnn5", "lstm"), values, strict=True):
            rows = [row for row in ROWS if (row.family, row.estimator) == (family, name)]
            assert value == pytest.approx(compute_mape_percent(rows))
    (noise,) = list_marks(plot, Line)
    assert noise.y == (1.5, 1.5)


def test_points_are_the_heights_of_the_bars_with_the_first_family_on_top():
    plot = plot_mape_points(ROWS, {"cnn5": 1.5, "unknown": 9.0})
    (panel,) = plot.panels
    assert panel.y.categories == ("lstm", "cnn5", "lenet5")
    heights = {bars.name: bars.y for bars in list_marks(plot_mape_bars(ROWS), Bars)}
    for points in list_marks(plot, Points):
        assert points.x == heights[points.name]
        assert points.y == (2.0, 1.0, 0.0)
    (noise,) = list_marks(plot, Line)
    assert noise.x == (1.5, 1.5)


def test_bars_never_overlap():
    for make in (MAKERS["mape bars"], MAKERS["profiling time"], MAKERS["additivity"]):
        spans = {
            (round(x - bars.width / 2, 9), round(x + bars.width / 2, 9))
            for bars in list_marks(make(), Bars)
            for x in bars.x
        }
        ordered = sorted(spans)
        assert all(one[1] <= two[0] for one, two in pairwise(ordered))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=20))
def test_distribution_rises_to_all_networks(ratios):
    rows = [ScoredEstimate(str(i), "flops", 1.0, ratio) for i, ratio in enumerate(ratios)]
    (line,) = list_marks(plot_error_distribution(rows), Line)
    assert line.y[0] == 0.0
    assert line.y[-1] == 100.0
    assert list(line.y) == sorted(line.y)
    assert list(line.x) == sorted(line.x)
    errors = sorted(abs(row.error_percent) for row in rows)
    middle = errors[len(errors) // 2]
    share = max(
        y for x, y in zip(line.x, line.y, strict=True) if x <= middle * (1 + 1e-12) or y == 0
    )
    assert share == pytest.approx(100 * sum(e <= middle for e in errors) / len(errors))


def test_axes_say_what_a_step_is():
    (panel,) = plot_estimates(ROWS, step="inference").panels
    assert panel.x.title == "Measured energy per inference"
    assert panel.y.title == "Estimated energy per inference"
