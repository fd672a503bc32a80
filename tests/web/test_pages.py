"""Pages and their JSON twins, results, problems, metrics and the queue of work."""

import asyncio
import json
import math
import os
import threading

import pytest
from fastapi import HTTPException
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import StreamingResponse

from dashboard_data import EVALUATED, FIRST, SECOND
from joulecast.features.campaigns import find_campaign, list_campaigns, stop_campaign
from joulecast.features.device_overview import describe_age
from joulecast.features.report import read_result, report_result
from joulecast.store import open_store
from joulecast.system.errors import (
    FileError,
    InputError,
    MeasurementError,
    MissingError,
    StoreError,
)
from joulecast.web import dashboard, pages, results
from joulecast.web.answers import find_status, make_problem
from joulecast.web.dashboard import WorkQueue
from joulecast.web.results import choose_source, list_result_files
from joulecast.web.security import HEADERS
from report_examples import PRUNING, make_plan
from web_examples import QUERY

JSON = {"Content-Type": "application/json"}
BUG = "secret detail of a bug"
CURVE = f"profile={FIRST}&kind=conv2d&batch=512"


# Devices and curves


def test_devices_are_listed_with_what_they_rest_on(fetch):
    answer = fetch("/api/devices").json()
    found = {one["device"]: one for one in answer["profiles"]}
    assert {FIRST, SECOND, EVALUATED} <= set(found)
    assert found[FIRST]["provenance"] == "simulated" and not found[FIRST]["is_shipped"]
    assert found[FIRST]["details"]["meters"] == ["simulated"]
    assert found[FIRST]["observation_count"] >= 18 and found[FIRST]["age_days"] < 1
    (accuracy,) = found[EVALUATED]["accuracies"]
    assert accuracy["family"] == "lenet5" and accuracy["nets"] == 3
    assert found[EVALUATED]["details"]["iecs"] > 0
    shipped = [one for one in found.values() if one["is_shipped"]]
    assert shipped and all(one["provenance"] == "measured" for one in shipped)
    catalogue = {one["name"]: one for one in answer["catalogue"]}
    assert len(catalogue) >= 35 and "nvidia-h200" not in catalogue
    l4 = catalogue["nvidia-l4"]
    assert l4["provenance"] == "datasheet" and l4["flops_per_s"]["bf16"] == 121e12


@pytest.mark.parametrize(
    ("days", "words"),
    [(0.01, "less than an hour"), (0.05, "1 hour"), (1.4, "1 day"), (40, "40 days"), (800, "2.2")],
)
def test_ages(days, words):
    assert describe_age(days).startswith(words)


def test_curves_have_a_grid_points_and_the_next_one(fetch):
    found = fetch(f"/api/curves?{CURVE}").json()
    assert found["device"] == FIRST and found["provenance"] == "simulated"
    assert found["curve"]["kind"] == "conv2d" and found["curve"]["batch"] == 512
    count = math.prod(len(axis) for axis in found["axes"])
    assert len(found["means_j"]) == len(found["sds_j"]) == count
    assert all(value > 0 for value in (*found["means_j"], *found["sds_j"]))
    assert len(found["points"]) == found["curve"]["point_count"] > 0
    measured = {tuple(point["widths"]) for point in found["points"]}
    assert tuple(found["next_widths"]) not in measured

    for query, status, words in (
        ("profile=nothing", 404, "nothing"),
        (f"profile={FIRST}&kind=lstm", 404, "no layer with kind lstm"),
        ("batch=-1", 422, "batch"),
    ):
        answer = fetch(f"/api/curves?{query}")
        assert answer.status_code == status and words in answer.json()["detail"]


# Campaigns and fleet


def test_campaigns_are_listed_with_their_progress(fetch, dashboard_data):
    listed = fetch("/api/campaigns").json()["campaigns"]
    stored = list_campaigns(str(dashboard_data.store))
    assert [one["key"] for one in listed] == [one.key for one in stored]
    ended = next(one for one in listed if one["state"] == "done")
    history = fetch(f"/api/campaigns/{ended['key']}").json()
    assert history["campaign"] == ended
    assert history["progress"][-1]["points"] == ended["points"]


def test_campaigns_are_stopped_by_the_api_only_from_here(make_client, client, web_store, tmp_path):
    ended = f"/api/campaigns/{list_campaigns(web_store)[0].key}/stop"
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert client.post(ended, json={}, headers=foreign).status_code == 403
    assert client.post(ended, data={"x": "1"}).status_code == 415
    assert "has ended" in client.post(ended, json={}).json()["detail"]
    for path in ("/campaigns?campaign=none", "/api/campaigns/none"):
        assert client.get(path).status_code == 404
    assert client.post("/api/campaigns/none/stop", json={}).status_code == 404
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as store, store.campaigns.add("net", "phone", "k", "modelled") as key:
        own = make_client(store=place)
        assert own.post(f"/api/campaigns/{key}/stop", json={}).json()["is_stop_requested"]
        assert find_campaign(key, place).campaign.is_stop_requested
        assert "Stopping after" in own.get("/campaigns").text


def test_fleet_is_described_without_its_secrets(fetch):
    found = fetch("/api/fleet").json()
    assert not found["is_up"] and "payload" not in found["devices"][0]
    assert {one["name"]: one["state"] for one in found["devices"]}["phone"] == "ready"
    assert "done" in {one["state"] for one in found["campaigns"]}


def test_pages_of_an_empty_store_say_what_to_do(make_client, tmp_path):
    client = make_client(store=str(tmp_path / "none.sqlite"))
    for path, words in (
        ("/devices", "joulecast profile NET"),
        ("/estimate", "joulecast profile NET"),
        ("/curves", "joulecast profile NET"),
        ("/campaigns", "joulecast profile NET"),
        ("/fleet", "joulecast fleet up FILE"),
        ("/plans", "joulecast plan"),
        ("/pruning", "joulecast prune"),
        ("/evaluations", "joulecast evaluate"),
    ):
        page = client.get(path)
        assert page.status_code == 200 and words in page.text, path
    assert client.get("/api/campaigns").json() == {"campaigns": []}
    assert client.get("/api/fleet").json() == {"is_up": False, "devices": [], "campaigns": []}
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(MissingError, match="no store"):
        stop_campaign("k", str(tmp_path / "none.sqlite"))


# Results


@pytest.mark.parametrize("kind", ["plan", "pruning", "score"])
def test_results_have_the_report_and_what_the_command_wrote(fetch, dashboard_data, kind):
    path = {"plan": "/api/plans", "score": "/api/scores"}.get(kind, f"/api/{kind}")
    answer = fetch(path, params={"result": f"{kind}.json"}).json()
    assert answer["result"] == json.loads((dashboard_data.results / f"{kind}.json").read_text())
    report = answer["report"]
    assert (report["kind"], report["provenance"]) == (kind, "simulated")
    assert any(block.get("rows") for block in report["blocks"])


def test_scores_come_from_the_store_and_from_publications(fetch):
    listed = fetch("/api/scores").json()["results"]
    own = [one["title"] for one in listed if one["origin"] == "store"]
    assert any(EVALUATED in title for title in own) and not any(SECOND in one for one in own)
    assert listed[-1]["origin"] == "published"
    found = fetch("/api/scores", params={"result": "published"}).json()["report"]
    assert found["title"] == "Scores of 8 devices" and found["provenance"] == "imported"


def test_store_that_is_busy_once_is_read_again(make_client, dashboard_data, monkeypatch):
    client = make_client(store=str(dashboard_data.store))

    def fail(profile):
        raise StoreError("the store is busy")

    def count_own():
        found = client.get("/api/scores").json()["results"]
        return sum(one["origin"] == "store" for one in found)

    with monkeypatch.context() as patch:
        patch.setattr(dashboard, "read_profile_details", fail)
        assert count_own() == 0
    assert count_own() > 0


def test_results_and_curves_are_computed_in_the_threads_of_the_queue(client, monkeypatch):
    names = []

    def note(function):
        def call(*args):
            names.append(threading.current_thread().name)
            return function(*args)

        return call

    monkeypatch.setattr(results, "report_result", note(report_result))
    monkeypatch.setattr(pages, "sample_layer_curve", note(pages.sample_layer_curve))
    result = client.get("/api/scores").json()["result"]
    for path in ("/scores", "/curves", "/api/curves"):
        assert client.get(path).status_code == 200
    for path in ("/api/scores", "/scores/preview"):
        assert client.post(path, json=result).status_code == 200
    assert len(names) == 6 and all(name.startswith("joulecast-web") for name in names)


def test_only_a_plan_that_is_sent_is_reported(client):
    damaged = {"devices": 1, "planned_energy_j": 2, "gap_share": 3}
    for data in ([], "text", damaged, PRUNING):
        for path in ("/api/plans", "/plans/preview"):
            answer = client.post(path, json=data)
            assert answer.status_code == 422 and "\n" not in answer.json()["detail"]
    for key in ("../plan.json", "/etc/passwd", "none", "store:none"):
        assert client.get("/api/plans", params={"result": key}).status_code == 404
    answer = client.post("/api/plans", json=make_plan().to_dict()).json()
    assert answer["title"] == "Plan of 1 job on 1 device"
    assert ["phone", "night"] in [
        row[:2] for one in answer["blocks"] for row in one.get("rows", ())
    ]


SCORE = {"devices": [], "scale": {}, "notes": []}


def test_files_are_recognised_by_their_content_and_read_once(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    for age, name in enumerate(["z.json", "m.json", "a.json"]):
        (folder / name).write_text(json.dumps(SCORE))
        os.utime(folder / name, (1000 - age, 1000 - age))
    (folder / "other.json").write_text("{}")
    (folder / "damaged.json").write_text("{")
    (folder / "score.txt").write_text(json.dumps(SCORE))
    (folder / "folder.json").mkdir()
    (tmp_path / "outside.json").write_text(json.dumps(SCORE))
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    reads = []
    monkeypatch.setattr(
        results, "read_result", lambda path: (reads.append(1), read_result(path))[1]
    )
    for _ in range(3):
        found = list_result_files(folder, "score")
        assert [one.key for one in found] == ["z.json", "m.json", "a.json"]
        assert list_result_files(folder, "plan") == []
    assert len(reads) == 5 and found[0].load() == SCORE
    (folder / "z.json").write_text(json.dumps({**SCORE, "notes": ["new"]}))
    assert found[0].load()["notes"] == ["new"]
    monkeypatch.setattr(results, "_MOST_FILES", 2)
    assert len(list_result_files(folder, "score")) <= 2
    assert list_result_files(None, "score") == list_result_files(tmp_path / "none", "score") == []
    (folder / "m.json").unlink()
    with pytest.raises(MissingError, match=r"m\.json was changed or removed") as caught:
        found[1].load()
    assert str(tmp_path) not in str(caught.value)
    assert choose_source([], "") is None


# Problems


def test_errors_are_one_line_and_never_a_traceback(make_client, caplog):
    client = make_client()

    def fail():
        raise RuntimeError(BUG)

    def refuse():
        raise MissingError("there is\nno profile \x1b[2J")

    def write():
        yield b"half"
        raise RuntimeError(BUG)

    client.app.get("/api/bug")(fail)
    client.app.get("/page-with-bug")(fail)
    client.app.get("/api/missing")(refuse)
    client.app.get("/api/half")(lambda: StreamingResponse(write()))
    assert client.get("/api/missing").json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no profile \\x1b[2J",
    }
    answer = client.get("/api/bug")
    page = client.get("/page-with-bug", headers={"Accept": "text/html"})
    assert "<h1>Internal Server Error</h1>" in page.text and BUG in caplog.text
    for one in (answer, page):
        assert one.status_code == 500 and BUG not in one.text
        assert {name: one.headers.get(name) for name in HEADERS} == HEADERS
    # An answer that has started is not answered twice.
    assert client.get("/api/half").content == b"half"
    missing = client.get("/nothing/<script>", headers={"Accept": "text/html"})
    assert missing.status_code == 404 and "<script>" not in missing.text.split("<main")[1]
    errors = (InputError, FileError, MissingError, StoreError, MeasurementError)
    assert [find_status(one("x")) for one in errors] == [422, 422, 404, 503, 500]
    assert len(make_problem(422, "x" * 10_000).body) < 1000


# Metrics and the queue of work


def read_metrics(client):
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_and_estimates_are_counted_with_few_labels(make_client):
    client = make_client()
    for _ in range(3):
        assert client.post("/api/estimate", json=QUERY).status_code == 200
    found = read_metrics(client)
    assert found["joulecast_http_requests_total", "/api/estimate", "200", "POST"] == 3
    assert found["joulecast_estimates_total", "false"] == 1
    assert found["joulecast_estimates_total", "true"] == 2
    assert found["joulecast_http_request_duration_seconds_count", "/api/estimate"] == 3
    assert found["joulecast_fitted_profiles",] == 1 and found["joulecast_work_queue_length",] == 0
    assert found["process_resident_memory_bytes",] > 2**20
    for number in range(30):
        client.get(f"/nothing/{number}")
        client.get(f"/static/{number}")
        client.request(f"METHOD{number}", "/health")
    later = read_metrics(client)
    assert len(later) - len(found) < 70
    assert later["joulecast_http_requests_total", "404", "GET", "other"] >= 30


def test_work_comes_back_and_is_refused_when_it_is_too_much():
    queue = WorkQueue(1)
    assert asyncio.run(queue.run(max, 1, 2)) == 2
    assert len({asyncio.run(queue.run(threading.get_ident)) for _ in range(3)}) == 1
    with pytest.raises(ZeroDivisionError):
        asyncio.run(queue.run(lambda: 1 / 0))
    queue.close()
    # An application may be started again.
    assert asyncio.run(queue.run(max, 3, 4)) == 4 and queue.held_count == 0
    queue.close()
    for queue, headers in (
        (WorkQueue(1, most_waiting=0), {"Retry-After": "1"}),
        (WorkQueue(1, limit_s=0.01), {"Retry-After": "10"}),
    ):
        release = threading.Event()
        with pytest.raises(HTTPException) as caught:
            asyncio.run(queue.run(release.wait, 60))
        assert caught.value.status_code == 503 and caught.value.headers == headers
        release.set()
        queue.close()


def test_large_bodies_are_not_parsed_on_the_event_loop(client, monkeypatch):
    from joulecast.web import answers

    is_on_loop, parse = [], answers.parse_json

    def note(content):
        is_on_loop.append(asyncio._get_running_loop() is not None)
        return parse(content)

    monkeypatch.setattr(answers, "parse_json", note)
    for size in (10, 100_000):
        client.post("/api/plans", content=b"[" + b" " * size + b"]", headers=JSON)
    assert is_on_loop == [True, False]
