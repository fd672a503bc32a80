"""A running dashboard for tests, started once, and visits to it with the browser of browser.py.

``make test`` installs Debian's package ``chromium`` where it can. Without a browser its tests are
skipped, except in continuous integration. ``tests/web/conftest.py`` imports the fixtures.
"""

import fcntl
import os
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard_data import DashboardData, make_dashboard_data

SCREENSHOTS = "JOULECAST_SCREENSHOTS"
"""Name of a variable: the folder that pictures of pages are written to."""
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 900}
_START_S = 30.0
# Of the graphics of a browser without a screen, not of the page.
_HARMLESS = ("GPU stall due to ReadPixels", "willReadFrequently", "Automatic fallback to software")


@pytest.fixture(scope="session")
def dashboard_data(tmp_path_factory):
    """Return a filled store and a folder of results, the same for all processes of a test run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make_dashboard_data(tmp_path_factory.mktemp("dashboard"))
    shared = tmp_path_factory.getbasetemp().parent
    folder = shared / "dashboard"
    with (shared / "dashboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = tmp_path_factory.mktemp("dashboard")
            make_dashboard_data(made)
            made.rename(folder)
    return DashboardData(folder / "store.sqlite", folder / "results")


@pytest.fixture(scope="session")
def dashboard_url(dashboard_data):
    """Yield the address of a running dashboard."""
    from joulecast.web.app import create_app
    from joulecast.web.dashboard import WebSettings

    settings = WebSettings(str(dashboard_data.store), dashboard_data.results, requests_per_second=0)
    with run_server(create_app(settings)) as url:
        yield url


@pytest.fixture(scope="session")
def fetch(dashboard_url):
    """Return a function that asks the dashboard without a browser."""
    import httpx

    with httpx.Client(base_url=dashboard_url, timeout=60.0) as client:
        yield client.get


class Visitor:
    """A browser that opens pages of the dashboard, and collects the errors in their consoles.

    ``visitor.open("/devices", "dark", PHONE)`` returns a playwright Page.
    """

    def __init__(self, chromium, url):
        self.chromium, self.url, self.errors = chromium, url, []

    def open(self, path, theme="light", size=DESKTOP, bypass_csp=False):
        context = self.chromium.new_context(
            viewport=size,
            color_scheme=theme,
            reduced_motion="reduce",
            locale="en-GB",
            bypass_csp=bypass_csp,
        )
        page = context.new_page()
        page.on("console", self._add_message)
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        page.goto(self.url + path, wait_until="load")
        return page

    def _add_message(self, message):
        is_bad = message.type in ("error", "warning")
        if is_bad and not any(text in message.text for text in _HARMLESS):
            self.errors.append(f"{message.type}: {message.text}")


def list_violations(page):
    """Return what axe finds wrong with a page that was opened with ``bypass_csp``."""
    from axe_core_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"]})["violations"]
    return [
        f"{one['id']}: {one['help']} at "
        + ", ".join(" ".join(map(str, node["target"])) for node in one["nodes"][:4])
        for one in found
    ]


def save_screenshot(page, name):
    """Write a picture of a page, if a folder for pictures is set."""
    folder = os.environ.get(SCREENSHOTS)
    if folder:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path / f"{name}.png", full_page=True)


def wait_until(page, expression, limit_s=20.0):
    """Wait until a JavaScript expression is true.

    The content security policy forbids what ``page.wait_for_function`` does.
    """
    end_s = time.monotonic() + limit_s
    while not page.evaluate(expression):
        assert time.monotonic() < end_s, f"never true: {expression}"
        page.wait_for_timeout(10)


def has_sideways_scroll(page):
    """Return whether a page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


@contextmanager
def run_server(app):
    """Run an application in a thread; yield its address."""
    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        end_s = time.monotonic() + _START_S
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end_s, "the dashboard does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(_START_S)
