"""What all routes share: settings, the estimate service, threads that compute, and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request

from joulecast.features.device_overview import ProfileDetails, read_profile_details
from joulecast.features.estimate_service import BoundedCache, EstimateService, identify_profile
from joulecast.features.layer_curves import LayerCurve, list_layer_curves
from joulecast.store import ProfileSummary, open_store
from joulecast.web.monitoring import ServerMetrics
from joulecast.web.work import WorkQueue

_KEPT_PROFILES = 32


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
        self.metrics = ServerMetrics(self.service, self.queue)
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
