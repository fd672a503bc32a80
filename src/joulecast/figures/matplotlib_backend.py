"""Render plots with matplotlib as SVG or PNG.

SVG keeps text as text, and the same plot gives the same bytes. matplotlib is the extra ``paper``
and is imported on first use. Its global state is not touched: no pyplot, and settings apply only
while a plot is rendered.
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
from joulecast.views.style import DIVERGING, GRID, MUTED, TEXT, mix_colours

_MARKERS = {
    "circle": "o",
    "diamond": "D",
    "square": "s",
    "triangle": "^",
    "cross": "X",
    "star": "*",
}
# Opacity of a surface in print, as a share of that on the screen.
_SURFACE_ALPHA = 0.7 / 0.85
_WIDTH_IN, _HEIGHT_IN = 4.6, 3.3
_LETTER_IN = 0.085  # mean letter at the default font size
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "joulecast",
    "text.parse_math": False,
    # The font that comes with matplotlib, so that the layout is the same everywhere.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "axes.titlesize": 9.5,
}


@dataclass(frozen=True)
class _FigureLayout:
    """Sizes of the figure in inches; ``rows`` and ``columns`` count panels."""

    rows: int
    columns: int
    width: float
    height: float
    top: float
    bottom: float
    heading: str
    subtitle: str
    legend_columns: int


def make_svg(plot: Plot) -> str:
    """Return a plot as SVG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    stream = io.BytesIO()
    with _apply_settings():
        to_matplotlib(plot).savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue().decode("utf-8")


def make_png(plot: Plot, dots_per_inch: int = 160) -> bytes:
    """Return a plot as PNG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    stream = io.BytesIO()
    with _apply_settings():
        options: Any = {"dpi": dots_per_inch, "metadata": {"Software": None}}
        to_matplotlib(plot).savefig(stream, format="png", **options)
    return stream.getvalue()


def to_matplotlib(plot: Plot) -> Any:
    """Return a plot as a ``matplotlib.figure.Figure`` outside of pyplot."""
    with _apply_settings():
        from matplotlib.figure import Figure

        layout = _compute_layout(plot)
        figure = Figure((layout.width, layout.height), layout="constrained")
        for index, panel in enumerate(plot.panels, start=1):
            _draw_panel(figure, panel, (layout.rows, layout.columns, index))
        _write_heading(figure, layout)
        if plot.legend and len(plot.series) > 1:
            _draw_legend(figure, plot, layout)
        return figure


@contextmanager
def _apply_settings() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingError("SVG and PNG need matplotlib: pip install 'joulecast[paper]'") from error
    # matplotlib reads a file of the current folder, which might make it run LaTeX.
    defaults = {key: matplotlib.rcParamsDefault[key] for key in matplotlib.rcParamsDefault}
    defaults.pop("backend", None)
    with matplotlib.rc_context({**defaults, **_SETTINGS}), warnings.catch_warnings():
        # Text stays text in the SVG, so the viewer's font needs the glyph, not this one.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _compute_layout(plot: Plot) -> _FigureLayout:
    columns = plot.columns
    rows = math.ceil(len(plot.panels) / columns)
    width = columns * max(map(_panel_width, plot.panels))
    line_letters = int(width / _LETTER_IN)
    heading = textwrap.fill(plot.heading, int(line_letters * 0.8))
    subtitle = textwrap.fill(plot.caption.subtitle, line_letters)
    top = (
        0.1
        + 0.2 * (1 + heading.count("\n"))
        + (0.16 * (1 + subtitle.count("\n")) if subtitle else 0.0)
    )
    names = tuple(plot.legend) if len(plot.series) > 1 else ()
    per_name = 0.55 + 0.85 * _LETTER_IN * max(map(len, names), default=0)
    legend_rows = math.ceil(len(names) / max(1, int(width / per_name)))
    legend_columns = math.ceil(len(names) / max(1, legend_rows))
    bottom = 0.1 + 0.2 * legend_rows if names else 0.0
    height = rows * max(map(_panel_height, plot.panels)) + top + bottom
    return _FigureLayout(
        rows, columns, width, height, top, bottom, heading, subtitle, legend_columns
    )


def _panel_width(panel: Panel) -> float:
    bars = sum(len(mark.x) for mark in panel.marks if isinstance(mark, Bars) and not mark.base)
    letters = max((len(mark.name) for mark in panel.marks if isinstance(mark, Label)), default=0)
    letters += max(map(len, panel.y.categories), default=0)
    least = 1.5 * _WIDTH_IN if panel.y.has_tall_rows else _WIDTH_IN
    return max(least, 1.0 + 0.3 * bars) + _LETTER_IN * letters


def _panel_height(panel: Panel) -> float:
    tall = 4.1 if panel.is_square or panel.z is not None else _HEIGHT_IN
    row = 0.62 if panel.y.has_tall_rows else 0.27
    return max(1.8, 0.9 + row * len(panel.y.categories)) if panel.y.categories else tall


def _write_heading(figure: Any, layout: _FigureLayout) -> None:
    rest = (layout.height - layout.top - layout.bottom) / layout.height
    figure.get_layout_engine().set(rect=(0.0, layout.bottom / layout.height, 1.0, rest))
    left = 0.08 / layout.width
    figure.text(left, 1 - 0.06 / layout.height, layout.heading, va="top", size=11, weight="bold")
    if layout.subtitle:
        below = 0.08 + 0.2 * (1 + layout.heading.count("\n"))
        figure.text(
            left, 1 - below / layout.height, layout.subtitle, va="top", size=8.5, color=MUTED
        )


def _draw_legend(figure: Any, plot: Plot, layout: _FigureLayout) -> None:
    handles = [_make_handle(mark) for mark in plot.legend.values()]
    # matplotlib hides names that begin with an underscore.
    names = [f" {name}" if name.startswith("_") else name for name in plot.legend]
    figure.legend(
        handles, names, loc="lower center", ncols=layout.legend_columns, frameon=False, fontsize=8.5
    )


# ---------------------------------------------------------------------------------------------
# Marks


@singledispatch
def _draw_mark(mark: Mark, axes: Any) -> None:
    raise NotImplementedError(type(mark).__name__)


@_draw_mark.register
def _(mark: Points, axes: Any) -> None:
    if mark.colour_values:
        _draw_coloured_points(mark, axes)
        return
    style: dict[str, Any] = {
        "marker": _MARKERS[mark.marker],
        "s": 28 if mark.marker != "star" else 70,
        "color": mark.colour,
        "edgecolors": "white",
        "linewidths": 0.4,
    }
    if mark.z:
        axes.scatter(mark.x, mark.y, mark.z, depthshade=False, zorder=5, **style)
        return
    axes.scatter(mark.x, mark.y, zorder=3, alpha=0.9, **style)
    _draw_error_bars(axes, mark.x, mark.low, mark.high, mark.colour)


@_draw_mark.register
def _(mark: Line, axes: Any) -> None:
    axes.plot(
        mark.x,
        mark.y,
        color=mark.colour,
        linewidth=1.1 if mark.is_dashed else 1.6,
        linestyle="--" if mark.is_dashed else "-",
        drawstyle="steps-post" if mark.is_step else "default",
    )


@_draw_mark.register
def _(mark: Band, axes: Any) -> None:
    axes.fill_between(mark.x, mark.low, mark.high, color=mark.colour, alpha=0.16, linewidth=0)


@_draw_mark.register
def _(mark: Bars, axes: Any) -> None:
    bases = mark.base or (0.0,) * len(mark.x)
    style = {"color": mark.colour, "edgecolor": "white", "linewidth": 0.4}
    axes.bar(mark.x, mark.y, mark.width, bases, **style)
    _draw_error_bars(axes, mark.x, mark.low, mark.high, TEXT)
    tops = [base + y for base, y in zip(bases, mark.y, strict=True)]
    for x, top, text in zip(mark.x, tops, mark.labels or ("",) * len(tops), strict=True):
        axes.annotate(
            text,
            (x, top),
            (0, 3),
            textcoords="offset points",
            ha="center",
            size=7,
            color=MUTED,
            # Readable where a line of another series crosses the label.
            bbox={"boxstyle": "square,pad=0", "color": "white", "alpha": 0.8},
            zorder=4,
        )


@_draw_mark.register
def _(mark: HorizontalBars, axes: Any) -> None:
    lengths = [end - begin for begin, end in zip(mark.x, mark.end, strict=True)]
    style = {"color": mark.colour, "edgecolor": "white", "linewidth": 0.6, "zorder": 2.5}
    axes.barh(mark.y, lengths, mark.height, mark.x, **style)
    labels = mark.labels or ("",) * len(mark.x)
    for begin, end, y, text in zip(mark.x, mark.end, mark.y, labels, strict=True):
        axes.text(
            (begin + end) / 2, y, text, ha="center", va="center", size=7, color="white", zorder=3
        )


@_draw_mark.register
def _(mark: Surface, axes: Any) -> None:
    import numpy as np

    x, y = np.meshgrid(mark.x, mark.y)
    colourmap = _make_colourmap(mix_colours(mark.colour, "#FFFFFF", 0.8), mark.colour)
    style = {"alpha": _SURFACE_ALPHA * mark.opacity, "linewidth": 0.2, "rcount": 15, "ccount": 15}
    axes.plot_surface(x, y, np.array(mark.z), cmap=colourmap, **style)


@_draw_mark.register
def _(mark: Label, axes: Any) -> None:
    style: dict[str, Any] = {"va": "center", "color": mark.colour, "annotation_clip": False}
    for position in zip(mark.x, mark.y, strict=True):
        axes.annotate(mark.name, position, (7, 0), textcoords="offset points", size=8.5, **style)


def _draw_error_bars(axes: Any, x: Floats, low: Floats, high: Floats, colour: str) -> None:
    if low and high:
        axes.vlines(x, low, high, color=colour, alpha=0.5, linewidth=0.9, zorder=2.5)


def _draw_coloured_points(mark: Points, axes: Any) -> None:
    limit = max(map(abs, mark.colour_values)) or 1.0
    points = axes.scatter(
        mark.x,
        mark.y,
        c=mark.colour_values,
        s=60,
        cmap=_make_colourmap(*DIVERGING),
        vmin=-limit,
        vmax=limit,
        edgecolors=MUTED,
        linewidths=0.6,
        zorder=3,
    )
    bar = axes.figure.colorbar(points, ax=axes, label=mark.colourbar_title)
    bar.outline.set_visible(False)


def _make_colourmap(*colours: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("joulecast", list(colours))


def _make_handle(mark: Mark) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if isinstance(mark, Points):
        marker = _MARKERS[mark.marker]
        return Line2D([], [], linestyle="", marker=marker, color=mark.colour, markersize=6)
    if isinstance(mark, Line):
        style: Any = {"linestyle": "--" if mark.is_dashed else "-", "linewidth": 1.6}
        return Line2D([], [], color=mark.colour, **style)
    return Patch(color=mark.colour, alpha=0.3 if isinstance(mark, Band) else 1.0)


# ---------------------------------------------------------------------------------------------
# Axes


def _draw_panel(figure: Any, panel: Panel, position: tuple[int, int, int]) -> None:
    axes = figure.add_subplot(*position, projection=None if panel.z is None else "3d")
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
        # With computed order, points in front of the surface would be hidden by it.
        axes.computed_zorder = False
    if panel.is_square:
        axes.set_box_aspect(1)
    if panel.x.categories:
        axes.grid(False, axis="x")
    if panel.y.has_tall_rows:
        axes.grid(False, axis="y")


def _set_axis(axes: Any, side: str, axis: Axis, width: float = math.inf) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

    getattr(axes, f"set_{side}label")(axis.label)
    mpl_axis = getattr(axes, f"{side}axis")
    if axis.is_log:
        getattr(axes, f"set_{side}scale")("log")
    getattr(axes, f"set_{side}lim")(axis.low, axis.high)
    if axis.categories:
        is_tilted = axis.category_letters * _LETTER_IN > width - 0.8
        tilt: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_tilted else {}
        mpl_axis.set_ticks(range(len(axis.categories)), axis.categories, **tilt)
        getattr(axes, f"set_{side}lim")(-0.6, len(axis.categories) - 0.4)
    elif axis.log_ticks:
        mpl_axis.set_ticks(list(axis.log_ticks), list(axis.log_ticks.values()))
        mpl_axis.set_minor_formatter(NullFormatter())
    elif axis.is_integer:
        mpl_axis.set_major_locator(
            MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True, min_n_ticks=1)
        )
    elif axis.has_si_prefixes:
        mpl_axis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
        mpl_axis.set_major_formatter(EngFormatter(axis.tick_suffix))
