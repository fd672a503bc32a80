"""Pareto fronts are staircases."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.figures import (
    Caption,
    FrontPlotOptions,
    FrontPoint,
    make_html,
    make_svg,
    plot_pareto_front,
)
from joulecast.figures.marks import Line, Points

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=30)


@given(PAIRS, st.booleans())
def test_front_is_a_monotonic_staircase(pairs, is_higher_better):
    points = [
        FrontPoint(f"p{i}", float(x), float(y), (y / 2, y * 2.0)) for i, (x, y) in enumerate(pairs)
    ]
    options = FrontPlotOptions(is_higher_better=is_higher_better, budget_j=20.0)
    plot = plot_pareto_front(points, options, Caption(provenance="modelled"))
    (panel,) = plot.panels
    stairs = next(m for m in panel.marks if isinstance(m, Line) and m.name == "Pareto front")
    assert "modelled" in plot.heading and "energy budget" in plot.series
    for (x0, y0), (x1, y1) in pairwise(zip(stairs.x, stairs.y, strict=True)):
        # Each segment is horizontal or vertical, and a better value never costs less.
        assert x0 == x1 or y0 == y1
        assert x1 >= x0 and (y1 >= y0 if is_higher_better else y1 <= y0)
    drawn = [m for m in panel.marks if isinstance(m, Points)]
    assert sum(len(m.x) for m in drawn) == len(points)


def test_front_is_rendered_by_both_backends():
    points = [
        FrontPoint("a net", 0.9, 3.0, (2.0, 4.0), label="#1"),
        FrontPoint("b", 0.8, 4.0, (3.0, 5.0)),
    ]
    options = FrontPlotOptions(value_title="Accuracy", budget_j=3.5, others="the others")
    plot = plot_pareto_front(points, options)
    assert "<svg" in make_svg(plot)
    assert "a net" in make_html(plot)
    with pytest.raises(InputError, match="nothing to plot"):
        plot_pareto_front([])
