"""Assemble the dashboard: its pages, its static files and what protects them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from joulecast.features.estimate_service import EstimateService
from joulecast.web.access import AccessCheck
from joulecast.web.estimate_api import router as estimate_router
from joulecast.web.monitoring import RequestMetrics, ServerMetrics
from joulecast.web.monitoring import router as monitoring_router
from joulecast.web.page_data import PageData
from joulecast.web.pages import (
    campaigns_page,
    curves_page,
    devices_page,
    estimate_page,
    evaluations_page,
    fleet_page,
    plans_page,
    pruning_page,
    scores_page,
)
from joulecast.web.problems import add_problem_handlers, document_problems
from joulecast.web.protection import Protection
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.sign_in import make_sign_in_router
from joulecast.web.static_files import router as static_router
from joulecast.web.web_settings import WebSettings
from joulecast.web.work_queue import WorkQueue

# In the order of the navigation.
PAGES: tuple[DashboardPage, ...] = (
    devices_page.PAGE,
    estimate_page.PAGE,
    curves_page.PAGE,
    campaigns_page.PAGE,
    evaluations_page.PAGE,
    plans_page.PAGE,
    pruning_page.PAGE,
    scores_page.PAGE,
    fleet_page.PAGE,
)


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
    app.state.page_data = PageData(settings.store, service)
    app.state.work_queue = queue
    app.state.metrics = metrics
    app.get("/", include_in_schema=False, response_class=HTMLResponse)(show_index)
    routers = (static_router, monitoring_router, estimate_router, make_sign_in_router(access))
    for router in (*routers, *(page.router for page in PAGES)):
        app.include_router(router, responses=document_problems(404, 413, 415, 422, 503))
    add_problem_handlers(app)
    # The one that was added last sees a request first.
    app.add_middleware(Protection, settings=settings, access=access)
    app.add_middleware(RequestMetrics, metrics=metrics)
    return app


def show_index(request: Request) -> HTMLResponse:
    """Show what the dashboard has."""
    return render(request, "index.html")


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    yield
    queue: WorkQueue = app.state.work_queue
    queue.close()
