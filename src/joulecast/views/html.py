"""Show a Report as HTML: a whole page that needs nothing else, or a part of one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.system.errors import FileError
from joulecast.views.report import Picture, Report

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(str(files("joulecast"))) / "views" / "templates"


def render_page(report: Report) -> str:
    """Return a report as a page with its style sheet and pictures inside."""
    styles = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    # The content security policy allows this style sheet, and nothing else.
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    template = make_environment(TEMPLATES).get_template("page.html")
    page: str = template.render(report=report, styles=styles, digest=digest)
    return page


def render_fragment(report: Report) -> str:
    """Return a report as a part of another page, such as a notebook."""
    text: str = make_environment(TEMPLATES).get_template("fragment.html").render(report=report)
    return text


def save_page(report: Report, path: Path) -> Path:
    """Write a report as one HTML file."""
    with refuse_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page(report), encoding="utf-8")
    return path


@contextmanager
def refuse_unwritable(path: Path) -> Iterator[None]:
    """Raise FileError where a file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another path") from error


@cache
def make_environment(*folders: Path) -> Environment:
    """Return an environment of templates with what reports need."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from joulecast.views.plots import make_svg

    environment = Environment(
        loader=FileSystemLoader([str(folder) for folder in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        kind_of=lambda block: type(block).__name__.lower(),
        make_svg=lambda plot: Markup(make_svg(plot)),
        make_picture_url=_make_picture_url,
    )
    return environment


def _make_picture_url(picture: Picture) -> str:
    """Return a picture as an address that contains it: no script of an SVG runs in an image."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg.encode()).decode()
