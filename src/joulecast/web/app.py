"""Assemble the dashboard: its pages, its static files and what protects them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from joulecast.features.estimate_service import EstimateService
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
from joulecast.web.monitoring import RequestMetrics, ServerMetrics
from joulecast.web.monitoring import router as monitoring_router
from joulecast.web.security import AccessCheck, Protection, make_sign_in_router
from joulecast.web.settings import WebSettings
from joulecast.web.work import WorkQueue

_DEVICES, _CURVES, _CAMPAIGNS, _FLEET = pages.PAGES
# In the order of the navigation.
PAGES: tuple[DashboardPage, ...] = (
    _DEVICES, estimates.PAGE, _CURVES, _CAMPAIGNS, *results.PAGES, _FLEET
)  # fmt: skip


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
    service, queue = EstimateService(settings.store), WorkQueue(settings.workers)
    access, metrics = AccessCheck(settings.token), ServerMetrics(service, queue)
    app.state.settings = settings
    app.state.pages = PAGES
    app.state.estimate_service = service
    app.state.page_data = pages.PageData(settings.store, service)
    app.state.work_queue = queue
    app.state.metrics = metrics
    routers = (monitoring_router, estimates.router, make_sign_in_router(access))
    for router in (*routers, *(page.router for page in PAGES)):
        app.include_router(router, responses=document_problems(404, 413, 415, 422, 503))
    app.get("/", include_in_schema=False, response_class=HTMLResponse)(show_index)
    app.get(f"/static/{STYLES}", include_in_schema=False)(send_styles)
    app.mount("/static", StaticFiles(directory=STATIC))
    add_problem_handlers(app)
    # The one that was added last sees a request first.
    app.add_middleware(GZipMiddleware, minimum_size=2000)
    app.add_middleware(Protection, settings=settings, access=access)
    app.add_middleware(RequestMetrics, metrics=metrics)
    return app


def show_index(request: Request) -> HTMLResponse:
    """Show what the dashboard has."""
    return render(request, "index.html")


def send_styles() -> FileResponse:
    """Send the style sheet, which lies with the templates of reports."""
    return FileResponse(TEMPLATES / STYLES, media_type="text/css")


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    yield
    queue: WorkQueue = app.state.work_queue
    queue.close()
