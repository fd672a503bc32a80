"""Write a report as one HTML file that needs nothing else, or as SVG files for papers.

The page has plotly's script, its style sheet and its data inside. Its content security policy
allows exactly these scripts and forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from joulecast.errors import FileError
from joulecast.figures import make_svg
from joulecast.figures.embedded_plots import EmbeddedPlot, embed_plot
from joulecast.reports.report import Picture, Report, Section

_PACKAGE = Path(str(files("joulecast")))
_STATIC = _PACKAGE / "web" / "static"
_TEMPLATES = _PACKAGE / "reports" / "templates"


def make_report_page(report: Report) -> str:
    """Return a report as a whole HTML page."""
    from plotly.offline import get_plotlyjs

    # Only pages with plots carry plotly's megabytes.
    scripts = [_read("theme.js")]
    if report.plots:
        # A module would need an address; without its export it is a script like any other.
        plots = _read("plots.js").replace("export function", "function")
        scripts += [get_plotlyjs(), f"(() => {{\n{plots}\n}})();"]
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    template = make_report_environment().get_template("report.html")
    page: str = template.render(
        report=report,
        styles=_read("joulecast.css") + _read("plotly.css"),
        early_script=_mark_safe(scripts[0]),
        late_scripts=[_mark_safe(text) for text in scripts[1:]],
        script_hashes=hashes,
    )
    return page


def save_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write a report as one HTML file.

    Raises:
        FileError: The file cannot be written.
    """
    return _write(make_report_page(report), Path(path))


def save_report_pictures(report: Report, folder: str | os.PathLike[str]) -> list[Path]:
    """Write every plot and picture of a report as SVG into a folder; return the files.

    Raises:
        FileError: A file cannot be written.
        MissingError: matplotlib is not installed.
    """
    own = Path(folder)
    pictures = {name: picture.svg for name, picture in report.pictures.items()}
    pictures |= {name: make_svg(plot) for name, plot in report.plots.items()}
    return [_write(svg, own / f"{name}.svg") for name, svg in pictures.items()]


@cache
def make_report_environment() -> Any:
    """Return the Jinja environment of report templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(str(_TEMPLATES)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(REPORT_FUNCTIONS)
    return environment


def embed_plots(section: Section) -> dict[str, EmbeddedPlot]:
    """Return the plots of a section as parts of a page, by name."""
    return {name: embed_plot(plot) for name, plot in section.plots.items()}


def make_picture_url(picture: Picture) -> str:
    """Return a picture as an address that contains it: no script of an SVG runs in an image."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg.encode()).decode()


REPORT_FUNCTIONS = {"embed_plots": embed_plots, "make_picture_url": make_picture_url}
"""Functions that the shared templates call."""


def _mark_safe(script: str) -> Any:
    from markupsafe import Markup

    return Markup(script)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _write(text: str, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another path") from error
    return path
