"""Plots, axes and marks: what they accept, and how they are laid out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures.example_plots import CURVE, RUNS, SURFACE, read_svg_text
from joulecast.errors import InputError
from joulecast.figures import (
    Caption,
    SampledCurve,
    ScoredEstimate,
    combine_plots,
    make_svg,
    plot_acquisition_step,
    plot_additivity,
    plot_curve,
    plot_curve_errors,
    plot_energy_by_size,
    plot_energy_by_time,
    plot_error_by_budget,
    plot_error_by_cost,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_mape_points,
    plot_pareto_front,
    plot_profiling_time,
    plot_timeline,
    save_html,
    to_plotly,
)
from joulecast.figures.marks import Bars, Line, Points, Surface
from joulecast.figures.plot import Axis, Panel, Plot


@pytest.mark.parametrize(
    "make",
    [
        lambda: plot_estimates([]),
        lambda: plot_mape_bars([]),
        lambda: plot_mape_points([]),
        lambda: plot_error_distribution([]),
        lambda: plot_error_by_cost({}),
        lambda: plot_error_by_cost({"mine": []}),
        lambda: plot_error_by_budget({}),
        lambda: plot_error_by_budget({"guided": []}),
        lambda: plot_profiling_time({}),
        lambda: plot_profiling_time({"xavier": {}}),
        lambda: plot_additivity([]),
        lambda: plot_energy_by_size({}),
        lambda: plot_energy_by_size({"linear": []}),
        lambda: plot_energy_by_time({}),
        lambda: plot_pareto_front([]),
        lambda: plot_timeline([]),
        lambda: plot_curve_errors(replace(CURVE, training_points=(), held_out_points=())),
        lambda: SampledCurve("a layer", ("cin",), ((),), (), ()),
        lambda: combine_plots("none", []),
        lambda: save_html([], "unwritten.html"),
    ],
)
def test_empty_data_raise_one_clear_error(make):
    with pytest.raises(InputError, match="nothing to plot: give at least one"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Line("a", (1.0, 2.0), (1.0,), "#000000"),
        lambda: Points("a", (1.0,), (float("nan"),), "#000000"),
        lambda: Bars("a", (1.0,), (float("inf"),), "#000000"),
        lambda: Surface("a", (1.0, 2.0), (1.0,), ((1.0,),), "#000000"),
        lambda: Plot(Caption("a", provenance="guessed"), ()),
        lambda: ScoredEstimate("a", "flops", 0.0, 1.0),
        lambda: SampledCurve("a", ("x", "y", "z"), ((1.0,),) * 3, (1.0,), (0.0,)),
        lambda: plot_acquisition_step(SURFACE, SURFACE),
        lambda: plot_error_by_budget({"a": [[(1, 5.0)], [(2, 5.0)]]}),
        lambda: plot_error_by_budget({"a": [[(1, 5.0)]], "b": []}),
        lambda: plot_error_by_budget({"a": [[(1, 5.0)], []]}),
    ],
)
def test_invalid_data_are_rejected(make):
    with pytest.raises(InputError):
        make()


@given(st.floats(1e-9, 1e9), st.floats(2.0, 1e6))
def test_log_ticks_are_ascending_and_within_the_axis(low, factor):
    axis = Axis("energy", "J", has_si_prefixes=True, is_log=True, low=low, high=low * factor)
    ticks = list(axis.log_ticks)
    assert ticks == sorted(ticks)
    assert all(low <= tick <= low * factor for tick in ticks)
    assert len(ticks) >= (1 if factor >= 10 else 0)
    assert len(set(axis.log_ticks.values())) == len(ticks)


@pytest.mark.parametrize(("largest", "is_log"), [(5.0, False), (500.0, True)])
def test_axes_are_logarithmic_if_values_span_decades(largest, is_log):
    rows = [
        ScoredEstimate("a", "flops", 1.0, 1.1),
        ScoredEstimate("b", "flops", largest, largest),
    ]
    (panel,) = plot_estimates(rows).panels
    assert (panel.x.is_log, panel.y.is_log) == (is_log, is_log)
    kind = to_plotly(plot_estimates(rows)).layout.xaxis.type
    assert kind == ("log" if is_log else "linear")


def test_combined_plots_keep_their_panels_and_the_weakest_provenance():
    parts = [
        plot_error_by_budget(RUNS, caption=Caption(provenance="modelled")),
        plot_curve(CURVE, Caption(provenance="simulated")),
    ]
    combined = combine_plots("both", parts)
    assert combined.caption.provenance == "simulated"
    assert [panel.marks for panel in combined.panels] == [p.panels[0].marks for p in parts]
    assert [panel.title for panel in combined.panels] == [part.caption.title for part in parts]


def test_columns_depend_on_the_number_and_kind_of_panels():
    panel = Panel(Axis("x"), Axis("y"), (Line("a", (0.0, 1.0), (0.0, 1.0), "#000000"),))
    caption = Caption("a")
    flat = Plot(caption, (panel,) * 5)
    scenes = Plot(caption, (replace(panel, z=Axis("z")),) * 5)
    assert (flat.columns, scenes.columns, Plot(caption, (panel,)).columns) == (3, 2, 1)
    assert len(to_plotly(flat).data) == 5
    assert read_svg_text(make_svg(flat)).count("x") >= 5
