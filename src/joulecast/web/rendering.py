"""Render pages: Jinja templates of the dashboard and of reports, with escaped values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from joulecast.reports.report_page import REPORT_FUNCTIONS
from joulecast.web.access import COOKIE

PACKAGE = Path(str(files("joulecast")))
STATIC = PACKAGE / "web" / "static"
PLOTLY = "plotly.min.js"
_STYLE_ID = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
_TEMPLATES = (PACKAGE / "web" / "templates", PACKAGE / "reports" / "templates")


@dataclass(frozen=True)
class DashboardPage:
    """A page of the dashboard.

    Attributes:
        path: Where it is: ``/devices``; its JSON version is ``/api/devices``.
        title: Its name in the navigation.
        summary: One sentence on what it shows, for the index.
        router: Answers requests for the page and its JSON version.
    """

    path: str
    title: str
    summary: str
    router: APIRouter


def render(request: Request, template: str, **context: Any) -> HTMLResponse:
    """Return a page.

    Every template also gets ``request``, ``pages`` (of the navigation), ``path`` (of the request),
    ``is_signed_in`` and the function ``static_url``.

    Args:
        request: What is answered.
        template: Name of a file in ``web/templates`` or ``reports/templates``.
        context: Values for the template.
    """
    pages: Sequence[DashboardPage] = request.app.state.pages
    text = make_environment().get_template(template)
    shared = {
        "request": request,
        "pages": pages,
        "path": request.url.path,
        "is_signed_in": COOKIE in request.cookies,
    }
    return HTMLResponse(text.render(**shared, **context))


@cache
def make_environment() -> Environment:
    """Return the environment of all templates."""
    environment = Environment(
        loader=FileSystemLoader([str(folder) for folder in _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(REPORT_FUNCTIONS)
    environment.globals["static_url"] = static_url
    environment.globals["plotly_style_ids"] = list_plotly_style_ids
    return environment


@cache
def static_url(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers keep it."""
    digest = hashlib.sha256(find_static(name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


@cache
def list_plotly_style_ids() -> tuple[str, ...]:
    """Return the ids of style elements that plotly's script adds to a page that has none of them.

    They belong to maps, which no plot has, and the content security policy forbids them.
    """
    script = find_static(PLOTLY).read_text(encoding="utf-8")
    return tuple(dict.fromkeys(_STYLE_ID.findall(script)))


def find_static(name: str) -> Path:
    """Return the path of a static file; plotly's script is that of the installed package."""
    if name == PLOTLY:
        return Path(str(files("plotly"))) / "package_data" / PLOTLY
    return STATIC / name
