"""Pages of results: files of one folder, the store, and files that are dropped on the page."""

import json
import threading

import pytest

import joulecast
from dashboard_browser import FITS, PHONE, Visit, save_screenshot
from joulecast.reports.result_files import report_result

PAGES = {
    "/evaluations": ("Evaluation of lenet5 on simulated-7", "Estimated and measured energy"),
    "/plans": ("Plan of 2 jobs", "2 jobs on"),
    "/pruning": ("pruned to 60%", "Energy by layer"),
    "/scores": ("Score of simulated-7", None),
}
FILES = {"/plans": "plan.json", "/pruning": "pruning.json", "/scores": "score.json"}


@pytest.mark.journey
@pytest.mark.parametrize(("path", "words"), PAGES.items())
def test_page_shows_the_latest_result_with_its_plots(visit, path, words):
    title, plot = words
    page = visit(path)
    assert title in page.locator("#shown h2").first.inner_text()
    assert "simulated" in page.locator(".message.warning").inner_text()
    if plot:
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        heading = page.locator("figcaption > span").first.inner_text()
        assert plot in heading and "(simulated)" in heading
    else:
        assert "label" in page.get_by_role("img").first.get_attribute("alt")
    save_screenshot(page, path.strip("/"))
    page.set_viewport_size(PHONE)
    # Plots follow the window a moment later.
    page.wait_for_function(FITS)


@pytest.mark.journey
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible_in_the_dark_and_on_a_phone(check_access, path):
    check_access(path, theme="dark", size=PHONE)


@pytest.mark.parametrize(("path", "name"), FILES.items())
def test_json_twin_has_the_report_and_the_result(fetch, dashboard_data, path, name):
    answer = fetch(f"/api{path}", params={"result": name}).json()
    assert answer["chosen"] == name
    assert answer["result"] == json.loads((dashboard_data.results / name).read_text())
    assert answer["report"]["provenance"] == "simulated"
    assert all(one["rows"] for one in answer["report"]["sections"][0]["tables"])


def test_results_are_reported_in_the_threads_that_compute(client, monkeypatch):
    from joulecast.web import result_pages

    names = []

    def report(data, what):
        names.append(threading.current_thread().name)
        return report_result(data, what)

    monkeypatch.setattr(result_pages, "report_result", report)
    result = client.get("/api/scores").json()["result"]
    assert client.get("/scores").status_code == 200
    for path in ("/api/scores", "/scores/preview"):
        assert client.post(path, json=result).status_code == 200
    assert len(names) == 4 and all(name.startswith("joulecast-web") for name in names)


@pytest.mark.journey
def test_dropped_file_is_shown_and_forgotten(visit, dashboard_data, fetch):
    page = visit("/plans")
    plan = json.loads((dashboard_data.results / "plan.json").read_text())
    plan["devices"][0]["jobs"][0]["job"] = "<b>dropped</b>"
    content = json.dumps(plan).encode()
    files = {"name": "mine.json", "mimeType": "application/json", "buffer": content}
    page.locator("#file").set_input_files(files)
    page.get_by_role("rowheader", name="<b>dropped</b>").wait_for()
    page.locator("#shown .js-plotly-plot").first.wait_for()
    assert [one["key"] for one in fetch("/api/plans").json()["results"]] == ["plan.json"]


@pytest.mark.journey
def test_file_of_another_command_is_refused_in_one_line(visit, dashboard_data):
    page = visit("/pruning", is_checked=False)
    page.locator("#file").set_input_files(dashboard_data.results / "plan.json")
    page.get_by_text("the result of another command").wait_for()
    assert "pruned to 60%" in page.locator("#shown h2").first.inner_text()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'{"x": NaN}', 400),
        (b"[]", 422),
        (b'"text"', 422),
        (b'{"devices": 1, "planned_energy_j": 2, "gap_share": 3}', 422),
        (b'{"devices": [], "scale": {}, "notes": []}', 422),
    ],
)
@pytest.mark.parametrize("path", ["/api/plans", "/plans/preview"])
def test_damaged_data_is_refused(client, path, content, status):
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize("key", ["../plan.json", "/etc/passwd", "none", "store:none"])
def test_only_listed_results_can_be_chosen(client, key):
    assert client.get("/api/plans", params={"result": key}).status_code == 404


def test_empty_pages_name_the_command_that_makes_a_result(make_client, tmp_path):
    client = make_client(store=str(tmp_path / "none.sqlite"))
    for path, command in (("/plans", "plan"), ("/pruning", "prune"), ("/evaluations", "evaluate")):
        page = client.get(path)
        assert page.status_code == 200 and f"joulecast {command}" in page.text
        assert client.get(f"/api{path}").json()["results"] == []


@pytest.mark.journey
def test_report_file_works_without_a_server_and_is_accessible(chromium, dashboard_data, tmp_path):
    from axe_core_python.sync_playwright import Axe

    out = tmp_path / "report.html"
    joulecast.report(dashboard_data.results / "plan.json", out=out)
    for theme, bypass_csp in (("light", False), ("dark", True)):
        context = chromium.new_context(
            viewport=PHONE, color_scheme=theme, bypass_csp=bypass_csp, offline=True
        )
        page = context.new_page()
        visit = Visit(page, True)
        page.goto(out.as_uri(), wait_until="load")
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        page.wait_for_function(FITS)
        save_screenshot(page, f"report-{theme}")
        # axe is injected as a script, which the content security policy forbids.
        found = Axe().run(page)["violations"] if bypass_csp else []
        context.close()
        assert [one["id"] for one in found] == [] and visit.errors == []
