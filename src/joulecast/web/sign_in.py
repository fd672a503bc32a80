"""Let browsers sign in with the token, by a form that sets a cookie no script can read."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from joulecast.web.access import COOKIE, SESSION_S, AccessCheck
from joulecast.web.problems import make_problem
from joulecast.web.protection import SIGN_IN
from joulecast.web.rate_limit import RateLimit
from joulecast.web.rendering import render

# Attempts of one client.
_PER_SECOND, _BURST = 0.2, 10


def make_sign_in_router(access: AccessCheck) -> APIRouter:
    """Return the router of signing in and out."""
    router, attempts = APIRouter(include_in_schema=False), RateLimit(_PER_SECOND, _BURST)

    @router.get(SIGN_IN)
    def show_form(request: Request, next: str = "/") -> Response:
        return _show_form(request, next)

    @router.post(SIGN_IN)
    async def sign_in(request: Request) -> Response:
        client = request.client.host if request.client else ""
        if wait_s := attempts.take(client):
            detail = f"too many attempts to sign in: wait {wait_s} s"
            return make_problem(429, detail, {"Retry-After": str(wait_s)})
        fields = _parse_form(await request.body())
        if access.is_needed and not access.accepts_token(fields.get("token", "")):
            page = _show_form(request, fields.get("next", "/"), "This is not the token.")
            page.status_code = HTTPStatus.UNAUTHORIZED
            return page
        answer = RedirectResponse(_choose_next(request, fields.get("next", "/")), 303)
        if access.is_needed:
            _set_cookie(request, answer, access.make_session(), SESSION_S)
        return answer

    @router.post("/sign-out")
    def sign_out(request: Request) -> Response:
        answer = RedirectResponse(SIGN_IN, HTTPStatus.SEE_OTHER)
        _set_cookie(request, answer, "", 0)
        return answer

    return router


def _show_form(request: Request, next: str, message: str = "") -> Response:
    return render(request, "sign_in.html", next=_choose_next(request, next), message=message)


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items()}


def _choose_next(request: Request, wanted: str) -> str:
    """Return a page of the dashboard with its query: a link must not lead elsewhere."""
    paths = {"/", *(page.path for page in request.app.state.pages)}
    return wanted if wanted.partition("?")[0] in paths else "/"


def _set_cookie(request: Request, answer: Response, value: str, age_s: int) -> None:
    answer.set_cookie(
        COOKIE,
        value,
        max_age=age_s,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
