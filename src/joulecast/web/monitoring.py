"""Say whether the server works, and what it does: ``/health`` and Prometheus ``/metrics``.

Labels have few values: the template of a route, never the path that a client sent.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulecast.features.estimate_service import EstimateService
from joulecast.web.work import WorkQueue

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
router = APIRouter(tags=["monitoring"])


class HealthReport(BaseModel):
    """Whether the server works."""

    status: str


class ServerMetrics:
    """What is counted; one registry for each application."""

    def __init__(self, service: EstimateService, queue: WorkQueue) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "joulecast_http_requests",
            "Answered requests.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.durations = Histogram(
            "joulecast_http_request_duration_seconds",
            "Time from a request to the end of its answer.",
            ("route",),
            buckets=_DURATIONS_S,
            registry=self.registry,
        )
        self.estimates = Counter(
            "joulecast_estimates",
            "Estimates, by whether the same one was made before.",
            ("repeated",),
            registry=self.registry,
        )
        fits = Gauge(
            "joulecast_fitted_profiles", "Fitted profiles in memory.", registry=self.registry
        )
        fits.set_function(lambda: service.fit_count)
        waiting = Gauge(
            "joulecast_work_queue_length", "Calls that wait or run.", registry=self.registry
        )
        waiting.set_function(lambda: queue.held_count)

    def observe(self, scope: Scope, status: int, duration_s: float) -> None:
        """Count an answered request."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "other")
        self.requests.labels(method, route, str(status)).inc()
        self.durations.labels(route).observe(duration_s)


class RequestMetrics:
    """ASGI middleware that counts requests."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start_s = 500, time.perf_counter()

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.observe(scope, status, time.perf_counter() - start_s)


@router.get("/health")
async def get_health() -> HealthReport:
    """Say that the server answers; needs no token and reads nothing."""
    return HealthReport(status="ok")


@router.get("/metrics", response_class=PlainTextResponse)
def get_metrics(request: Request) -> PlainTextResponse:
    """Return counts and durations in the text format of Prometheus."""
    metrics = find_metrics(request)
    return PlainTextResponse(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def find_metrics(request: Request) -> ServerMetrics:
    """Return the metrics of the server that answers a request."""
    metrics: ServerMetrics = request.app.state.metrics
    return metrics
