"""Devices: every profile is shown with what it rests on."""

from __future__ import annotations

import pytest

from dashboard_browser import PHONE, has_sideways_scroll, save_screenshot
from dashboard_data import EVALUATED, FIRST, SECOND


def test_json_lists_every_profile(fetch):
    found = {one["device"]: one for one in fetch("/api/devices").json()["profiles"]}
    assert {FIRST, SECOND, EVALUATED} <= set(found)
    assert found[FIRST]["provenance"] == "simulated" and not found[FIRST]["is_shipped"]
    assert found[FIRST]["details"]["meters"] == ["simulated"]
    assert found[FIRST]["observation_count"] >= 18 and found[FIRST]["age_days"] < 1
    assert found[FIRST]["accuracies"] == []
    (accuracy,) = found[EVALUATED]["accuracies"]
    assert accuracy["family"] == "lenet5" and accuracy["nets"] == 3
    assert found[EVALUATED]["details"]["iecs"] > 0
    shipped = [one for one in found.values() if one["is_shipped"]]
    assert shipped and all(one["provenance"] == "measured" for one in shipped)


@pytest.mark.journey
def test_page_shows_profiles_and_leads_to_estimates(visit):
    page = visit("/devices")
    row = page.locator("tbody tr", has_text=EVALUATED)
    assert "simulated" in row.inner_text() and "MAPE" in row.inner_text()
    assert page.locator("nav [aria-current=page]").inner_text() == "Devices"
    save_screenshot(page, "devices")
    row.get_by_role("link", name="Estimate").click()
    page.wait_for_url("**/estimate?*")
    assert page.locator("#device option:checked").inner_text().startswith(EVALUATED)


@pytest.mark.journey
def test_page_fits_a_phone_in_the_dark(visit, check_access):
    page = visit("/devices", theme="dark", size=PHONE)
    assert not has_sideways_scroll(page)
    save_screenshot(page, "devices-phone-dark")
    check_access("/devices", theme="dark", size=PHONE)
    check_access("/devices")


def test_json_lists_the_catalogue_apart_from_profiles(fetch):
    found = fetch("/api/devices").json()
    catalogue = {one["name"]: one for one in found["catalogue"]}
    assert len(catalogue) >= 35 and "nvidia-h200" not in catalogue
    l4 = catalogue["nvidia-l4"]
    assert l4["provenance"] == "datasheet" and l4["power_limit_w"] == 72
    assert l4["flops_per_s"]["bf16"] == 121e12


@pytest.mark.journey
def test_catalogue_has_a_section_of_its_own_and_leads_to_estimates(visit):
    page = visit("/devices")
    row = page.locator("#catalogue tbody tr", has_text="nvidia-rtx-4090")
    assert "datasheet" in row.inner_text() and "1008" in row.inner_text()
    assert page.locator("#profiles", has_text="nvidia-rtx-4090").count() == 0
    row.get_by_role("link", name="Estimate").click()
    page.wait_for_url("**/estimate?*")
    assert page.locator("#device option:checked").inner_text().startswith("nvidia-rtx-4090 (gpu")
