"""Save plots as HTML pages, SVG and PNG.

A page is a few kilobytes. It loads plotly's script, which has megabytes, from a file beside it
that all pages of a folder share, so that it needs no network connection.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from joulecast.errors import FileError
from joulecast.figures.matplotlib_backend import make_png, make_svg
from joulecast.figures.plot import Plot, require_data
from joulecast.figures.plotly_backend import to_plotly
from joulecast.views.style import FONT, TEXT

_HIDDEN_BUTTONS = ("select2d", "lasso2d", "autoScale2d")
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font-family: {font}; color: {text}; max-width: 1200px; margin: 1rem auto; }}</style>
</head>
<body>
<script src="{library}" onerror="document.body.prepend('{library} is missing: keep it in the \
folder of this page.')"></script>
{body}
</body>
</html>
"""


def make_html(plot: Plot, *, element_id: str = "plot") -> str:
    """Return an HTML fragment that shows a plot on a page that has loaded plotly's script.

    Args:
        plot: The plot.
        element_id: The ``id`` of the fragment on its page.
    """
    fragment: str = to_plotly(plot).to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=element_id,
        config={
            "responsive": True,
            "displaylogo": False,
            # A button of plotly that uploads the data of a plot.
            "showSendToCloud": False,
            "modeBarButtonsToRemove": _HIDDEN_BUTTONS,
        },
    )
    return fragment


def save_html(plots: Plot | Sequence[Plot], path: str | Path) -> Path:
    """Write a page with one or more plots, and plotly's script beside it where it is missing."""
    found = [plots] if isinstance(plots, Plot) else list(plots)
    require_data(found, "plot")
    fragments = [
        make_html(plot, element_id=f"plot-{index + 1}") for index, plot in enumerate(found)
    ]
    title, library = html.escape(found[0].heading), _save_library(Path(path).parent)
    body = "\n".join(fragments)
    page = _PAGE.format(title=title, font=FONT, text=TEXT, library=library, body=body)
    return _write(page, Path(path))


def save_svg(plot: Plot, path: str | Path) -> Path:
    """Write a plot as SVG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    return _write(make_svg(plot), Path(path))


def save_png(plot: Plot, path: str | Path) -> Path:
    """Write a plot as PNG.

    Raises:
        MissingError: matplotlib is not installed.
    """
    return _write(make_png(plot), Path(path))


def _save_library(folder: Path) -> str:
    """Write plotly's script into a folder, if it is not there already; return its name."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    # With its version, so that a page never meets the script of another one.
    path = folder / f"plotly-{get_plotlyjs_version()}.min.js"
    script = get_plotlyjs().encode("utf-8")
    if not path.is_file() or path.stat().st_size != len(script):
        _write(script, path)
    return path.name


def _write(content: str | bytes, path: Path) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another path") from error
    return path
