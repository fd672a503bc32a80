"""What all pages share: navigation, theme, keyboard, and plotly within the policy."""

from __future__ import annotations

import pytest

from dashboard_browser import PHONE, has_sideways_scroll, save_screenshot, wait_until
from joulecast.web.rendering import PLOTLY, STATIC, find_static, list_plotly_style_ids

BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


@pytest.mark.journey
def test_theme_is_chosen_and_remembered(visit):
    page = visit("/devices", theme="light")
    light = page.evaluate(BACKGROUND)
    page.select_option("#theme", "dark")
    dark = page.evaluate(BACKGROUND)
    assert dark != light
    page.reload()
    assert page.evaluate(BACKGROUND) == dark and page.input_value("#theme") == "dark"
    page.select_option("#theme", "auto")
    assert page.evaluate(BACKGROUND) == light


@pytest.mark.journey
def test_keyboard_skips_to_the_content(visit):
    page = visit("/devices")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.journey
def test_index_leads_to_every_page(visit, fetch, check_access):
    page = visit("/", size=PHONE)
    assert not has_sideways_scroll(page)
    save_screenshot(page, "index-phone")
    addresses = page.locator("nav a").evaluate_all("links => links.map((one) => one.pathname)")
    assert {"/devices", "/estimate", "/curves"} <= set(addresses)
    for address in addresses:
        assert fetch(address).status_code == 200, address
        assert page.locator(f"main a[href='{address}']").count() == 1
    check_access("/", size=PHONE)


@pytest.mark.journey
def test_plots_that_were_replaced_are_forgotten(visit, dashboard_data):
    page = visit("/plans")
    page.locator("#shown .js-plotly-plot .main-svg").first.wait_for()
    page.evaluate("window.earlier = document.querySelector('#shown .js-plotly-plot')")
    assert page.evaluate("window.earlier.data !== undefined")
    page.locator("#file").set_input_files(dashboard_data.results / "plan.json")
    wait_until(page, "!window.earlier.isConnected")
    page.locator("#shown .js-plotly-plot .main-svg").first.wait_for()
    # plotly keeps its data at the element, and listens to the window for it.
    assert page.evaluate("window.earlier.data === undefined")


@pytest.mark.journey
def test_style_sheet_has_the_rules_that_plotly_would_add(chromium):
    """Plots are drawn without a policy: what the script adds then has to be in the style sheet."""
    page = chromium.new_page()
    page.set_content("<div id='plot'></div>")
    page.add_script_tag(path=find_static(PLOTLY))
    page.evaluate("Plotly.newPlot('plot', [{y: [1, 2]}])")
    rules = page.evaluate(
        "[...document.getElementById('plotly.js-style-global').sheet.cssRules]"
        ".map((one) => one.cssText)"
    )
    added = page.evaluate("[...document.querySelectorAll('style')].map((one) => one.id)")
    page.close()
    sheet = (STATIC / "plotly.css").read_text(encoding="utf-8")
    assert len(rules) > 30
    assert [one for one in rules if one not in sheet and "plotly-cloud" not in one] == []
    assert set(added) == {"plotly.js-style-global", *list_plotly_style_ids()}
