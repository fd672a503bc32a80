"""Assemble the dashboard: its pages, its static files and what protects them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

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
