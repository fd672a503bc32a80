"""Both backends render every plot completely, and say when data were not measured."""

import html
import sys
from functools import cache

import numpy as np
import pytest

from figures.example_plots import MAKERS, ROWS, RUNS, list_marks, read_svg_text
from joulecast.errors import MissingError
from joulecast.figures import (
    Caption,
    ScoredEstimate,
    make_svg,
    plot_error_by_budget,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_mape_points,
    to_plotly,
)
from joulecast.figures.marks import Band, HorizontalBars, Label

each_plot = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@cache
def make_figure(make):
    return to_plotly(make())


@each_plot
def test_every_mark_is_a_plotly_trace_with_its_numbers(make):
    plot = make()
    traces = make_figure(make).data
    marks = [mark for panel in plot.panels for mark in panel.marks]
    assert [trace.name for trace in traces] == [mark.name for mark in marks]
    for trace, mark in zip(traces, marks, strict=True):
        if isinstance(mark, Band):
            assert set(trace.y) == {*mark.low, *mark.high}
        elif isinstance(mark, HorizontalBars):
            assert np.array_equal(trace.base, mark.x) and np.array_equal(trace.y, mark.y)
            assert np.add(trace.base, trace.x) == pytest.approx(mark.end)
        else:
            assert np.array_equal(trace.x, mark.x)
            assert np.array_equal(trace.y, mark.y)


@each_plot
def test_svg_contains_the_text_of_every_series_and_axis(make):
    plot = make()
    text = read_svg_text(make_svg(plot))
    names = plot.series if len(plot.series) > 1 else ()
    axes = [axis for panel in plot.panels for axis in (panel.x, panel.y, panel.z) if axis]
    categories = [category for axis in axes for category in axis.categories]
    labels = [axis.label for axis in axes]
    caption = plot.caption
    for expected in (*names, *categories, *labels, caption.title, caption.subtitle):
        assert " ".join(expected.split()) in text


@each_plot
def test_every_series_is_once_in_the_legend_or_labelled(make):
    plot = make()
    shown = [trace.name for trace in make_figure(make).data if trace.showlegend]
    labelled = [mark.name for mark in list_marks(plot, Label)]
    assert sorted([*shown, *labelled]) == sorted(plot.series)


@each_plot
def test_title_says_when_data_are_simulated(make):
    plot = make(Caption(provenance="simulated"))
    assert "(simulated)" in to_plotly(plot).layout.title.text
    assert "(simulated)" in read_svg_text(make_svg(plot))


@pytest.mark.parametrize("provenance", ["modelled", "imported"])
def test_title_says_when_data_are_modelled_or_imported(provenance):
    plot = plot_error_by_budget(RUNS, caption=Caption(provenance=provenance))
    assert f"({provenance})" in to_plotly(plot).layout.title.text
    assert f"({provenance})" in read_svg_text(make_svg(plot))


@each_plot
def test_title_does_not_mention_measured_data(make):
    assert "measured)" not in make_figure(make).layout.title.text


@each_plot
def test_caption_replaces_the_default_title(make):
    plot = make(Caption("My title", "and my subtitle"))
    layout = to_plotly(plot).layout
    assert "My title" in layout.title.text
    assert layout.title.subtitle.text == "and my subtitle"


@each_plot
def test_axes_have_titles_with_units(make):
    for panel in make().panels:
        for axis in (panel.x, panel.y):
            assert axis.categories or axis.title
        axes = [axis for axis in (panel.x, panel.y, panel.z) if axis]
        energies = [axis for axis in axes if "energy" in axis.title.lower()]
        assert all(axis.label.endswith("(J)") for axis in energies)


@pytest.mark.parametrize(
    "name", ["$a_b^2$", "<b>bold</b>", "_hidden", "a & b", "\u7f51", "a\\b{c}"]
)
def test_special_characters_are_shown_literally(name):
    lines = {name: RUNS["guided"], "plain": RUNS["random"]}
    plot = plot_error_by_budget(lines, caption=Caption(subtitle=name))
    assert name in read_svg_text(make_svg(plot))
    assert [html.unescape(trace.name) for trace in to_plotly(plot).data].count(name) == 2


def test_svg_is_deterministic_and_has_no_date():
    one, two = (make_svg(MAKERS["curve"]()) for _ in range(2))
    assert one == two
    assert "<dc:date>" not in one


def test_perfect_estimates_can_be_plotted():
    rows = [ScoredEstimate(name, "additive", 1.0, 1.0) for name in "ab"]
    for make in (plot_estimates, plot_mape_bars, plot_mape_points, plot_error_distribution):
        assert to_plotly(make(rows)).data
        assert read_svg_text(make_svg(make(rows)))


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingError, match=r"joulecast\[paper\]"):
        make_svg(plot_mape_bars(ROWS))
