"""Say how the dashboard is served: its store, its folder of results, its token and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request


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


def find_settings(request: Request) -> WebSettings:
    """Return the settings of the server that answers a request."""
    app: FastAPI = request.app
    settings: WebSettings = app.state.settings
    return settings
