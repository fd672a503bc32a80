"""Protect every route: check a request before anything of it is parsed, and answer with headers.

In this order: Host (a web page must not reach the server under a name of its own), rate of
requests, token or session, origin and content type (a web page must not act in the name of its
reader), size of the body. Nothing that a route does can be forgotten here, because routes are
allowed one by one: ``/health``, signing in and static files need no token, everything else does.

    Authorization: Bearer TOKEN                        programs
    Cookie: joulecast_session=EXPIRES.SIGNATURE        browsers, after they signed in

The signature is an HMAC of the expiry with a key derived from the token, so that a cookie tells
nothing about the token, and a new token ends all sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import APIRouter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecast.agent.addresses import are_equal_secrets, names_loopback
from joulecast.system.files import MOST_JSON_BYTES
from joulecast.web.answers import COOKIE, answer_bug, make_problem, render

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
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
_FOR_EVER = "public, max-age=31536000, immutable"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A page of another origin can send neither without asking first.
_DATA_TYPES = ("application/json", "application/octet-stream")
_FORM_PATHS = (SIGN_IN, "/sign-out")
_FORM_TYPE = "application/x-www-form-urlencoded"
# Wrong tokens of one client: a token cannot be guessed, and logs stay readable.
_WRONG_PER_SECOND, _WRONG_BURST = 0.5, 20


class Protection:
    """ASGI middleware that checks requests and adds headers to answers."""

    def __init__(self, app: ASGIApp, rate: float, access: AccessCheck) -> None:
        self._app, self._access = app, access
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
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if scope["path"].startswith(_OPEN_FOLDER):
                    # The address of a static file changes with its content.
                    is_versioned = scope["query_string"].startswith(b"v=")
                    headers["Cache-Control"] = _FOR_EVER if is_versioned else "no-cache"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            refusal = self._find_refusal(HTTPConnection(scope))
            if refusal is not None:
                await refusal(scope, receive, send_protected)
                return
            limited = limit_body(receive, BODY_LIMITS.get(scope["path"], MOST_BODY_BYTES))
            await self._app(scope, limited, send_protected)
        except Exception as error:
            # A handler of the application would answer outside of this, without the headers.
            if has_started:
                raise
            await answer_bug(Request(scope), error)(scope, receive, send_protected)

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
        is_read = connection.scope["method"] in ("GET", "HEAD") and not path.startswith("/api/")
        if not is_wrong and is_read and "text/html" in connection.headers.get("accept", ""):
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
        with suppress(ValueError):
            # The scheme may change at a proxy.
            is_own = (
                origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
            )
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
    length, most_bytes = (
        headers.get("content-length", "0"),
        BODY_LIMITS.get(scope["path"], MOST_BODY_BYTES),
    )
    if not (length.isascii() and length.isdecimal()):
        return make_problem(400, "the Content-Length is not a number")
    if len(length) > 15 or int(length) > most_bytes:
        return make_problem(413, describe_limit(most_bytes), {"Connection": "close"})
    return None


def _refuse_rate(wait_s: int, reason: str) -> Response:
    return make_problem(429, f"{reason}: wait {wait_s} s", {"Retry-After": str(wait_s)})


# ---------------------------------------------------------------------------------------------
# Token and session

SESSION_S = 12 * 3600
_PURPOSE = b"joulecast dashboard session"


class AccessCheck:
    """Checks the token of a server and sessions made from it.

    The token is empty where everybody who reaches the server may use it.
    """

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token, self._now, self.is_needed = token, now, bool(token)
        self._key = hmac.digest(token.encode(), _PURPOSE, hashlib.sha256)

    def accepts_token(self, given: str) -> bool:
        """Return whether a text is the token, in constant time."""
        return self.is_needed and are_equal_secrets(given, self._token)

    def has_token(self, connection: HTTPConnection) -> bool:
        """Return whether a request carries the token."""
        given = connection.headers.get("authorization", "")
        return self.is_needed and are_equal_secrets(given, f"Bearer {self._token}")

    def has_session(self, connection: HTTPConnection) -> bool:
        """Return whether a request carries a session that is signed and not over."""
        expires, _, signature = connection.cookies.get(COOKIE, "").partition(".")
        if not (self.is_needed and expires.isascii() and expires.isdecimal()) or len(expires) > 12:
            return False
        return are_equal_secrets(signature, self._sign(expires)) and int(expires) > self._now()

    def make_session(self) -> str:
        """Return the value of the cookie of a new session."""
        expires = str(int(self._now()) + SESSION_S)
        return f"{expires}.{self._sign(expires)}"

    def _sign(self, expires: str) -> str:
        return hmac.digest(self._key, expires.encode(), hashlib.sha256).hex()


# ---------------------------------------------------------------------------------------------
# Rates

_MOST_CLIENTS = 10_000


class RateLimit:
    """A token bucket for each client, and at most so many buckets; used from one thread.

    A bucket holds ``burst`` requests and is refilled at ``per_second``. A client is an IPv4
    address, or the network of 64 bits that an IPv6 address is in, because one user has all of
    those. ``per_second`` 0 is no limit.
    """

    def __init__(
        self, per_second: float, burst: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._now = per_second, burst, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: str) -> int:
        """Take one request; return 0 if it is allowed, else the seconds until the next one is."""
        if self._per_second <= 0:
            return 0
        now = self._now()
        if ":" in client:
            with suppress(ValueError):
                client = str(ipaddress.ip_network((client.partition("%")[0], 64), strict=False))
        left, at = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        is_allowed = left >= 1.0
        self._buckets[client] = (left - 1.0 if is_allowed else left, now)
        # The client that asked longest ago has the fullest bucket of all.
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else max(1, math.ceil((1.0 - left) / self._per_second))


# ---------------------------------------------------------------------------------------------
# Bodies

MOST_BODY_BYTES = 8 * 2**20
# Larger or smaller bodies, by path; an ONNX file contains the weights.
BODY_LIMITS = {"/sign-in": 4096, "/sign-out": 4096, "/api/networks": MOST_JSON_BYTES}
# Time for a body to arrive.
_BODY_S = 60.0


def limit_body(receive: Receive, most_bytes: int, limit_s: float = _BODY_S) -> Receive:
    """Return a function that receives a body, or raises HTTPException if it is large or slow."""
    left_bytes, is_complete, end_s = most_bytes, False, time.monotonic() + limit_s

    async def receive_limited() -> Message:
        nonlocal left_bytes, is_complete
        # Afterwards only the end of the connection can come, which may take long.
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive") from None
        left_bytes -= len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if left_bytes < 0:
            raise HTTPException(413, describe_limit(most_bytes))
        return message

    return receive_limited


def describe_limit(most_bytes: int) -> str:
    """Return the message for a body that is too large."""
    size = f"{most_bytes // 2**20} MiB" if most_bytes >= 2**20 else f"{most_bytes // 2**10} KiB"
    return f"the request is larger than {size}: send less"


# ---------------------------------------------------------------------------------------------
# Signing in

# Attempts of one client.
_SIGN_INS_PER_SECOND, _SIGN_IN_BURST = 0.2, 10


def make_sign_in_router(access: AccessCheck) -> APIRouter:
    """Return the router of signing in and out."""
    router = APIRouter(include_in_schema=False)
    attempts = RateLimit(_SIGN_INS_PER_SECOND, _SIGN_IN_BURST)

    @router.get(SIGN_IN)
    def show_form(request: Request, next: str = "/") -> Response:
        return _show_form(request, next)

    @router.post(SIGN_IN)
    async def sign_in(request: Request) -> Response:
        client = request.client.host if request.client else ""
        if wait_s := attempts.take(client):
            return _refuse_rate(wait_s, "too many attempts to sign in")
        fields: dict[str, str] = {}
        with suppress(ValueError):
            # The first of several values counts.
            pairs = parse_qsl((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
            fields = dict(reversed(pairs))
        if access.is_needed and not access.accepts_token(fields.get("token", "")):
            return _show_form(request, fields.get("next", "/"), "This is not the token.")
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
    path = _choose_next(request, next)
    return render(request, "sign_in.html", 401 if message else 200, next=path, message=message)


def _choose_next(request: Request, wanted: str) -> str:
    """Return a page of the dashboard with its query: a link must not lead elsewhere."""
    paths = {"/", *(page.path for page in request.app.state.pages)}
    return wanted if wanted.partition("?")[0] in paths else "/"


def _set_cookie(request: Request, answer: Response, value: str, age_s: int) -> None:
    is_secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, value, age_s, secure=is_secure, httponly=True, samesite="strict")
