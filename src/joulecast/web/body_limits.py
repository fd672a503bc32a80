"""Limit the size of request bodies and the time in which they have to arrive."""

from __future__ import annotations

import asyncio
import time

from fastapi import HTTPException
from starlette.types import Message, Receive

from joulecast.input_files import MOST_JSON_BYTES

MOST_BODY_BYTES = 8 * 2**20
# Larger or smaller bodies, by path; an ONNX file contains the weights.
_LIMITS = {"/sign-in": 4096, "/sign-out": 4096, "/api/networks": MOST_JSON_BYTES}
# Time for a body to arrive.
_BODY_S = 60.0


def find_body_limit(path: str) -> int:
    """Return the largest size of a body in bytes."""
    return _LIMITS.get(path, MOST_BODY_BYTES)


class LimitedBody:
    """Receives a body of any announced or unannounced size, within limits.

    Args:
        receive: Where its parts come from.
        most_bytes: Largest size.
        limit_s: Longest time until all of it has arrived.
    """

    def __init__(self, receive: Receive, most_bytes: int, limit_s: float = _BODY_S) -> None:
        self._receive, self._most_bytes = receive, most_bytes
        self._size_bytes, self._is_complete = 0, False
        self._end_s = time.monotonic() + limit_s

    async def __call__(self) -> Message:
        """Return the next part.

        Raises:
            HTTPException: The body is too large, or arrives too slowly.
        """
        # Afterwards only the end of the connection can come, which may take long.
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._end_s - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive") from None
        self._size_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._size_bytes > self._most_bytes:
            raise HTTPException(413, describe_limit(self._most_bytes))
        return message


def describe_limit(most_bytes: int) -> str:
    """Return the message for a body that is too large."""
    size = f"{most_bytes // 2**20} MiB" if most_bytes >= 2**20 else f"{most_bytes // 2**10} KiB"
    return f"the request is larger than {size}: send less"
