"""Parse JSON bodies as files are parsed, and compute in few threads.

More threads would only share the same processors and take more memory. What waits is limited in
number and time, so that an overloaded server says so at once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, wraps
from typing import Any, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from joulecast.system.files import parse_json

T = TypeVar("T")
_MOST_WAITING = 256
_LIMIT_S = 60.0
# Parsing 64 KiB takes about 4 ms, in which nobody else is answered.
_LARGEST_PARSED_AT_ONCE_BYTES = 64 * 2**10


class WorkQueue:
    """Threads that compute, and what waits for them, at most so many calls and so long."""

    def __init__(
        self, workers: int, most_waiting: int = _MOST_WAITING, limit_s: float = _LIMIT_S
    ) -> None:
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        self._most_waiting, self._limit_s = most_waiting, limit_s
        self._lock, self._held = threading.Lock(), 0

    @property
    def held_count(self) -> int:
        """Number of calls that wait or run."""
        return self._held

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Return what a function returns, called in one of the threads.

        Raises:
            HTTPException: Too many calls wait, or it takes too long.
        """
        with self._lock:
            if self._held >= self._most_waiting:
                detail = "the server is busy: try again in a second"
                raise HTTPException(503, detail, {"Retry-After": "1"})
            self._held += 1
            # An application may be started again after it was closed.
            self._pool = self._pool or ThreadPoolExecutor(self._workers, "joulecast-web")
            future = self._pool.submit(function, *args)
        future.add_done_callback(self._release)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            detail = "the answer takes too long: ask for less, or try again later"
            raise HTTPException(503, detail, {"Retry-After": "10"}) from None

    def close(self) -> None:
        """End the threads once they are idle; forget what waits."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, _future: Future[Any]) -> None:
        with self._lock:
            self._held -= 1


def computed(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Response]]:
    """Let a route be computed and written as JSON in the server's threads.

    A coroutine that returned the record itself would have it checked and written on the event loop.
    """

    def answer(values: dict[str, Any]) -> Response:
        found = function(**values)
        if isinstance(found, Response):
            return found
        kind: Any = type(found)
        return Response(_find_writer(kind).dump_json(found), media_type="application/json")

    @wraps(function)
    async def call(**values: Any) -> Response:
        queue: WorkQueue = values["request"].app.state.dashboard.queue
        return await queue.run(answer, values)

    # FastAPI reads it, and would look for the names of annotations in this module.
    call.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return call


@cache
def _find_writer(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


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
