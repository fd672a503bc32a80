"""Assemble the dashboard: its pages, its static files and what protects them."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from joulecast.api.estimate_service import EstimateService
from joulecast.web.page_data import PageData
from joulecast.web.pages import curves_page, devices_page
from joulecast.web.rendering import DashboardPage, render
from joulecast.web.static_files import router as static_router
from joulecast.web.web_settings import WebSettings

# In the order of the navigation.
PAGES: tuple[DashboardPage, ...] = (devices_page.PAGE, curves_page.PAGE)


def create_app(settings: WebSettings) -> FastAPI:
    """Return the dashboard as an ASGI application."""
    app = FastAPI(title="Joulecast", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.state.settings = settings
    app.state.pages = PAGES
    app.state.page_data = PageData(settings.store, EstimateService(settings.store))
    app.get("/", include_in_schema=False, response_class=HTMLResponse)(show_index)
    app.include_router(static_router)
    for page in PAGES:
        app.include_router(page.router)
    return app


def show_index(request: Request) -> HTMLResponse:
    """Show what the dashboard has."""
    return render(request, "index.html")
