"""Serve style sheets, scripts and plotly's script from the installed packages.

The names are listed when the server starts, so that no name of a client reaches the file system.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

from joulecast.web.rendering import PLOTLY, STATIC, find_static

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_FOR_EVER = "public, max-age=31536000, immutable"
router = APIRouter()


@router.get("/static/{name}", include_in_schema=False)
def send_static(name: str, v: str = "") -> FileResponse:
    """Send a static file; with the version in its address, browsers keep it for a year."""
    path = list_static().get(name)
    if path is None:
        raise HTTPException(404, "there is no such file")
    response = FileResponse(path, media_type=_TYPES[path.suffix])
    response.headers["Cache-Control"] = _FOR_EVER if v else "no-cache"
    return response


@cache
def list_static() -> dict[str, Path]:
    """Return the static files by name."""
    found = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}
    return {**found, PLOTLY: find_static(PLOTLY)}
