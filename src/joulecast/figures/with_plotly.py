"""Pictures for the screen: a Picture as a plotly figure.

plotly is imported when the first picture is drawn, not before.
"""

from __future__ import annotations

import html
import math
import textwrap
from functools import singledispatch
from typing import Any

from joulecast.figures.marks import Band, Bars, Dots, Floats, Line, Mark, Spans, Surface, Tag
from joulecast.figures.picture import Axis, Panel, Picture
from joulecast.figures.style import DIVERGING, FAINT, FONT, GRID, INK, mix

Json = dict[str, Any]

_SHAPES = {
    "circle": "circle",
    "diamond": "diamond",
    "square": "square",
    "triangle": "triangle-up",
    "cross": "x",
    "star": "star",
}
# A room draws shapes as letters, and few fonts have more than these.
_ROOM_SHAPES = {**_SHAPES, "cross": "diamond", "triangle": "square", "star": "square"}
_PANEL_PX, _TALL_PX = 300, 440
_TEXTS = {"textposition": "outside", "constraintext": "none", "textfont": {"size": 10}}
# Letters that fit side by side under a panel; more are tilted.
_LETTERS = 110
_LETTER_PX = 8


def to_plotly(picture: Picture) -> Any:
    """A Picture as a ``plotly.graph_objects.Figure``."""
    from plotly.subplots import make_subplots

    columns = picture.columns
    rows = math.ceil(len(picture.panels) / columns)
    kinds = [{"type": "xy" if panel.z is None else "scene"} for panel in picture.panels]
    kinds += [None] * (rows * columns - len(kinds))  # type: ignore[list-item]
    figure = make_subplots(
        rows,
        columns,
        specs=[kinds[row * columns : (row + 1) * columns] for row in range(rows)],
        subplot_titles=[_wrap(panel.title, _LETTERS // columns) for panel in picture.panels],
        horizontal_spacing=0.25 / columns if columns > 1 else 0.0,
    )
    figure.update_annotations(font={"size": 13})
    stands_for = {id(mark) for mark in picture.legend.values()}
    for place, panel in enumerate(picture.panels):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        for mark in panel.marks:
            figure.add_trace(
                {**_describe_mark(mark), **_name_mark(mark, id(mark) in stands_for)}, **at
            )
        _set_axes(figure, panel, at, columns)
    figure.update_layout(_describe_layout(picture, rows))
    return figure


# ---------------------------------------------------------------------------------------------
# Marks


@singledispatch
def _describe_mark(mark: Mark) -> Json:
    raise NotImplementedError(type(mark).__name__)


@_describe_mark.register
def _(mark: Dots) -> Json:
    shapes = _ROOM_SHAPES if mark.z else _SHAPES
    marker: Json = {
        "symbol": shapes[mark.shape],
        "color": mark.colour,
        "size": 4 if mark.z else 8,
        "opacity": 0.85,
        "line": {"width": 0.5, "color": "white"},
    }
    if mark.shades:
        marker |= _describe_shades(mark)
    trace: Json = {"type": "scatter", "mode": "markers", "x": mark.x, "y": mark.y, "marker": marker}
    if mark.z:
        return {**trace, "type": "scatter3d", "z": mark.z, **_hover(mark.notes)}
    doubt = _describe_doubt(mark.y, mark.low, mark.high, mark.colour)
    return {**trace, **doubt, **_hover(mark.notes)}


@_describe_mark.register
def _(mark: Line) -> Json:
    line = {
        "color": mark.colour,
        "width": 1.5 if mark.dashed else 2.2,
        "dash": "6px,4px" if mark.dashed else "solid",
        "shape": "hv" if mark.stepped else "linear",
    }
    trace = {"type": "scatter", "mode": "lines", "x": mark.x, "y": mark.y, "line": line}
    return {**trace, **_hover(mark.notes)}


@_describe_mark.register
def _(mark: Band) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": (*mark.x, *reversed(mark.x)),
        "y": (*mark.high, *reversed(mark.low)),
        "fill": "toself",
        "fillcolor": _fade(mark.colour, 0.16),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


@_describe_mark.register
def _(mark: Bars) -> Json:
    tops = tuple(map(sum, zip(mark.base or (0.0,) * len(mark.y), mark.y, strict=True)))
    return {
        "type": "bar",
        "x": mark.x,
        "y": mark.y,
        "width": mark.width,
        "marker": {"color": mark.colour, "line": {"width": 0.5, "color": "white"}},
        **({"base": mark.base} if mark.base else {}),
        **({"text": mark.texts, **_TEXTS} if mark.texts else {}),
        "cliponaxis": False,
        **_describe_doubt(tops, mark.low, mark.high, INK),
        **_hover(mark.notes),
    }


@_describe_mark.register
def _(mark: Spans) -> Json:
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
        **({"text": tuple(map(_escape, mark.texts)), **inside} if mark.texts else {}),
        **_hover(mark.notes),
    }


@_describe_mark.register
def _(mark: Surface) -> Json:
    return {
        "type": "surface",
        "x": mark.x,
        "y": mark.y,
        "z": mark.z,
        "colorscale": [[0.0, mix(mark.colour, "#FFFFFF", 0.8)], [1.0, mark.colour]],
        "showscale": False,
        "opacity": 0.85,
    }


@_describe_mark.register
def _(mark: Tag) -> Json:
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


def _name_mark(mark: Mark, in_legend: bool) -> Json:
    return {"name": _escape(mark.name), "legendgroup": mark.name, "showlegend": in_legend}


def _describe_doubt(values: Floats, low: Floats, high: Floats, colour: str) -> Json:
    if not low or not high:
        return {}
    up = tuple(max(0.0, end - value) for value, end in zip(values, high, strict=True))
    down = tuple(max(0.0, value - end) for value, end in zip(values, low, strict=True))
    look = {"color": _fade(colour, 0.55), "thickness": 1.2, "width": 0}
    return {
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}
    }


def _describe_shades(mark: Dots) -> Json:
    reach = max(map(abs, mark.shades)) or 1.0
    return {
        "color": mark.shades,
        "cmin": -reach,
        "cmax": reach,
        "size": 12,
        "opacity": 1.0,
        "colorscale": [[0.0, DIVERGING[0]], [0.5, DIVERGING[1]], [1.0, DIVERGING[2]]],
        "colorbar": {"title": {"text": mark.shade_title, "side": "right"}, "outlinewidth": 0},
        "line": {"width": 0.8, "color": FAINT},
    }


def _hover(notes: tuple[str, ...]) -> Json:
    if not notes:
        return {}
    return {"hovertext": tuple(map(_escape, notes)), "hoverinfo": "text"}


# ---------------------------------------------------------------------------------------------
# Axes and layout


def _set_axes(figure: Any, panel: Panel, at: Json, columns: int) -> None:
    if panel.z is not None:
        sides = {"xaxis": panel.x, "yaxis": panel.y, "zaxis": panel.z}
        scene = {side: _describe_axis(axis, flat=False) for side, axis in sides.items()}
        # Small rooms are seen from further away, or their words are cut off.
        far = 1.2 if columns > 1 else 1.0
        camera = {"eye": {"x": -1.7 * far, "y": -1.7 * far, "z": far}}
        figure.update_scenes({**scene, "camera": camera, "aspectmode": "cube"}, **at)
        return
    figure.update_xaxes(_describe_axis(panel.x), **at)
    # Labels beside an axis have room; only those under one are ever tilted.
    figure.update_yaxes({**_describe_axis(panel.y), "tickangle": None}, **at)
    if panel.square:
        across = figure.get_subplot(**at).xaxis.plotly_name.replace("axis", "")
        figure.update_yaxes(scaleanchor=across, constrain="domain", **at)
        figure.update_xaxes(constrain="domain", **at)


def _describe_axis(axis: Axis, flat: bool = True) -> Json:
    words: Json = {
        "title": {"text": _escape(axis.heading)},
        "type": "log" if axis.log else "linear",
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": FAINT,
        "ticks": "outside",
        "tickcolor": FAINT,
    }
    if flat:
        words["automargin"] = True
    if axis.ticks:
        words |= {"tickvals": tuple(axis.ticks), "ticktext": tuple(axis.ticks.values())}
    elif axis.prefixes:
        words |= {"tickformat": "~s", "ticksuffix": axis.suffix}
    if axis.labels:
        count = len(axis.labels)
        names = tuple(map(_escape, axis.labels))
        words |= {"tickmode": "array", "tickvals": tuple(range(count)), "ticktext": names}
        words |= {
            "range": (-0.6, count - 0.4),
            "tickangle": -30 if axis.letters > _LETTERS else None,
        }
        words |= {"showgrid": False}
    elif axis.low is not None and axis.high is not None:
        ends = (axis.low, axis.high)
        words["range"] = tuple(map(math.log10, ends)) if axis.log else ends
    elif axis.low == 0:
        words["rangemode"] = "tozero"
    return words


def _describe_layout(picture: Picture, rows: int) -> Json:
    tilted = any(panel.x.letters > _LETTERS for panel in picture.panels)
    tall = any(panel.square or panel.z is not None for panel in picture.panels)
    labels = max(len(p.y.labels) * (3 if p.y.roomy else 1) for p in picture.panels)
    # plotly cuts long titles off, and what is cut off last is that it is simulated.
    heading, about = _wrap(picture.heading, 44), _wrap(picture.about, 64)
    lines = heading.count("<br>") + about.count("<br>") + any(p.title for p in picture.panels)
    top, bottom = 85 + 20 * lines, 130 if tilted else 95
    return {
        "template": "none",
        "title": {
            "text": f"<b>{heading}</b>",
            "subtitle": {"text": about, "font": {"color": FAINT, "size": 12}},
            "x": 0.01,
            "xanchor": "left",
            "yref": "container",
            "y": 1.0,
            "yanchor": "top",
            "pad": {"t": 28},
            "font": {"size": 16},
        },
        "font": {"family": FONT, "color": INK, "size": 13},
        "height": rows * max(_TALL_PX if tall else _PANEL_PX, 26 * labels) + top + bottom,
        "margin": {"t": top, "b": bottom, "l": 70, "r": 30 + _LETTER_PX * _count_letters(picture)},
        "barmode": "overlay",
        "showlegend": bool(picture.legend) and len(picture.series) > 1,
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


def _count_letters(picture: Picture) -> int:
    """Letters that must fit right of the panels."""
    marks = [mark for panel in picture.panels for mark in panel.marks]
    return max((len(mark.name) for mark in marks if isinstance(mark, Tag)), default=0)


def _escape(words: str) -> str:
    """Words as plotly shows them: its own tags are few, and none of a person's."""
    return html.escape(words, quote=False).replace("\n", "<br>")


def _wrap(words: str, letters: int) -> str:
    return _escape(textwrap.fill(words, letters))


def _fade(colour: str, strength: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"
