"""Answer what goes wrong: one clear line as problem details (RFC 9457), never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from joulecast.errors import InputError, JoulecastError, MissingError, StoreError
from joulecast.printable import make_printable
from joulecast.web.rendering import render

MEDIA_TYPE = "application/problem+json"
_LOG = logging.getLogger(__name__)
_LONGEST = 500


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
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({400, 401, 403, 429, *statuses})
    }


def make_problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return problem details as a response."""
    line = make_printable(" ".join(detail.split()))[:_LONGEST]
    content = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=line)
    return JSONResponse(content.model_dump(), status, headers, MEDIA_TYPE)


def find_status(error: JoulecastError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(error, InputError):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, MissingError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, StoreError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


def add_problem_handlers(app: FastAPI) -> None:
    """Let an application answer expected errors as problem details, or as a page for browsers."""

    @app.exception_handler(JoulecastError)
    async def answer_own(request: Request, error: JoulecastError) -> Response:
        return _answer(request, find_status(error), str(error))

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> Response:
        return _answer(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        return _answer(request, HTTPStatus.UNPROCESSABLE_ENTITY, _describe_invalid(error))


def answer_bug(request: Request, error: Exception) -> Response:
    """Log an error that no route expects, and return the answer to its request."""
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(
        request,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the server failed; its log says why: please report it",
    )


def _answer(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    is_page = not request.url.path.startswith("/api/")
    if is_page and "text/html" in request.headers.get("accept", ""):
        title = HTTPStatus(status).phrase
        page = render(request, "error.html", title=title, detail=make_printable(detail))
        page.status_code = status
        page.headers.update(headers or {})
        return page
    return make_problem(status, detail, headers)


def _describe_invalid(error: RequestValidationError) -> str:
    """Return the first thing that is wrong with a request."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
    message = str(first.get("msg", "it is not valid"))
    return f"{place}: {message}" if place else message
