"""Draw plots with matplotlib: as SVG in pages, and as files.

A plot is a function that draws on a figure (``Plot.draw``), with no layer of our own in between.
Pages show SVG inline, with text in the colour of the page, so that they can be printed, scaled and
read without a script. They have no style attributes, which a strict content security policy
forbids.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.views.html import refuse_unwritable, save_page
from joulecast.views.report import Picture, Plot, Report
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
    # Names of layers are not formulas.
    "text.parse_math": False,
}
_PNG_DPI = 150
# Without a date, equal plots are equal files.
_METADATA: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw(plot: Plot) -> Figure:
    """Return the figure of a plot."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, NullFormatter

    with _use_style():
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure)
        for axis in (one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)):
            # Powers of ten would be formulas, which are not parsed.
            if isinstance(axis.get_major_formatter(), LogFormatter):
                axis.set_major_formatter("{x:g}")
            if isinstance(axis.get_minor_formatter(), LogFormatter):
                axis.set_minor_formatter(NullFormatter())
    return figure


def make_svg(plot: Plot) -> str:
    """Return a plot as SVG, with text and lines in the colour of the page that contains it."""
    stream = io.StringIO()
    figure = draw(plot)
    with _use_style():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # What the style sheet inside says of all elements, they inherit.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    svg = re.sub(r' style="([^"]*)"', _make_attributes, svg)
    # Ids are unique in a page, which may show several plots. Equal pictures, such as those of two
    # colour bars, share theirs, which nothing refers to.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{plot.name}-", svg)
    for colour, replacement in _PAGE_COLOURS.items():
        svg = re.sub(rf'(fill|stroke)="{colour}"', replacement, svg, flags=re.IGNORECASE)
    return svg


_PAGE_COLOURS = {
    TEXT: r'\1="currentColor"',
    MUTED: r'\1="currentColor" \1-opacity="0.75"',
    GRID: r'\1="currentColor" \1-opacity="0.15"',
}
_FONT = re.compile(r"(?:(\w+) )?([\d.]+)px (.+)")


def _make_attributes(style: re.Match[str]) -> str:
    """Return the declarations of a style attribute as attributes of SVG."""
    found = dict(one.split(":", 1) for one in style[1].split(";") if one.strip())
    values = {name.strip(): value.strip() for name, value in found.items()}
    if "font" in values:
        parts = _FONT.fullmatch(values.pop("font"))
        assert parts is not None, style[0]
        names = ("font-weight", "font-size", "font-family")
        values |= {name: part for name, part in zip(names, parts.groups(), strict=True) if part}
    return "".join(f' {name}="{value}"' for name, value in values.items())


def save_plots(plots: Sequence[Plot], path: Path) -> list[Path]:
    """Write plots as HTML, SVG, PNG or PDF; several share a page, or are ``NAME-plot.svg`` each."""
    if path.suffix.lower() == ".html":
        title = plots[0].title if plots else "No plots"
        return [save_page(Report(title, tuple(plots)), path)]
    written = []
    for plot in plots:
        one = path if len(plots) == 1 else path.with_name(f"{path.stem}-{plot.name}{path.suffix}")
        with refuse_unwritable(one), _use_style():
            figure = draw(plot)
            # A file has no caption: its title says what was simulated or modelled.
            figure.suptitle(plot.title, x=0.01, ha="left", fontsize=10)
            figure.savefig(one, dpi=_PNG_DPI, metadata=_METADATA.get(one.suffix.lower()))
        written.append(one)
    return written


def save_pictures(report: Report, folder: Path) -> list[Path]:
    """Write every plot and picture of a report as SVG into a folder; return the files."""
    written = []
    with refuse_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for picture in report.blocks:
            if isinstance(picture, Picture):
                written.append(folder / f"{picture.name}.svg")
                written[-1].write_text(picture.svg, encoding="utf-8")
    return [*written, *(save_plots([one], folder / f"{one.name}.svg")[0] for one in report.plots)]


@contextmanager
def _use_style() -> Iterator[None]:
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield
