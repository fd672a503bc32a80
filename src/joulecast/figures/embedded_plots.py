"""Prepare plots for web pages: a figure for plotly.js, and the same data as text.

Who cannot see a plot reads a sentence and a table instead. The heading is part of the page, so the
figure has none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from joulecast.figures.marks import (
    Band,
    Bars,
    HorizontalBars,
    Label,
    Line,
    Mark,
    Points,
    Surface,
)
from joulecast.figures.plot import Axis, Panel, Plot
from joulecast.figures.plotly_backend import to_plotly

Json = dict[str, Any]
Row = tuple[str, ...]

# Room for the titles of panels.
_TOP_PX = 36
# A table of more rows helps nobody; the data are in the JSON of the page.
_MOST_ROWS = 500


@dataclass(frozen=True)
class EmbeddedPlot:
    """A plot as part of a page.

    Attributes:
        heading: Its title, with the provenance of data that were not measured.
        subtitle: A smaller line below the title.
        summary: One sentence on what it shows.
        columns: Titles of the table's columns.
        rows: Its data as text.
        figure: Data and layout for plotly.js.
    """

    heading: str
    subtitle: str
    summary: str
    columns: Row
    rows: tuple[Row, ...]
    figure: Json

    def to_dict(self) -> Json:
        """Return the plot as JSON values."""
        return {
            "heading": self.heading,
            "subtitle": self.subtitle,
            "summary": self.summary,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "figure": self.figure,
        }


def embed_plot(plot: Plot) -> EmbeddedPlot:
    """Return a plot as a part of a page."""
    columns, rows = list_plot_values(plot)
    return EmbeddedPlot(
        plot.heading, plot.caption.subtitle, summarise_plot(plot), columns, rows, _make_figure(plot)
    )


def summarise_plot(plot: Plot) -> str:
    """Return what a plot shows, in one sentence."""
    panels = "; ".join(dict.fromkeys(map(_summarise_panel, plot.panels)))
    names = ", ".join(plot.series)
    return f"{panels}. Series: {names}." if names else f"{panels}."


def list_plot_values(plot: Plot) -> tuple[Row, tuple[Row, ...]]:
    """Return the titles and the rows of a table with the values that a plot shows."""
    has_panels = any(panel.title for panel in plot.panels)
    labels = [_list_labels(panel) for panel in plot.panels]
    titles = max(labels, key=len)
    if any(one != titles[: len(one)] for one in labels):
        titles = ("x", "y", "z")[: len(titles)]
    columns = (*(("panel",) if has_panels else ()), "series", *titles)
    rows = []
    for panel in plot.panels:
        for mark in panel.marks:
            for values in _list_values(mark, panel):
                row = (*((panel.title,) if has_panels else ()), mark.name, *values)
                rows.append((*row, *("",) * (len(columns) - len(row))))
    return columns, tuple(rows[:_MOST_ROWS])


def _summarise_panel(panel: Panel) -> str:
    height = panel.z or panel.y
    against = f"{panel.x.label} and {panel.y.label}" if panel.z else panel.x.label
    # An axis of categories needs no title.
    text = " against ".join(filter(None, (height.label, against)))
    return f"{panel.title}: {text}" if panel.title else text


def _list_labels(panel: Panel) -> Row:
    axes = (panel.x, panel.y) if panel.z is None else (panel.x, panel.y, panel.z)
    return tuple(axis.label or "value" for axis in axes)


# ---------------------------------------------------------------------------------------------
# Values of a mark


@singledispatch
def _list_values(mark: Mark, panel: Panel) -> list[Row]:
    raise NotImplementedError(type(mark).__name__)


@_list_values.register
def _(mark: Points, panel: Panel) -> list[Row]:
    z = mark.z or (None,) * len(mark.x)
    rows = []
    for at, (x, y, height) in enumerate(zip(mark.x, mark.y, z, strict=True)):
        values = [_format(x, panel.x), _format(y, panel.y)]
        if height is not None and panel.z is not None:
            values.append(_format(height, panel.z))
        if mark.low and mark.high:
            ends = (_format(end, panel.y) for end in (mark.low[at], mark.high[at]))
            values[-1] += f" ({'–'.join(ends)})"
        rows.append(tuple(values))
    return rows


@_list_values.register
def _(mark: Line, panel: Panel) -> list[Row]:
    return _list_pairs(mark.x, mark.y, panel)


@_list_values.register
def _(mark: Band, panel: Panel) -> list[Row]:
    ends = [
        f"{_format(a, panel.y)}–{_format(b, panel.y)}"
        for a, b in zip(mark.low, mark.high, strict=True)
    ]
    return [(_format(x, panel.x), end) for x, end in zip(mark.x, ends, strict=True)]


@_list_values.register
def _(mark: Bars, panel: Panel) -> list[Row]:
    return _list_pairs(mark.x, mark.y, panel)


@_list_values.register
def _(mark: HorizontalBars, panel: Panel) -> list[Row]:
    rows: list[Row] = []
    for at, (begin, end) in enumerate(zip(mark.x, mark.end, strict=True)):
        span = _format(end, panel.x)
        if begin:
            span = f"{_format(begin, panel.x)}–{span}"
        if mark.labels and mark.labels[at]:
            span += f" ({mark.labels[at]})"
        rows.append((span, _format(mark.y[at], panel.y)))
    return rows


@_list_values.register
def _(mark: Surface, panel: Panel) -> list[Row]:
    # A whole grid is not readable: its corners and centre are.
    x, y = _pick_ends(mark.x), _pick_ends(mark.y)
    height = panel.z or panel.y
    return [
        (_format(mark.x[i], panel.x), _format(mark.y[j], panel.y), _format(mark.z[j][i], height))
        for j in y
        for i in x
    ]


@_list_values.register
def _(mark: Label, panel: Panel) -> list[Row]:
    return []


def _list_pairs(x: tuple[float, ...], y: tuple[float, ...], panel: Panel) -> list[Row]:
    return [(_format(a, panel.x), _format(b, panel.y)) for a, b in zip(x, y, strict=True)]


def _pick_ends(values: tuple[float, ...]) -> list[int]:
    return sorted({0, len(values) // 2, len(values) - 1})


def _format(value: float, axis: Axis) -> str:
    if axis.categories:
        place = round(value)
        return axis.categories[place] if 0 <= place < len(axis.categories) else f"{value:g}"
    return f"{value:.4g}"


# ---------------------------------------------------------------------------------------------
# Figure


def _make_figure(plot: Plot) -> Json:
    """Return the figure for plotly.js, without the heading and the margin of it."""
    figure = to_plotly(plot)
    made: Json = json.loads(figure.to_json())
    layout = made["layout"]
    removed_px = layout["margin"]["t"] - _TOP_PX
    layout["margin"]["t"] = _TOP_PX
    layout["height"] -= removed_px
    del layout["title"]
    return {"data": made["data"], "layout": layout}
