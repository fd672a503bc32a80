"""Health and metrics: counts that follow requests, with few labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from web_examples import QUERY


def read_metrics(client):
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def find(metrics, name, **labels):
    return metrics.get((name, tuple(sorted(labels.items()))), 0.0)


def test_requests_and_estimates_are_counted(make_client):
    client = make_client()
    for _ in range(3):
        assert client.post("/api/estimate", json=QUERY).status_code == 200
    client.get("/health")
    found = read_metrics(client)
    route = {"method": "POST", "route": "/api/estimate", "status": "200"}
    assert find(found, "joulecast_http_requests_total", **route) == 3
    assert find(found, "joulecast_estimates_total", repeated="false") == 1
    assert find(found, "joulecast_estimates_total", repeated="true") == 2
    durations = "joulecast_http_request_duration_seconds_count"
    assert find(found, durations, route="/api/estimate") == 3
    assert find(found, "joulecast_fitted_profiles") == 1
    assert find(found, "joulecast_work_queue_length") == 0
    assert find(found, "process_resident_memory_bytes") > 2**20


def test_clients_cannot_make_labels(make_client):
    client = make_client()
    before = len(read_metrics(client))
    for number in range(30):
        client.get(f"/nothing/{number}")
        client.get(f"/static/{number}")
        client.request(f"METHOD{number}", "/health")
    found = read_metrics(client)
    assert len(found) - before < 70
    unknown = {"method": "GET", "route": "other", "status": "404"}
    assert find(found, "joulecast_http_requests_total", **unknown) == 30


def test_health(client):
    assert client.get("/health").json() == {"status": "ok"}
