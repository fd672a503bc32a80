"""Open pages of a dashboard in a real browser, collect what goes wrong, and take pictures."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCREENSHOTS = "JOULECAST_SCREENSHOTS"
"""Name of a variable: the folder that pictures of pages are written to."""
PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 900}
_START_S = 30.0
# Of the graphics of a browser without a screen, not of the page.
_HARMLESS = ("GPU stall due to ReadPixels", "willReadFrequently", "Automatic fallback to software")


@dataclass
class Visit:
    """A browser context and what went wrong in it."""

    context: object
    is_checked: bool
    errors: list = field(default_factory=list)

    def listen(self, page):
        """Collect errors and warnings of a page."""
        page.on("console", self._add_message)
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))

    def _add_message(self, message):
        is_bad = message.type in ("error", "warning")
        if is_bad and not any(text in message.text for text in _HARMLESS):
            self.errors.append(f"{message.type}: {message.text}")


def save_screenshot(page, name):
    """Write a picture of a page, if a folder for pictures is set."""
    folder = os.environ.get(SCREENSHOTS)
    if folder:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path / f"{name}.png", full_page=True)


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


def describe_violation(found):
    """Return a violation that axe found, in one line."""
    places = ", ".join(" ".join(map(str, node["target"])) for node in found["nodes"][:4])
    return f"{found['id']}: {found['help']} at {places}"
