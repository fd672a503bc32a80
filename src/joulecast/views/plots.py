"""Draw plots with matplotlib: as SVG in pages, and as files.

A plot is a function that draws on a figure (``Plot.draw``), with no layer of our own in between.
Pages show SVG inline, with text in the colour of the page, so that they can be printed, scaled and
read without a script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import FileError
from joulecast.views.report import Plot, Report
from joulecast.views.style import GRID, MUTED, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    # Text stays text, which can be searched, and ids are the same every time.
    "svg.fonttype": "none",
    "svg.hashsalt": "joulecast",
}
_PNG_DPI = 150


def draw(plot: Plot) -> Figure:
    """Return the figure of a plot."""
    from matplotlib.figure import Figure

    with _use_style():
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure)
    return figure


def make_svg(plot: Plot) -> str:
    """Return a plot as SVG, with text in the colour of the page that contains it."""
    stream = io.StringIO()
    figure = draw(plot)
    with _use_style():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids are unique in a page, which may show several plots.
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{plot.name}-", svg)
    return svg.replace(TEXT.lower(), "currentColor").replace(TEXT, "currentColor")


def save_plots(plots: Sequence[Plot], path: Path) -> list[Path]:
    """Write plots to a file; several share a page, or become ``NAME-plot.svg`` each.

    Args:
        plots: What to draw.
        path: A file that ends in ``.html``, ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        FileError: A file cannot be written.
    """
    if path.suffix.lower() == ".html":
        from joulecast.views.html import save_page

        title = plots[0].title if plots else "No plots"
        return [save_page(Report(title, tuple(plots)), path)]
    written = []
    for plot in plots:
        one = path if len(plots) == 1 else path.with_name(f"{path.stem}-{plot.name}{path.suffix}")
        try:
            with _use_style():
                draw(plot).savefig(one, dpi=_PNG_DPI)
        except OSError as error:
            reason = error.strerror or str(error)
            raise FileError(f"cannot write {one} ({reason}): give another file") from error
        written.append(one)
    return written


@contextmanager
def _use_style() -> Iterator[None]:
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield
