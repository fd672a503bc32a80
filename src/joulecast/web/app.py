"""Assemble the dashboard, and run it in uvicorn: on loopback unless there is a token."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from joulecast.agent.addresses import is_loopback
from joulecast.system.errors import InputError, arg
from joulecast.views.html import TEMPLATES
from joulecast.web import estimates, pages, results
from joulecast.web.answers import (
    STATIC,
    STYLES,
    DashboardPage,
    add_problem_handlers,
    document_problems,
    render,
)
from joulecast.web.dashboard import Dashboard, Here, WebSettings
from joulecast.web.security import AccessCheck, Protection, make_sign_in_router

# In the order of the navigation.
PAGES: tuple[DashboardPage, ...] = (
    pages.DEVICES, estimates.PAGE, pages.CURVES, pages.CAMPAIGNS, *results.PAGES, pages.FLEET
)  # fmt: skip
monitoring = APIRouter(tags=["monitoring"])
_MOST_CONNECTIONS = 1024
# Streams of progress would otherwise keep a server alive that was told to end.
_SHUTDOWN_S = 2


def create_app(settings: WebSettings) -> FastAPI:
    """Return the dashboard as an ASGI application."""
    app = FastAPI(
        title="Joulecast",
        summary="What training or running a neural network costs in joules, before it runs.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_run,
    )
    access, dashboard = AccessCheck(settings.token), Dashboard(settings)
    app.state.dashboard, app.state.pages = dashboard, PAGES
    routers = (page.router for page in PAGES)
    for router in (monitoring, make_sign_in_router(access), *routers):
        app.include_router(router, responses=document_problems(404, 413, 415, 422, 503))
    app.get("/", include_in_schema=False, response_class=HTMLResponse)(show_index)
    app.get(f"/static/{STYLES}", include_in_schema=False)(send_styles)
    app.mount("/static", StaticFiles(directory=STATIC))
    add_problem_handlers(app)
    # The one that was added last sees a request first.
    app.add_middleware(GZipMiddleware, minimum_size=2000)
    app.add_middleware(Protection, rate=settings.requests_per_second, access=access)
    app.add_middleware(dashboard.metrics.count_requests)
    return app


def show_index(request: Request) -> HTMLResponse:
    """Show what the dashboard has."""
    return render(request, "index.html")


def send_styles() -> FileResponse:
    """Send the style sheet, which lies with the templates of reports."""
    return FileResponse(TEMPLATES / STYLES, media_type="text/css")


class HealthReport(BaseModel):
    """Whether the server works."""

    status: str


@monitoring.get("/health")
async def get_health() -> HealthReport:
    """Say that the server answers; needs no token and reads nothing."""
    return HealthReport(status="ok")


@monitoring.get("/metrics", response_class=PlainTextResponse)
def get_metrics(here: Here) -> PlainTextResponse:
    """Return counts and durations in the text format of Prometheus."""
    content = generate_latest(here.metrics.registry)
    return PlainTextResponse(content, media_type=CONTENT_TYPE_LATEST)


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.dashboard.queue.close()


# ---------------------------------------------------------------------------------------------
# Serving


def serve_dashboard(
    settings: WebSettings, host: str, port: int, on_ready: Callable[[str], None] | None = None
) -> str:
    """Answer requests until the process is interrupted; return the address.

    Once it listens, ``on_ready`` is called with the address too. Port 0 is any free one.

    Raises:
        InputError: Others could reach it without a token, or the port cannot be used.
    """
    check_reach(settings, host)
    app = create_app(settings)
    with open_socket(host, port) as listening:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=settings.is_behind_proxy,
            forwarded_allow_ips="127.0.0.1,::1",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        if on_ready is not None:
            on_ready(address)
        uvicorn.Server(config).run([listening])
    return address


def check_reach(settings: WebSettings, host: str) -> None:
    """Raise InputError where others could reach the dashboard without a token."""
    if settings.token or (is_loopback(host) and not settings.is_behind_proxy):
        return
    where, own = f"on {host}", "host"
    if settings.is_behind_proxy:
        where, own = "through the proxy", "behind_proxy"
    raise InputError(
        f"{where} everybody who can reach it could use the dashboard: set JOULECAST_TOKEN or give "
        f"{arg('token_file')}, or leave {arg(own)} out"
    )


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or raise InputError if the address or port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        # Without what Python adds: (while attempting to bind on address ...).
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise InputError(
            f"the dashboard cannot listen on {host}:{port} ({reason}): give another "
            f"{arg('port')} or {arg('host')}"
        ) from error
