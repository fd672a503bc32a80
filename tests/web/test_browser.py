"""All pages in a real browser: without errors, on a phone, in the dark, and by axe's rules."""

import json
import subprocess
import sys
import time

import pytest

import joulecast
from dashboard_browser import (
    DESKTOP,
    PHONE,
    Visitor,
    has_sideways_scroll,
    list_violations,
    run_server,
    save_screenshot,
    wait_until,
)
from dashboard_data import EVALUATED, FIRST, SECOND
from joulecast.families import make_family
from joulecast.features.campaigns import list_campaigns
from joulecast.system import units
from joulecast.web.app import PAGES, create_app
from joulecast.web.dashboard import WebSettings
from web_examples import TOKEN

pytestmark = pytest.mark.journey
START = f"/estimate?net=lenet5:4,8,16,16&batch=8&device={SECOND}&steps=1000"
SHOWN = {
    "/devices": "nvidia-rtx-4090",
    "/estimate": "Where the energy goes",
    "/curves": "Next point to measure",
    "/campaigns": "Campaign for",
    "/evaluations": "of lenet5 on simulated-7",
    "/plans": "Plan of 2 jobs",
    "/pruning": "pruned to 60%",
    "/scores": "simulated-7 (F)",
    "/fleet": "What is wrong",
}
WITH_PLOTS = ("/curves", "/campaigns", "/evaluations", "/plans", "/pruning")
# A campaign whose steps last long enough to be watched: it measures this machine's clock.
SLOW = """
import sys, time
from campaign_examples import SMALL, make_simulated_measurer
from joulecast.campaign import run_campaign
from joulecast.estimators import find_estimator
from joulecast.store import open_store

with open_store(sys.argv[1]) as store, make_simulated_measurer() as measurer:
    result = run_campaign(
        measurer, store, find_estimator("subtractive"), SMALL, points=500,
        on_progress=lambda now: time.sleep(0.4),
    )
    print(result.stopped, store.load_fit(result.profile_key, "subtractive") is not None)
"""
_WAIT_S = 60.0


@pytest.fixture(scope="module")
def visitor(chromium, dashboard_url):
    return Visitor(chromium, dashboard_url)


@pytest.fixture(autouse=True)
def no_errors(visitor):
    """Fail a test that leaves errors in the console, unless it takes them away."""
    yield
    found, visitor.errors = visitor.errors, []
    assert not found, "\n".join(found)


def wait_for_estimate(page, count=1):
    wait_until(page, f"Number(document.body.dataset.estimates ?? 0) >= {count}", _WAIT_S)


def move(page, action):
    """Do something that changes the estimate, and wait for the new one."""
    before = int(page.evaluate("document.body.dataset.estimates"))
    action()
    wait_for_estimate(page, before + 1)


def test_every_page(visitor):
    assert set(SHOWN) == {page.path for page in PAGES}
    for path, words in {"/": "OpenAPI", **SHOWN}.items():
        page = visitor.open(path)
        if path == "/estimate":
            wait_for_estimate(page)
        assert words in page.inner_text("main"), path
        if path in WITH_PLOTS:
            figure = page.locator("figure.plot").first
            assert "(simulated)" in figure.inner_text()
            assert figure.locator("svg text").first.is_visible()
            figure.locator("summary").click()
            assert figure.locator("tbody tr").count() > 0
        assert not has_sideways_scroll(page), path
        save_screenshot(page, path.strip("/") or "index")
        page.context.close()
        # axe is injected as a script, which the content security policy forbids.
        page = visitor.open(path, "dark", PHONE, bypass_csp=True)
        if path == "/estimate":
            wait_for_estimate(page)
        assert not has_sideways_scroll(page), path
        save_screenshot(page, f"{path.strip('/') or 'index'}-phone-dark")
        assert list_violations(page) == [], path
        page.context.close()


def test_navigation_theme_and_keyboard(visitor):
    page = visitor.open("/devices")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.select_option("#theme", "dark")
    dark = page.evaluate(background)
    page.reload()
    assert page.evaluate(background) == dark != light and page.input_value("#theme") == "dark"
    assert page.locator("nav [aria-current=page]").inner_text() == "Devices"
    row = page.locator("#profiles tbody tr", has_text=EVALUATED)
    assert "simulated" in row.inner_text() and "MAPE" in row.inner_text()
    row.get_by_role("link", name="Estimate").click()
    page.wait_for_url("**/estimate?*")
    assert page.locator("#device option:checked").inner_text().startswith(EVALUATED)
    page.context.close()
    page = visitor.open("/curves?profile=nvidia-h200&kind=conv2d")
    assert "measured on nvidia-h200" in page.inner_text("main")
    page.select_option("#kind", "linear")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**kind=linear**")
    assert "linear" in page.inner_text("h2")
    page.goto(f"{visitor.url}/curves?profile={FIRST}&kind=lstm")
    assert "no layer with kind lstm was measured" in page.inner_text("[role=alert]")
    # The browser reports the status 404.
    visitor.errors.clear()
    page.context.close()


def test_controls_of_the_estimate(visitor, tmp_path):
    page = visitor.open(START)
    wait_for_estimate(page)
    assert "simulated" in page.inner_text("#basis") and SECOND in page.inner_text("#basis")
    assert page.locator("#layers-plot .bar").count() == 5
    first = page.inner_text("#energy")
    move(page, lambda: page.fill("[aria-label^='c1,']", "6"))
    assert page.inner_text("#energy") != first and "net=lenet5%3A6%2C8" in page.url
    for control, value, result in (
        ("#steps", "5000", "#total-energy"),
        ("#battery", "3Wh", "#battery-share"),
        ("#grid", "fr", "#co2e"),
        ("#price", "0.50USD", "#cost"),
        ("#batch", "16", "#memory"),
    ):
        before = page.inner_text(result)
        move(page, lambda control=control, value=value: page.fill(control, value))
        assert page.inner_text(result) != before, control
    page.fill("#link_gb_s", "300")
    move(page, lambda: page.fill("#gpus", "4"))
    assert f"4 × {SECOND}" in page.inner_text("#basis") and "link_gb_s=300" in page.url
    for control in ("#precision", "#optimizer", "#phase"):
        move(page, lambda control=control: page.select_option(control, index=1))
    assert page.inner_text("#energy-title") == "Energy of an inference"
    # The keyboard alone moves a slider.
    page.focus("#batch-slider")
    move(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.input_value("#batch") == "32"
    # The address restores the whole choice.
    move(page, lambda: page.check("#with-3"))
    energy = page.inner_text("#total-energy")
    page.reload()
    wait_for_estimate(page)
    assert page.inner_text("#total-energy") == energy and page.is_checked("#with-3")
    boxes = page.locator("[name=with]:visible")
    for at in range(boxes.count()):
        boxes.nth(at).check()
    wait_until(page, "document.querySelectorAll('#comparison caption').length > 1", _WAIT_S)
    for table in page.locator("#comparison table").all():
        bars = table.locator(".bar").count()
        # A bar compares: a device that is alone with its coverage has none.
        assert bars == 0 or bars == table.locator("tbody tr").count() > 1
    file = tmp_path / "own.json"
    file.write_text(json.dumps(make_family("lenet5:3,5,9,11").to_dict()))
    move(page, lambda: page.set_input_files("#file", file))
    assert "own.json: 5 layers" in page.inner_text("#file-name") and "net=" not in page.url
    move(page, lambda: page.click("#forget-file"))
    page.fill("#battery", "much")
    page.locator("#error:not(:empty)").wait_for()
    assert "much" in page.inner_text("#error")
    move(page, lambda: page.fill("#battery", "15Wh"))
    assert page.inner_text("#error") == ""
    # The browser reports the status 422.
    visitor.errors.clear()
    values = [0.0, 3.3e-7, 9.996e-4, 0.0123, 0.9996, 1.0, 59.96, 999.7, 3599.7, 86_400.0, 5e9]
    names = ("energy", "power", "mass", "bytes", "duration", "share")
    for name in names:
        written = page.evaluate(
            "async ([name, values]) => values.map((await import('/static/units.js'))[name])",
            [f"format{name.capitalize()}", values],
        )
        assert written == [getattr(units, f"format_{name}")(value) for value in values], name
    page.context.close()


def test_dropped_result_is_shown_and_forgotten(visitor, dashboard_data, fetch):
    page = visitor.open("/plans")
    plan = json.loads((dashboard_data.results / "plan.json").read_text())
    plan["devices"][0]["jobs"][0]["job"] = "<b>dropped</b>"
    content = json.dumps(plan).encode()
    files = {"name": "mine.json", "mimeType": "application/json", "buffer": content}
    page.locator("#file").set_input_files(files)
    page.get_by_role("cell", name="<b>dropped</b>").first.wait_for()
    assert page.locator("#shown figure svg").count() == 1
    assert [one["key"] for one in fetch("/api/plans").json()["results"]] == ["plan.json"]
    page.locator("#file").set_input_files(dashboard_data.results / "pruning.json")
    page.get_by_text("the result of another command").wait_for()
    visitor.errors.clear()
    page.context.close()


@pytest.fixture
def running(dashboard_data):
    """Yield a process with a campaign that would take minutes."""
    command = [sys.executable, "-c", SLOW, str(dashboard_data.store)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": "tests"}
    )
    end_s = time.monotonic() + _WAIT_S
    while not any(one.is_running for one in list_campaigns(str(dashboard_data.store))):
        assert process.poll() is None and time.monotonic() < end_s
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_campaign_of_another_process_is_followed_and_stopped(running, visitor):
    page = visitor.open("/campaigns")
    points = "document.querySelectorAll('#campaigns tr td')[3].textContent"
    first = page.evaluate(points)
    wait_until(page, f"{points} !== '{first}'", _WAIT_S)
    assert page.inner_text("#report .answer").startswith("Running")
    # A refusal leaves the button as it was.
    refusal = {"status": 429, "json": {"detail": "too many requests: wait 1 s"}}
    page.route("**/stop", lambda route: route.fulfill(**refusal), times=1)
    page.get_by_role("button", name="Stop this campaign").click()
    page.get_by_text("too many requests").wait_for()
    page.get_by_role("button", name="Stop this campaign").click()
    page.get_by_text("Stopped by request: ").wait_for(timeout=1000 * _WAIT_S)
    assert page.locator("#stop").is_hidden()
    assert running.communicate(timeout=_WAIT_S)[0].strip() == "it was stopped by request True"
    page.route("**/api/campaigns/events*", lambda route: route.fulfill(status=503))
    page.reload()
    page.get_by_text("Live progress is not available: reload the page.").wait_for()
    visitor.errors.clear()
    page.context.close()


def test_readers_sign_in_come_back_to_their_choice_and_sign_out(web_store, chromium):
    app = create_app(WebSettings(web_store, token=TOKEN, requests_per_second=0))
    with run_server(app) as url:
        page = chromium.new_page(viewport=PHONE)
        page.goto(f"{url}/estimate?net=lenet5%3A4%2C8%2C16%2C16&batch=8")
        page.fill("#token", TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.locator("#batch").wait_for()
        # A script fills the controls from the address.
        wait_until(page, "document.getElementById('batch').value === '8'", _WAIT_S)
        assert "net=lenet5" in page.url and not has_sideways_scroll(page)
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/sign-in")
        page.goto(f"{url}/devices")
        assert page.url == f"{url}/sign-in?next=/devices"
        page.close()


def test_report_file_works_without_a_server(chromium, dashboard_data, tmp_path):
    out = tmp_path / "report.html"
    joulecast.report(dashboard_data.results / "plan.json", out=out)
    visitor = Visitor(chromium, out.as_uri())
    for theme, size in (("light", DESKTOP), ("dark", PHONE)):
        page = visitor.open("", theme, size, bypass_csp=theme == "dark")
        assert page.locator("figure svg text").first.is_visible()
        assert not has_sideways_scroll(page)
        save_screenshot(page, f"report-{theme}")
        assert theme == "light" or list_violations(page) == []
        page.context.close()
    assert visitor.errors == []
