"""What all routes share: settings, the estimate service, threads that compute, and metrics."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import TypeAdapter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecast.features.device_overview import ProfileDetails, read_profile_details
from joulecast.features.estimate_service import BoundedCache, EstimateService, identify_profile
from joulecast.features.layer_curves import LayerCurve, list_layer_curves
from joulecast.store import ProfileSummary, open_store

T = TypeVar("T")
_KEPT_PROFILES = 32
_MOST_WAITING = 256
_LIMIT_S = 60.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class WebSettings:
    """How the dashboard is served.

    Attributes:
        store: Path or URL of the store, if not the usual one.
        results: Folder of JSON results that other commands wrote; None for none.
        token: The shared secret; empty where only this machine can reach the server.
        requests_per_second: Largest rate of requests of one client, in the long run; a burst of
            twice as many is allowed. 0 for no limit.
        is_behind_proxy: A proxy on this machine tells who the client is, and whether by HTTPS.
        workers: Threads that compute estimates and parse uploads.
    """

    store: str | None = None
    results: Path | None = None
    token: str = field(default="", repr=False)
    requests_per_second: int = 100
    is_behind_proxy: bool = False
    workers: int = 2


class Dashboard:
    """A running dashboard, and what takes long to read from its profiles."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.service = EstimateService(settings.store)
        self.queue = WorkQueue(settings.workers)
        self.metrics = ServerMetrics(self)
        self.streams: set[object] = set()
        self._details: BoundedCache[Any, ProfileDetails] = BoundedCache(_KEPT_PROFILES)
        self._curves: BoundedCache[Any, tuple[LayerCurve, ...]] = BoundedCache(_KEPT_PROFILES)

    def read_details(self, summary: ProfileSummary) -> ProfileDetails:
        """Return what the observations of a profile tell."""

        def read() -> ProfileDetails:
            with open_store(self.settings.store, create=False) as opened:
                return read_profile_details(opened.load_profile(summary.key))

        return self._details.get_or_make(identify_profile(summary), read)

    def list_curves(self, summary: ProfileSummary) -> tuple[LayerCurve, ...]:
        """Return the curves of a profile."""
        fitted = self.service.fit(summary.key)
        return self._curves.get_or_make(
            identify_profile(summary), lambda: list_layer_curves(fitted.profile)
        )


def find_dashboard(request: Request) -> Dashboard:
    """Return the dashboard that answers a request."""
    found: Dashboard = request.app.state.dashboard
    return found


Here = Annotated[Dashboard, Depends(find_dashboard)]


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
        return await find_dashboard(values["request"]).queue.run(answer, values)

    # FastAPI reads it, and would look for the names of annotations in this module.
    call.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return call


@cache
def _find_writer(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class WorkQueue:
    """A few threads that compute, and the calls that wait for them.

    More threads would only share the same processors and take more memory. Waiting is limited in
    number and time, so that an overloaded server says so at once.
    """

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


class ServerMetrics:
    """Counts for Prometheus; one registry for each application.

    Labels have few values: the template of a route, never the path that a client sent.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        own = self.registry = CollectorRegistry()
        ProcessCollector(registry=own)
        labels = ("method", "route", "status")
        self._requests = Counter(
            "joulecast_http_requests", "Answered requests.", labels, registry=own
        )
        self._durations = Histogram(
            "joulecast_http_request_duration_seconds",
            "Time from a request to the end of its answer.",
            ("route",),
            buckets=_DURATIONS_S,
            registry=own,
        )
        self.estimates = Counter(
            "joulecast_estimates",
            "Estimates, by whether the same one was made before.",
            ("repeated",),
            registry=own,
        )
        fits = Gauge("joulecast_fitted_profiles", "Fitted profiles in memory.", registry=own)
        fits.set_function(lambda: dashboard.service.fit_count)
        waiting = Gauge("joulecast_work_queue_length", "Calls that wait or run.", registry=own)
        waiting.set_function(lambda: dashboard.queue.held_count)

    def count_requests(self, app: ASGIApp) -> ASGIApp:
        """Return an application that answers as another one does, and counts its requests."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status, start_s = 500, time.perf_counter()

            async def send_counted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, send_counted)
            finally:
                method = scope["method"] if scope["method"] in _METHODS else "other"
                route = getattr(scope.get("route"), "path", "other")
                self._requests.labels(method, route, str(status)).inc()
                self._durations.labels(route).observe(time.perf_counter() - start_s)

        return answer
