"""The Campaigns page: live progress of other processes, and the button that stops one."""

import json
import subprocess
import sys
import time

import pytest

from dashboard_browser import FITS, PHONE, save_screenshot
from joulecast.features.campaigns import find_campaign, list_campaigns, stop_campaign
from joulecast.store import open_store

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
_WAIT_S = 20.0


@pytest.fixture
def running(dashboard_data):
    """Yield a process with a campaign that would take minutes."""
    command = [sys.executable, "-c", SLOW, str(dashboard_data.store)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": "tests"}
    )
    end_s = time.monotonic() + _WAIT_S
    while not find_running(dashboard_data):
        assert process.poll() is None and time.monotonic() < end_s
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def find_running(data):
    return [one for one in list_campaigns(str(data.store)) if one.is_running]


@pytest.mark.journey
def test_campaign_of_another_process_is_followed_and_stopped(running, visit):
    page = visit("/campaigns")
    points = page.locator("#chosen .figures .value").nth(1)
    first = points.inner_text()
    page.wait_for_function(
        "first => document.querySelectorAll('#chosen .figures .value')[1].textContent !== first",
        arg=first,
    )
    assert page.locator("#lead").inner_text().startswith("Running")
    assert page.locator("#chosen .js-plotly-plot").count() == 1
    save_screenshot(page, "campaigns")
    page.set_viewport_size(PHONE)
    # Plots follow the window a moment later.
    page.wait_for_function(FITS)
    check_refused_stop(visit("/campaigns", is_checked=False))
    page.get_by_role("button", name="Stop this campaign").click()
    page.get_by_text("Stopped by request: ").wait_for()
    assert page.locator("#stop").is_hidden()
    assert "it was stopped by request" in page.locator("#reason").inner_text()
    assert running.communicate(timeout=_WAIT_S)[0].strip() == "it was stopped by request True"


def check_refused_stop(page):
    """Check that a campaign can be stopped after a refusal, on a page without live progress."""
    page.route("**/api/campaigns/events*", lambda route: route.abort())
    page.reload()
    page.get_by_text("The connection is lost: trying again.").wait_for()
    refusal = {"status": 429, "json": {"detail": "too many requests: wait 1 s"}}
    page.route("**/stop", lambda route: route.fulfill(**refusal))
    button = page.get_by_role("button", name="Stop this campaign")
    button.click()
    page.get_by_text("too many requests").wait_for()
    assert button.is_enabled()


@pytest.mark.journey
def test_page_says_when_it_cannot_follow(visit):
    page = visit("/campaigns", is_checked=False)
    page.route("**/api/campaigns/events*", lambda route: route.fulfill(status=503))
    page.reload()
    page.get_by_text("Live progress is not available: reload the page.").wait_for()


@pytest.mark.journey
def test_new_campaign_is_listed_even_if_their_number_stays(visit, fetch):
    """The list has a limit: a new campaign then takes the place of the oldest."""
    keys = ["new", *(one["key"] for one in fetch("/api/campaigns").json()["campaigns"][:-1])]
    rows = [{"key": key, "state": "", "figures": []} for key in keys]
    event = f"event: campaigns\ndata: {json.dumps({'campaigns': rows, 'chosen': None})}\n\n"
    answer = {"content_type": "text/event-stream", "body": event}
    page, loads = visit("/campaigns"), []
    page.route("**/api/campaigns/events*", lambda route: route.fulfill(**answer), times=1)
    page.on("load", lambda _: loads.append(page.url))
    page.reload()
    end_s = time.monotonic() + _WAIT_S
    while len(loads) < 2:
        assert time.monotonic() < end_s
        page.wait_for_timeout(20)


def test_campaigns_that_ended_are_listed_with_their_progress(fetch, dashboard_data):
    listed = fetch("/api/campaigns").json()["campaigns"]
    stored = list_campaigns(str(dashboard_data.store))
    assert [one["key"] for one in listed] == [one.key for one in stored]
    ended = next(one for one in listed if one["state"] == "done")
    history = fetch(f"/api/campaigns/{ended['key']}").json()
    assert history["campaign"] == ended
    assert [one["points"] for one in history["progress"]][-1] == ended["points"]


def test_unknown_campaigns_are_not_found(client):
    for path in ("/campaigns?campaign=none", "/api/campaigns/none"):
        assert client.get(path).status_code == 404
    answer = client.post("/api/campaigns/none/stop", json={})
    assert answer.status_code == 404 and "choose one" in answer.json()["detail"]


def test_a_page_of_another_origin_cannot_stop_a_campaign(client, web_store):
    key = list_campaigns(web_store)[0].key
    path = f"/api/campaigns/{key}/stop"
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert client.post(path, json={}, headers=foreign).status_code == 403
    assert client.post(path, data={"x": "1"}).status_code == 415
    assert not find_campaign(key, web_store).campaign.is_stop_requested
    # It has ended, so nothing can be stopped either.
    answer = client.post(path, json={})
    assert answer.status_code == 404 and "has ended" in answer.json()["detail"]


def test_running_campaign_is_stopped_by_the_api(make_client, tmp_path):
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as store, store.campaigns.add("net", "phone", "k", "modelled") as key:
        answer = make_client(store=place).post(f"/api/campaigns/{key}/stop", json={})
        assert answer.json()["is_stop_requested"]
        assert store.campaigns.is_stop_requested(key)
        assert "Stopping after" in make_client(store=place).get("/campaigns").text


def test_empty_store_says_how_to_start_a_campaign(make_client, tmp_path):
    client = make_client(store=str(tmp_path / "none.sqlite"))
    page = client.get("/campaigns")
    assert page.status_code == 200 and "joulecast profile NET" in page.text
    assert client.get("/api/campaigns").json() == {"campaigns": []}
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(Exception, match="no store"):
        stop_campaign("k", str(tmp_path / "none.sqlite"))


@pytest.mark.journey
def test_page_is_accessible_in_the_dark_and_on_a_phone(check_access):
    check_access("/campaigns", theme="dark", size=PHONE)
