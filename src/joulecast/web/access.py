"""Decide who may use the dashboard: programs by the token, browsers by a session made from it.

    Authorization: Bearer TOKEN                        programs
    Cookie: joulecast_session=EXPIRES.SIGNATURE        browsers, after they signed in

The signature is an HMAC of the expiry with a key derived from the token, so that a cookie tells
nothing about the token, and a new token ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

from starlette.requests import HTTPConnection

from joulecast.agent.addresses import are_equal_secrets

COOKIE = "joulecast_session"
SESSION_S = 12 * 3600
_PURPOSE = b"joulecast dashboard session"


class AccessCheck:
    """Checks the token of a server and sessions made from it.

    Args:
        token: The shared secret; empty where everybody who reaches the server may use it.
        now: Returns seconds since 1970.
    """

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token, self._now = token, now
        self._key = hmac.digest(token.encode(), _PURPOSE, hashlib.sha256)

    @property
    def is_needed(self) -> bool:
        """Whether a token is needed at all."""
        return bool(self._token)

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
