"""A real browser for tests, without a window."""

import os
import shutil

import pytest


@pytest.fixture(scope="module")
def chromium():
    """Yield a browser; skip where it is absent, but fail in continuous integration.

    Of a module, not of the session: while it is open, this thread has a running event loop, which
    other tests must not have.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The tests run as root in containers, where Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
