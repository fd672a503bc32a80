"""Render plots with plotly, for the screen.

plotly is imported on first use.
"""

from __future__ import annotations

import html
import math
import textwrap
from functools import singledispatch
from typing import Any

from joulecast.figures.marks import (
    Band,
    Bars,
    Floats,
    HorizontalBars,
    Label,
    Line,
    Mark,
    Points,
    Surface,
)
from joulecast.figures.plot import Axis, Panel, Plot
from joulecast.views.style import DIVERGING, FONT, GRID, MUTED, TEXT, mix_colours

Json = dict[str, Any]

_MARKERS = {
    "circle": "circle",
    "diamond": "diamond",
    "square": "square",
    "triangle": "triangle-up",
    "cross": "x",
    "star": "star",
}
# A 3-D scene draws markers as glyphs, and few fonts have more than these.
_SCENE_MARKERS = {**_MARKERS, "cross": "diamond", "triangle": "square", "star": "square"}
_PANEL_PX, _TALL_PANEL_PX = 300, 440
_BAR_LABELS = {"textposition": "outside", "constraintext": "none", "textfont": {"size": 10}}
# Letters that fit side by side below a full-width panel; more are tilted.
_WIDTH_LETTERS = 110
_LETTER_PX = 8


def to_plotly(plot: Plot) -> Any:
    """Return a plot as a ``plotly.graph_objects.Figure``."""
    from plotly.subplots import make_subplots

    columns = plot.columns
    rows = math.ceil(len(plot.panels) / columns)
    kinds = [{"type": "xy" if panel.z is None else "scene"} for panel in plot.panels]
    kinds += [None] * (rows * columns - len(kinds))  # type: ignore[list-item]
    figure = make_subplots(
        rows,
        columns,
        specs=[kinds[row * columns : (row + 1) * columns] for row in range(rows)],
        subplot_titles=[_wrap(panel.title, _WIDTH_LETTERS // columns) for panel in plot.panels],
        horizontal_spacing=0.25 / columns if columns > 1 else 0.0,
    )
    figure.update_annotations(font={"size": 13})
    in_legend = {id(mark) for mark in plot.legend.values()}
    for index, panel in enumerate(plot.panels):
        cell = {"row": index // columns + 1, "col": index % columns + 1}
        for mark in panel.marks:
            figure.add_trace(
                {**_make_trace(mark), **_name_trace(mark, id(mark) in in_legend)}, **cell
            )
        _set_axes(figure, panel, cell, columns)
    figure.update_layout(_make_layout(plot, rows))
    return figure


# ---------------------------------------------------------------------------------------------
# Marks


@singledispatch
def _make_trace(mark: Mark) -> Json:
    raise NotImplementedError(type(mark).__name__)


@_make_trace.register
def _(mark: Points) -> Json:
    symbols = _SCENE_MARKERS if mark.z else _MARKERS
    marker: Json = {
        "symbol": symbols[mark.marker],
        "color": mark.colour,
        "size": 4 if mark.z else 8,
        "opacity": 0.85,
        "line": {"width": 0.5, "color": "white"},
    }
    if mark.colour_values:
        marker |= _make_colour_scale(mark)
    trace: Json = {"type": "scatter", "mode": "markers", "x": mark.x, "y": mark.y, "marker": marker}
    if mark.z:
        return {**trace, "type": "scatter3d", "z": mark.z, **_make_hover(mark.hover_texts)}
    error_bars = _make_error_bars(mark.y, mark.low, mark.high, mark.colour)
    return {**trace, **error_bars, **_make_hover(mark.hover_texts)}


@_make_trace.register
def _(mark: Line) -> Json:
    line = {
        "color": mark.colour,
        "width": 1.5 if mark.is_dashed else 2.2,
        "dash": "6px,4px" if mark.is_dashed else "solid",
        "shape": "hv" if mark.is_step else "linear",
    }
    trace = {"type": "scatter", "mode": "lines", "x": mark.x, "y": mark.y, "line": line}
    return {**trace, **_make_hover(mark.hover_texts)}


@_make_trace.register
def _(mark: Band) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": (*mark.x, *reversed(mark.x)),
        "y": (*mark.high, *reversed(mark.low)),
        "fill": "toself",
        "fillcolor": _with_alpha(mark.colour, 0.16),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


@_make_trace.register
def _(mark: Bars) -> Json:
    tops = tuple(map(sum, zip(mark.base or (0.0,) * len(mark.y), mark.y, strict=True)))
    return {
        "type": "bar",
        "x": mark.x,
        "y": mark.y,
        "width": mark.width,
        "marker": {"color": mark.colour, "line": {"width": 0.5, "color": "white"}},
        **({"base": mark.base} if mark.base else {}),
        **({"text": mark.labels, **_BAR_LABELS} if mark.labels else {}),
        "cliponaxis": False,
        **_make_error_bars(tops, mark.low, mark.high, TEXT),
        **_make_hover(mark.hover_texts),
    }


@_make_trace.register
def _(mark: HorizontalBars) -> Json:
    lengths = tuple(end - begin for begin, end in zip(mark.x, mark.end, strict=True))
    inside = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    return {
        "type": "bar",
        "orientation": "h",
        "base": mark.x,
        "x": lengths,
        "y": mark.y,
        "width": mark.height,
        "marker": {"color": mark.colour, "line": {"width": 0.8, "color": "white"}},
        **({"text": tuple(map(_escape, mark.labels)), **inside} if mark.labels else {}),
        **_make_hover(mark.hover_texts),
    }


@_make_trace.register
def _(mark: Surface) -> Json:
    return {
        "type": "surface",
        "x": mark.x,
        "y": mark.y,
        "z": mark.z,
        "colorscale": [[0.0, mix_colours(mark.colour, "#FFFFFF", 0.8)], [1.0, mark.colour]],
        "showscale": False,
        "opacity": mark.opacity,
    }


@_make_trace.register
def _(mark: Label) -> Json:
    return {
        "type": "scatter",
        "mode": "text",
        "x": mark.x,
        "y": mark.y,
        "text": (f"  {_escape(mark.name)}",) * len(mark.x),
        "textposition": "middle right",
        "textfont": {"color": mark.colour},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _name_trace(mark: Mark, in_legend: bool) -> Json:
    return {"name": _escape(mark.name), "legendgroup": mark.name, "showlegend": in_legend}


def _make_error_bars(values: Floats, low: Floats, high: Floats, colour: str) -> Json:
    if not low or not high:
        return {}
    up = tuple(max(0.0, end - value) for value, end in zip(values, high, strict=True))
    down = tuple(max(0.0, value - end) for value, end in zip(values, low, strict=True))
    style = {"color": _with_alpha(colour, 0.55), "thickness": 1.2, "width": 0}
    return {
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **style}
    }


def _make_colour_scale(mark: Points) -> Json:
    limit = max(map(abs, mark.colour_values)) or 1.0
    return {
        "color": mark.colour_values,
        "cmin": -limit,
        "cmax": limit,
        "size": 12,
        "opacity": 1.0,
        "colorscale": [[0.0, DIVERGING[0]], [0.5, DIVERGING[1]], [1.0, DIVERGING[2]]],
        "colorbar": {"title": {"text": mark.colourbar_title, "side": "right"}, "outlinewidth": 0},
        "line": {"width": 0.8, "color": MUTED},
    }


def _make_hover(texts: tuple[str, ...]) -> Json:
    if not texts:
        return {}
    return {"hovertext": tuple(map(_escape, texts)), "hoverinfo": "text"}


# ---------------------------------------------------------------------------------------------
# Axes and layout


def _set_axes(figure: Any, panel: Panel, cell: Json, columns: int) -> None:
    if panel.z is not None:
        sides = {"xaxis": panel.x, "yaxis": panel.y, "zaxis": panel.z}
        scene = {side: _make_axis(axis, is_2d=False) for side, axis in sides.items()}
        # Small scenes are seen from further away, or their labels are cut off.
        distance = 1.2 if columns > 1 else 1.0
        camera = {"eye": {"x": -1.7 * distance, "y": -1.7 * distance, "z": distance}}
        figure.update_scenes({**scene, "camera": camera, "aspectmode": "cube"}, **cell)
        return
    figure.update_xaxes(_make_axis(panel.x), **cell)
    # Only categories below a panel are ever tilted.
    figure.update_yaxes({**_make_axis(panel.y), "tickangle": None}, **cell)
    if panel.is_square:
        x_name = figure.get_subplot(**cell).xaxis.plotly_name.replace("axis", "")
        figure.update_yaxes(scaleanchor=x_name, constrain="domain", **cell)
        figure.update_xaxes(constrain="domain", **cell)


def _make_axis(axis: Axis, is_2d: bool = True) -> Json:
    layout: Json = {
        "title": {"text": _escape(axis.label)},
        "type": "log" if axis.is_log else "linear",
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": MUTED,
        "ticks": "outside",
        "tickcolor": MUTED,
    }
    if is_2d:
        layout["automargin"] = True
    if axis.log_ticks:
        layout |= {"tickvals": tuple(axis.log_ticks), "ticktext": tuple(axis.log_ticks.values())}
    elif axis.has_si_prefixes:
        layout |= {"tickformat": "~s", "ticksuffix": axis.tick_suffix}
    if axis.categories:
        count = len(axis.categories)
        names = tuple(map(_escape, axis.categories))
        layout |= {"tickmode": "array", "tickvals": tuple(range(count)), "ticktext": names}
        layout |= {
            "range": (-0.6, count - 0.4),
            "tickangle": -30 if axis.category_letters > _WIDTH_LETTERS else None,
        }
        layout |= {"showgrid": False}
    elif axis.low is not None and axis.high is not None:
        ends = (axis.low, axis.high)
        layout["range"] = tuple(map(math.log10, ends)) if axis.is_log else ends
    elif axis.low == 0:
        layout["rangemode"] = "tozero"
    return layout


def _make_layout(plot: Plot, rows: int) -> Json:
    is_tilted = any(panel.x.category_letters > _WIDTH_LETTERS for panel in plot.panels)
    is_tall = any(panel.is_square or panel.z is not None for panel in plot.panels)
    rows_of_text = max(len(p.y.categories) * (3 if p.y.has_tall_rows else 1) for p in plot.panels)
    # plotly cuts off long titles, which would hide that data are simulated.
    heading, subtitle = _wrap(plot.heading, 44), _wrap(plot.caption.subtitle, 64)
    lines = heading.count("<br>") + subtitle.count("<br>") + any(p.title for p in plot.panels)
    top, bottom = 85 + 20 * lines, 130 if is_tilted else 95
    return {
        "template": "none",
        "title": {
            "text": f"<b>{heading}</b>",
            "subtitle": {"text": subtitle, "font": {"color": MUTED, "size": 12}},
            "x": 0.01,
            "xanchor": "left",
            "yref": "container",
            "y": 1.0,
            "yanchor": "top",
            "pad": {"t": 28},
            "font": {"size": 16},
        },
        "font": {"family": FONT, "color": TEXT, "size": 13},
        "height": rows * max(_TALL_PANEL_PX if is_tall else _PANEL_PX, 26 * rows_of_text)
        + top
        + bottom,
        "margin": {
            "t": top,
            "b": bottom,
            "l": 70,
            "r": 30 + _LETTER_PX * _count_label_letters(plot),
        },
        "barmode": "overlay",
        "showlegend": bool(plot.legend) and len(plot.series) > 1,
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0.01,
            "yanchor": "bottom",
            "x": 0.5,
            "xanchor": "center",
            "itemsizing": "constant",
        },
        "hoverlabel": {"align": "left"},
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
    }


def _count_label_letters(plot: Plot) -> int:
    """Return how many letters must fit to the right of the panels."""
    marks = [mark for panel in plot.panels for mark in panel.marks]
    return max((len(mark.name) for mark in marks if isinstance(mark, Label)), default=0)


def _escape(text: str) -> str:
    """Return text that plotly shows literally, with line breaks."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _wrap(text: str, letters: int) -> str:
    return _escape(textwrap.fill(text, letters))


def _with_alpha(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
