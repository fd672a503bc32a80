"""Curves: surfaces with measured points, uncertainty and the next point."""

from __future__ import annotations

import math
import threading

import pytest

from dashboard_browser import PHONE, has_sideways_scroll, save_screenshot
from dashboard_data import FIRST
from joulecast.features.layer_curves import sample_layer_curve

CURVE = f"profile={FIRST}&kind=conv2d&batch=512"
LINE = f"/curves?profile={FIRST}&kind=linear"
# Drawing in three dimensions takes seconds without a graphics card: once is enough.
SURFACE = "/curves?profile=nvidia-h200&kind=conv2d"


def test_json_has_the_surface_and_its_points(fetch):
    found = fetch(f"/api/curves?{CURVE}").json()
    assert found["device"] == FIRST and found["provenance"] == "simulated"
    assert found["curve"]["kind"] == "conv2d" and found["curve"]["batch"] == 512
    count = math.prod(len(axis) for axis in found["axes"])
    assert len(found["means_j"]) == len(found["sds_j"]) == count
    assert all(value > 0 for value in (*found["means_j"], *found["sds_j"]))
    assert len(found["points"]) == found["curve"]["point_count"] > 0
    # The next point has the largest standard deviation of all that were not measured.
    measured = {tuple(point["widths"]) for point in found["points"]}
    assert tuple(found["next_widths"]) not in measured


@pytest.mark.parametrize("path", ["/curves", "/api/curves"])
def test_curves_are_sampled_in_the_threads_that_compute(fetch, monkeypatch, path):
    from joulecast.web.pages import curves_page

    names = []

    def sample(*args):
        names.append(threading.current_thread().name)
        return sample_layer_curve(*args)

    monkeypatch.setattr(curves_page, "sample_layer_curve", sample)
    assert fetch(f"{path}?{CURVE}").status_code == 200
    assert len(names) == 1 and names[0].startswith("joulecast-web")


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("profile=nothing", 404, "there is no profile of 'nothing'"),
        (f"profile={FIRST}&kind=lstm", 404, "no layer with kind lstm was measured"),
        ("batch=-1", 422, "batch"),
    ],
)
def test_bad_choice_is_one_clear_line(fetch, query, status, words):
    answer = fetch(f"/api/curves?{query}")
    assert answer.status_code == status
    assert words in answer.json()["detail"] and "\n" not in answer.json()["detail"]


@pytest.mark.journey
def test_page_draws_the_surface(visit):
    page = visit(SURFACE)
    page.locator("#curve canvas").first.wait_for()
    assert "Next point to measure" in page.inner_text("main")
    assert "measured on nvidia-h200" in page.inner_text("main")
    page.locator("#curve summary").click()
    assert page.locator("#curve tbody tr", has_text="next point").count() == 1
    page.locator("#curve summary").click()
    save_screenshot(page, "curves")
    page.select_option("#kind", "linear")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**kind=linear**")
    assert "linear" in page.inner_text("h2")


@pytest.mark.journey
def test_page_fits_a_phone_in_the_dark(visit, check_access):
    page = visit(LINE, theme="dark", size=PHONE)
    page.locator("#curve .main-svg").first.wait_for()
    assert "(simulated)" in page.inner_text("#curve-heading")
    assert not has_sideways_scroll(page)
    save_screenshot(page, "curves-phone-dark")
    check_access(LINE, theme="dark", size=PHONE)
    check_access(LINE)


@pytest.mark.journey
def test_unknown_layer_is_explained_on_the_page(visit):
    page = visit(f"/curves?profile={FIRST}&kind=lstm", is_checked=False)
    assert "no layer with kind lstm was measured" in page.inner_text("[role=alert]")
    assert page.locator("#kind").count() == 1
