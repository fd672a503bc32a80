"""Pictures for papers: a Picture as SVG, with letters as letters and the same bytes every time.

Where SVG cannot be shown, the same picture is a PNG.

matplotlib is the extra ``paper``, and is imported when the first picture is drawn. Nothing of its
global state is kept: no pyplot, and settings hold only while a picture is drawn.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from joulecast.errors import MissingError
from joulecast.figures.marks import Band, Bars, Dots, Floats, Line, Mark, Spans, Surface, Tag
from joulecast.figures.picture import Axis, Panel, Picture
from joulecast.figures.style import DIVERGING, FAINT, GRID, INK, mix

_SHAPES = {"circle": "o", "diamond": "D", "square": "s", "triangle": "^", "cross": "X", "star": "*"}
_WIDTH_IN, _HEIGHT_IN = 4.6, 3.3
_LETTER_IN = 0.085  # a usual letter of the usual size
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "joulecast",
    "text.parse_math": False,
    # The one that comes with matplotlib, so that a picture is laid out alike everywhere.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.titlesize": 9.5,
}


@dataclass(frozen=True)
class _Sheet:
    """Measures of the whole, in inches; ``rows`` and ``columns`` count panels."""

    rows: int
    columns: int
    width: float
    height: float
    top: float
    bottom: float
    heading: str
    about: str
    legend_columns: int


def make_svg(picture: Picture) -> str:
    """A picture as SVG's text.

    Raises:
        MissingError: matplotlib is not installed.
    """
    stream = io.BytesIO()
    with _settings():
        to_matplotlib(picture).savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue().decode("utf-8")


def make_png(picture: Picture, dots_per_inch: int = 160) -> bytes:
    """A picture as PNG's bytes.

    Raises:
        MissingError: matplotlib is not installed.
    """
    stream = io.BytesIO()
    with _settings():
        look: Any = {"dpi": dots_per_inch, "metadata": {"Software": None}}
        to_matplotlib(picture).savefig(stream, format="png", **look)
    return stream.getvalue()


def to_matplotlib(picture: Picture) -> Any:
    """A picture as a ``matplotlib.figure.Figure`` that pyplot knows nothing of."""
    with _settings():
        from matplotlib.figure import Figure

        sheet = _measure(picture)
        figure = Figure((sheet.width, sheet.height), layout="constrained")
        for place, panel in enumerate(picture.panels, start=1):
            _draw_panel(figure, panel, (sheet.rows, sheet.columns, place))
        _write_heading(figure, sheet)
        if picture.legend and len(picture.series) > 1:
            _draw_legend(figure, picture, sheet)
        return figure


@contextmanager
def _settings() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingError("SVG needs matplotlib: pip install 'joulecast[paper]'") from error
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters stay letters in the SVG, so it is the viewer's font that must have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _measure(picture: Picture) -> _Sheet:
    columns = picture.columns
    rows = math.ceil(len(picture.panels) / columns)
    width = columns * max(map(_panel_width, picture.panels))
    letters = int(width / _LETTER_IN)
    heading = textwrap.fill(picture.heading, int(letters * 0.8))
    about = textwrap.fill(picture.about, letters)
    top = 0.1 + 0.2 * (1 + heading.count("\n")) + (0.16 * (1 + about.count("\n")) if about else 0.0)
    names = tuple(picture.legend) if len(picture.series) > 1 else ()
    per_name = 0.55 + 0.85 * _LETTER_IN * max(map(len, names), default=0)
    legend_rows = math.ceil(len(names) / max(1, int(width / per_name)))
    legend_columns = math.ceil(len(names) / max(1, legend_rows))
    bottom = 0.1 + 0.2 * legend_rows if names else 0.0
    height = rows * max(map(_panel_height, picture.panels)) + top + bottom
    return _Sheet(rows, columns, width, height, top, bottom, heading, about, legend_columns)


def _panel_width(panel: Panel) -> float:
    bars = sum(len(mark.x) for mark in panel.marks if isinstance(mark, Bars) and not mark.base)
    letters = max((len(mark.name) for mark in panel.marks if isinstance(mark, Tag)), default=0)
    letters += max(map(len, panel.y.labels), default=0)
    least = 1.5 * _WIDTH_IN if panel.y.roomy else _WIDTH_IN
    return max(least, 1.0 + 0.3 * bars) + _LETTER_IN * letters


def _panel_height(panel: Panel) -> float:
    tall = 4.1 if panel.square or panel.z is not None else _HEIGHT_IN
    row = 0.62 if panel.y.roomy else 0.27
    return max(1.8, 0.9 + row * len(panel.y.labels)) if panel.y.labels else tall


def _write_heading(figure: Any, sheet: _Sheet) -> None:
    rest = (sheet.height - sheet.top - sheet.bottom) / sheet.height
    figure.get_layout_engine().set(rect=(0.0, sheet.bottom / sheet.height, 1.0, rest))
    left = 0.08 / sheet.width
    figure.text(left, 1 - 0.06 / sheet.height, sheet.heading, va="top", size=11, weight="bold")
    if sheet.about:
        below = 0.08 + 0.2 * (1 + sheet.heading.count("\n"))
        figure.text(left, 1 - below / sheet.height, sheet.about, va="top", size=8.5, color=FAINT)


def _draw_legend(figure: Any, picture: Picture, sheet: _Sheet) -> None:
    handles = [_make_handle(mark) for mark in picture.legend.values()]
    # matplotlib hides names that begin with an underscore.
    names = [f" {name}" if name.startswith("_") else name for name in picture.legend]
    figure.legend(
        handles, names, loc="lower center", ncols=sheet.legend_columns, frameon=False, fontsize=8.5
    )


# ---------------------------------------------------------------------------------------------
# Marks


@singledispatch
def _draw_mark(mark: Mark, axes: Any) -> None:
    raise NotImplementedError(type(mark).__name__)


@_draw_mark.register
def _(mark: Dots, axes: Any) -> None:
    if mark.shades:
        _draw_shades(mark, axes)
        return
    look: dict[str, Any] = {
        "marker": _SHAPES[mark.shape],
        "s": 28 if mark.shape != "star" else 70,
        "color": mark.colour,
        "edgecolors": "white",
        "linewidths": 0.4,
    }
    if mark.z:
        axes.scatter(mark.x, mark.y, mark.z, depthshade=False, zorder=5, **look)
        return
    axes.scatter(mark.x, mark.y, zorder=3, alpha=0.9, **look)
    _draw_doubt(axes, mark.x, mark.low, mark.high, mark.colour)


@_draw_mark.register
def _(mark: Line, axes: Any) -> None:
    axes.plot(
        mark.x,
        mark.y,
        color=mark.colour,
        linewidth=1.1 if mark.dashed else 1.6,
        linestyle="--" if mark.dashed else "-",
        drawstyle="steps-post" if mark.stepped else "default",
    )


@_draw_mark.register
def _(mark: Band, axes: Any) -> None:
    axes.fill_between(mark.x, mark.low, mark.high, color=mark.colour, alpha=0.16, linewidth=0)


@_draw_mark.register
def _(mark: Bars, axes: Any) -> None:
    bases = mark.base or (0.0,) * len(mark.x)
    look = {"color": mark.colour, "edgecolor": "white", "linewidth": 0.4}
    axes.bar(mark.x, mark.y, mark.width, bases, **look)
    _draw_doubt(axes, mark.x, mark.low, mark.high, INK)
    tops = [base + y for base, y in zip(bases, mark.y, strict=True)]
    for x, top, words in zip(mark.x, tops, mark.texts, strict=False):
        axes.annotate(
            words, (x, top), (0, 2), textcoords="offset points", ha="center", size=7, color=FAINT
        )


@_draw_mark.register
def _(mark: Spans, axes: Any) -> None:
    lengths = [end - begin for begin, end in zip(mark.x, mark.end, strict=True)]
    look = {"color": mark.colour, "edgecolor": "white", "linewidth": 0.6, "zorder": 2.5}
    axes.barh(mark.y, lengths, mark.height, mark.x, **look)
    for begin, end, y, words in zip(mark.x, mark.end, mark.y, mark.texts, strict=False):
        place = ((begin + end) / 2, y)
        axes.text(*place, words, ha="center", va="center", size=7, color="white", zorder=3)


@_draw_mark.register
def _(mark: Surface, axes: Any) -> None:
    import numpy as np

    x, y = np.meshgrid(mark.x, mark.y)
    colours = _make_colours(mix(mark.colour, "#FFFFFF", 0.8), mark.colour)
    axes.plot_surface(
        x, y, np.array(mark.z), cmap=colours, alpha=0.7, linewidth=0.2, rcount=15, ccount=15
    )


@_draw_mark.register
def _(mark: Tag, axes: Any) -> None:
    look: dict[str, Any] = {"va": "center", "color": mark.colour, "annotation_clip": False}
    for place in zip(mark.x, mark.y, strict=True):
        axes.annotate(mark.name, place, (7, 0), textcoords="offset points", size=8.5, **look)


def _draw_doubt(axes: Any, x: Floats, low: Floats, high: Floats, colour: str) -> None:
    if low and high:
        axes.vlines(x, low, high, color=colour, alpha=0.5, linewidth=0.9, zorder=2.5)


def _draw_shades(mark: Dots, axes: Any) -> None:
    reach = max(map(abs, mark.shades)) or 1.0
    dots = axes.scatter(
        mark.x,
        mark.y,
        c=mark.shades,
        s=60,
        cmap=_make_colours(*DIVERGING),
        vmin=-reach,
        vmax=reach,
        edgecolors=FAINT,
        linewidths=0.6,
        zorder=3,
    )
    bar = axes.figure.colorbar(dots, ax=axes, label=mark.shade_title)
    bar.outline.set_visible(False)


def _make_colours(*colours: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("joulecast", list(colours))


def _make_handle(mark: Mark) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if isinstance(mark, Dots):
        shape = _SHAPES[mark.shape]
        return Line2D([], [], linestyle="", marker=shape, color=mark.colour, markersize=6)
    if isinstance(mark, Line):
        look: Any = {"linestyle": "--" if mark.dashed else "-", "linewidth": 1.6}
        return Line2D([], [], color=mark.colour, **look)
    return Patch(color=mark.colour, alpha=0.3 if isinstance(mark, Band) else 1.0)


# ---------------------------------------------------------------------------------------------
# Axes


def _draw_panel(figure: Any, panel: Panel, place: tuple[int, int, int]) -> None:
    axes = figure.add_subplot(*place, projection=None if panel.z is None else "3d")
    for mark in panel.marks:
        _draw_mark(mark, axes)
    if panel.title:
        letters = int((_panel_width(panel) - 0.5) / _LETTER_IN)
        axes.set_title(textwrap.fill(panel.title, letters), loc="left")
    _set_axis(axes, "x", panel.x, _panel_width(panel))
    _set_axis(axes, "y", panel.y)
    if panel.z is not None:
        _set_axis(axes, "z", panel.z)
        axes.view_init(elev=24, azim=-130)
        axes.set_box_aspect(None, zoom=0.82)
        axes.zaxis.labelpad = 15
        axes.zaxis.set_tick_params(pad=6)
        # Else points behind the surface, and in front of it too, sink into it.
        axes.computed_zorder = False
    if panel.square:
        axes.set_box_aspect(1)
    if panel.x.labels:
        axes.grid(False, axis="x")
    if panel.y.roomy:
        axes.grid(False, axis="y")


def _set_axis(axes: Any, side: str, axis: Axis, width: float = math.inf) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

    getattr(axes, f"set_{side}label")(axis.heading)
    ruler = getattr(axes, f"{side}axis")
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
    getattr(axes, f"set_{side}lim")(axis.low, axis.high)
    if axis.labels:
        tilted = axis.letters * _LETTER_IN > width - 0.8
        tilt = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if tilted else {}
        ruler.set_ticks(range(len(axis.labels)), axis.labels, **tilt)
        getattr(axes, f"set_{side}lim")(-0.6, len(axis.labels) - 0.4)
    elif axis.ticks:
        ruler.set_ticks(list(axis.ticks), list(axis.ticks.values()))
        ruler.set_minor_formatter(NullFormatter())
    elif axis.prefixes:
        ruler.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
        ruler.set_major_formatter(EngFormatter(axis.suffix))
