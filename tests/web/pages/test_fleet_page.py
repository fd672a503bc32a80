"""The Fleet page: devices, queue and faults."""

import pytest

from dashboard_browser import FITS, PHONE, save_screenshot


@pytest.mark.journey
def test_devices_queue_and_faults_are_shown(visit, fetch):
    page = visit("/fleet")
    assert page.get_by_role("heading", name="Fleet").first.is_visible()
    for caption in ("Devices of the fleet", "Campaigns, the earliest request first"):
        assert page.get_by_role("table", name=caption).is_visible()
    faults = page.get_by_role("table", name="What is wrong")
    assert "tablet" in faults.inner_text()
    save_screenshot(page, "fleet")
    page.set_viewport_size(PHONE)
    # Plots follow the window a moment later.
    page.wait_for_function(FITS)
    data = fetch("/api/fleet").json()
    assert not data["is_up"]
    assert {one["name"]: one["state"] for one in data["devices"]}["phone"] == "ready"
    assert {one["state"] for one in data["campaigns"]} >= {"done"}


@pytest.mark.journey
def test_page_is_accessible_in_the_dark_and_on_a_phone(check_access):
    check_access("/fleet", theme="dark", size=PHONE)


def test_without_a_fleet_the_page_says_how_to_start_one(client):
    page = client.get("/fleet")
    assert page.status_code == 200 and "joulecast fleet up FILE" in page.text
    assert client.get("/api/fleet").json() == {"is_up": False, "devices": [], "campaigns": []}
