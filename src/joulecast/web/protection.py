"""Protect every route: check a request before anything of it is parsed, and answer with headers.

In this order: Host (a web page must not reach the server under a name of its own), rate of
requests, token or session, origin and content type (a web page must not act in the name of its
reader), size of the body. Nothing that a route does can be forgotten here, because routes are
allowed one by one: ``/health``, signing in and static files need no token, everything else does.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecast.agent.addresses import names_loopback
from joulecast.web.access import AccessCheck
from joulecast.web.body_limits import LimitedBody, describe_limit, find_body_limit
from joulecast.web.problems import answer_bug, make_problem
from joulecast.web.rate_limit import RateLimit
from joulecast.web.web_settings import WebSettings

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without a referrer, browsers would not tell the origin of a form either.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SIGN_IN = "/sign-in"
_OPEN_PATHS = ("/health", SIGN_IN)
_OPEN_FOLDER = "/static/"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A page of another origin can send neither without asking first.
_DATA_TYPES = ("application/json", "application/octet-stream")
_FORM_PATHS = (SIGN_IN, "/sign-out")
_FORM_TYPE = "application/x-www-form-urlencoded"
# Wrong tokens of one client: a token cannot be guessed, and logs stay readable.
_WRONG_PER_SECOND, _WRONG_BURST = 0.5, 20


class Protection:
    """ASGI middleware that checks requests and adds headers to answers."""

    def __init__(self, app: ASGIApp, settings: WebSettings, access: AccessCheck) -> None:
        self._app, self._access = app, access
        rate = settings.requests_per_second
        self._rate = RateLimit(rate, 2.0 * rate)
        self._wrong = RateLimit(_WRONG_PER_SECOND, _WRONG_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it pass."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # A web socket is closed before it opens.
            await send({"type": "websocket.close", "code": 1008})
            return

        has_started = False

        async def send_protected(message: Message) -> None:
            nonlocal has_started
            has_started = True
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message))
            await send(message)

        try:
            await self._answer(scope, receive, send_protected)
        except Exception as error:
            # A handler of the application would answer outside of this, without the headers.
            if has_started:
                raise
            await answer_bug(Request(scope), error)(scope, receive, send_protected)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._find_refusal(HTTPConnection(scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        limited = LimitedBody(receive, find_body_limit(scope["path"]))
        await self._app(scope, limited, send)

    def _find_refusal(self, connection: HTTPConnection) -> Response | None:
        """Return the answer to a request that may not pass; None for one that may."""
        if not self._access.is_needed and not names_loopback(connection.headers.get("host", "")):
            return make_problem(
                403, "without a token the dashboard answers this machine only: start it with one"
            )
        client = connection.client.host if connection.client else ""
        if wait_s := self._rate.take(client):
            return _refuse_rate(wait_s, "too many requests")
        return (
            self._check_access(connection, client)
            or self._check_origin(connection)
            or _check_body(connection)
        )

    def _check_access(self, connection: HTTPConnection, client: str) -> Response | None:
        path = connection.scope["path"]
        is_open = path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)
        if is_open or not self._access.is_needed:
            return None
        if self._access.has_token(connection) or self._access.has_session(connection):
            return None
        is_wrong = "authorization" in connection.headers
        if is_wrong and (wait_s := self._wrong.take(client)):
            return _refuse_rate(wait_s, "too many wrong tokens")
        if not is_wrong and _is_page(connection):
            query = connection.scope["query_string"].decode("latin-1")
            wanted = quote(f"{path}?{query}" if query else path)
            return RedirectResponse(f"{SIGN_IN}?next={wanted}", HTTPStatus.SEE_OTHER)
        detail = "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`"
        return make_problem(401, detail, {"WWW-Authenticate": "Bearer"})

    def _check_origin(self, connection: HTTPConnection) -> Response | None:
        """Refuse what a page of another origin sends in the name of its reader."""
        if connection.scope["method"] in _SAFE_METHODS or self._access.has_token(connection):
            return None
        headers = connection.headers
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        is_own = origin is None or _find_host(origin) == headers.get("host", "").lower()
        if site in ("same-origin", "none") and is_own:
            return None
        return make_problem(403, "the request comes from a page of another origin")


def _check_body(connection: HTTPConnection) -> Response | None:
    """Refuse content types that any page could send, and bodies that say they are too large."""
    scope, headers = connection.scope, connection.headers
    if scope["method"] not in _SAFE_METHODS:
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        allowed = (_FORM_TYPE,) if scope["path"] in _FORM_PATHS else _DATA_TYPES
        if given not in allowed:
            return make_problem(415, f"the content type is {given!r}: send {allowed[0]}")
    length, most_bytes = headers.get("content-length", "0"), find_body_limit(scope["path"])
    if not (length.isascii() and length.isdecimal()):
        return make_problem(400, "the Content-Length is not a number")
    if len(length) > 15 or int(length) > most_bytes:
        return make_problem(413, describe_limit(most_bytes), {"Connection": "close"})
    return None


def _add_headers(headers: MutableHeaders) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")


def _is_page(connection: HTTPConnection) -> bool:
    """Return whether a browser asks for a page."""
    path, accept = connection.scope["path"], connection.headers.get("accept", "")
    is_read = connection.scope["method"] in ("GET", "HEAD")
    return is_read and "text/html" in accept and not path.startswith("/api/")


def _find_host(origin: str) -> str:
    """Return host and port of an origin; a scheme may change at a proxy."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refuse_rate(wait_s: int, reason: str) -> Response:
    detail = f"{reason}: wait {wait_s} s"
    return make_problem(429, detail, {"Retry-After": str(wait_s)})
