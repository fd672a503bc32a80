"""Count what the server does, for Prometheus.

Labels have few values: the template of a route, never the path that a client sent.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecast.features.estimate_service import EstimateService
from joulecast.web.work import WorkQueue

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """What is counted; one registry for each application."""

    def __init__(self, service: EstimateService, queue: WorkQueue) -> None:
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
        fits.set_function(lambda: service.fit_count)
        waiting = Gauge("joulecast_work_queue_length", "Calls that wait or run.", registry=own)
        waiting.set_function(lambda: queue.held_count)

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
