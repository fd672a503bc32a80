"""Plots as parts of pages: a figure, a sentence and a table."""

from __future__ import annotations

import json

import pytest

from figures.example_plots import CURVE, MAKERS, SURFACE
from joulecast.figures import Caption, embed_plot, plot_curve


@pytest.mark.parametrize("name", MAKERS)
def test_every_plot_has_text_and_a_figure(name):
    plot = MAKERS[name]()
    found = embed_plot(plot)
    assert found.summary.endswith(".")
    assert all(panel.y.label in found.summary for panel in plot.panels)
    assert found.rows and all(len(row) == len(found.columns) for row in found.rows)
    assert json.loads(json.dumps(found.to_dict()))["figure"]["data"]
    # The page has the heading: in the figure it would be twice, and its style is forbidden.
    assert "title" not in found.figure["layout"]
    assert found.heading == plot.heading


def test_heading_says_that_data_were_simulated():
    found = embed_plot(plot_curve(CURVE, Caption("Curve", provenance="simulated")))
    assert found.heading == "Curve (simulated)"


def test_table_has_the_values_of_points_and_the_ends_of_surfaces():
    found = embed_plot(plot_curve(SURFACE))
    measured = [row for row in found.rows if "measured" in row]
    assert len(measured) == len(SURFACE.training_points)
    first = SURFACE.training_points[0]
    assert measured[0][-1] == f"{first.measured_j:.4g}"
    surface = [row for row in found.rows if "Gaussian process mean" in row]
    # Corners, middles of the edges and the centre.
    assert len(surface) == 9
