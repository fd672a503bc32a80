"""Parse JSON bodies as files are parsed, render pages, and explain errors in one line.

Errors are problem details (RFC 9457), or a page for browsers; never a traceback.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from joulecast.system.errors import InputError, JoulecastError, MissingError, StoreError
from joulecast.system.files import parse_json
from joulecast.system.printable import make_printable
from joulecast.views.html import TEMPLATES, make_environment

T = TypeVar("T", bound=Callable[..., Any])
COOKIE = "joulecast_session"
STATIC = Path(__file__).parent / "static"
STYLES = "report.css"
"""The style sheet, which reports as files have too."""
PROBLEM = "application/problem+json"
_LOG = logging.getLogger(__name__)
_LONGEST = 500
# Parsing 64 KiB takes about 4 ms, in which nobody else is answered.
_LARGEST_PARSED_AT_ONCE_BYTES = 64 * 2**10


class DataRequest(Request):
    """A request whose JSON is parsed as that of files is: valid numbers, not nested too deeply."""

    async def json(self) -> Any:
        """Return the value of the body, or raise HTTPException."""
        if not hasattr(self, "_json"):
            content = await self.body()
            is_large = len(content) > _LARGEST_PARSED_AT_ONCE_BYTES
            try:
                self._json = (
                    await run_in_threadpool(parse_json, content)
                    if is_large
                    else parse_json(content)
                )
            except ValueError as error:
                raise HTTPException(400, f"the body is not JSON ({error})") from error
        return self._json


class DataRoute(APIRoute):
    """A route whose JSON bodies are parsed as files are."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with another class of requests."""
        handle = super().get_route_handler()

        async def handle_data(request: Request) -> Response:
            return await handle(DataRequest(request.scope, request.receive))

        return handle_data


class DashboardPage:
    """A page of the dashboard, and its JSON version: ``/devices`` and ``/api/devices``."""

    def __init__(self, path: str, title: str, summary: str) -> None:
        self.path, self.title, self.summary = path, title, summary
        self.router = APIRouter(tags=[title.lower()], route_class=DataRoute)

    def html(self, function: T) -> T:
        """Let a function answer requests for the page."""
        route: Callable[[T], T] = self.router.get(
            self.path, include_in_schema=False, response_class=HTMLResponse
        )
        return route(function)

    def json(self, summary: str) -> Callable[[T], T]:
        """Let a function answer requests for the JSON version; its annotation is the schema."""
        return self.router.get(f"/api{self.path}", summary=summary)


def render(
    request: Request, template: str, status: int = HTTPStatus.OK, **context: Any
) -> HTMLResponse:
    """Return a page.

    Every template also gets ``request``, ``pages`` (of the navigation), ``path`` (of the request),
    ``is_signed_in`` and the function ``static_url``.
    """
    shared = {
        "request": request,
        "pages": request.app.state.pages,
        "path": request.url.path,
        "is_signed_in": COOKIE in request.cookies,
        "static_url": static_url,
    }
    environment = make_environment(Path(__file__).parent / "templates", TEMPLATES)
    return HTMLResponse(environment.get_template(template).render(**shared, **context), status)


@cache
def static_url(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers keep it."""
    path = TEMPLATES / name if name == STYLES else STATIC / name
    return f"/static/{name}?v={hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


# ---------------------------------------------------------------------------------------------
# Problems


class ProblemDetails(BaseModel):
    """What went wrong."""

    type: str = "about:blank"
    title: str = Field(description="The meaning of the status.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong, and what to do.")


def document_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says about statuses of a route, and those that every route may have."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "model": ProblemDetails,
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({400, 401, 403, 429, *statuses})
    }


def make_problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return problem details as a response."""
    line = make_printable(" ".join(detail.split()))[:_LONGEST]
    content = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=line)
    return JSONResponse(content.model_dump(), status, headers, PROBLEM)


def answer_problem(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return problem details, or a page if a browser asks for one."""
    is_page = not request.url.path.startswith("/api/")
    if not (is_page and "text/html" in request.headers.get("accept", "")):
        return make_problem(status, detail, headers)
    title = HTTPStatus(status).phrase
    page = render(request, "error.html", status, title=title, detail=make_printable(detail))
    page.headers.update(headers or {})
    return page


def answer_bug(request: Request, error: Exception) -> Response:
    """Log an error that no route expects, and return the answer to its request."""
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = "the server failed; its log says why: please report it"
    return answer_problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def add_problem_handlers(app: FastAPI) -> None:
    """Let an application answer expected errors as problems."""

    @app.exception_handler(JoulecastError)
    async def answer_own(request: Request, error: JoulecastError) -> Response:
        return answer_problem(request, find_status(error), str(error))

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> Response:
        return answer_problem(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
        message = str(first.get("msg", "it is not valid"))
        detail = f"{place}: {message}" if place else message
        return answer_problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def find_status(error: JoulecastError) -> int:
    """Return the HTTP status of one of our errors."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)


_STATUSES = {InputError: 422, MissingError: 404, StoreError: 503}
