"""What a dashboard refuses before it reads a request, and the headers of every answer."""

from __future__ import annotations

import pytest

from joulecast.web.protection import HEADERS
from web_examples import QUERY, TOKEN

HERE = "http://127.0.0.1:8378"


@pytest.mark.parametrize("host", ["127.0.0.1:8378", "localhost:1", "[::1]:8378", "127.0.0.9"])
def test_this_machine_has_several_names(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8378",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "[",
        "10.0.0.1",
    ],
)
def test_pages_under_other_names_do_not_reach_a_dashboard_without_token(client, host):
    for path in ("/", "/health", "/static/joulecast.css", "/api/openapi.json"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403 and "this machine only" in answer.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://[", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_pages_of_other_origins_cannot_act(client, make_client, headers):
    answer = client.post("/api/estimate", json=QUERY, headers=headers)
    assert answer.status_code == 403 and "another origin" in answer.json()["detail"]
    # Nor sign somebody in.
    guarded = make_client(HERE, token=TOKEN)
    refused = guarded.post("/sign-in", data={"token": TOKEN}, headers=headers)
    assert refused.status_code == 403 and "Set-Cookie" not in refused.headers


def test_own_pages_and_programs_can_act(client, make_client):
    own = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/estimate", json=QUERY, headers=own).status_code == 200
    assert client.post("/api/estimate", json=QUERY).status_code == 200
    # A program that sends the token is not a page, whatever it calls itself.
    given = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}
    guarded = make_client("https://lab.example", token=TOKEN)
    assert guarded.post("/api/estimate", json=QUERY, headers=given).status_code == 200


@pytest.mark.parametrize(
    "given",
    ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""],
)
def test_content_types_that_any_page_can_send_are_refused(client, given):
    for path in ("/api/estimate", "/api/networks"):
        answer = client.post(path, content=b"{}", headers={"Content-Type": given})
        assert answer.status_code == 415


@pytest.mark.parametrize(
    "path", ["/", "/health", "/nothing", "/static/joulecast.css", "/api/nothing"]
)
def test_every_answer_has_the_headers(client, path):
    for answer in (client.get(path), client.post(path, content=b"")):
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_answers_are_not_kept_but_static_files_are(client):
    assert client.get("/").headers["Cache-Control"] == "no-store"
    assert "immutable" in client.get("/static/joulecast.css?v=1").headers["Cache-Control"]


def test_a_client_that_asks_too_often_has_to_wait(make_client):
    client = make_client(requests_per_second=2)
    found = [client.get("/health") for _ in range(8)]
    assert [answer.status_code for answer in found[:4]] == [200] * 4
    assert found[-1].status_code == 429
    assert found[-1].headers["Retry-After"] == "1"
    assert "wait 1 s" in found[-1].json()["detail"]


@pytest.mark.parametrize("length", ["-1", "x", "1e9", "9" * 20, str(2**40), "²"])
def test_wrong_and_large_lengths_are_refused(client, length):
    headers = {"Content-Type": "application/json", "Content-Length": length.encode()}
    answer = client.post("/api/estimate", content=b"{}", headers=headers)
    assert answer.status_code in (400, 413)


def test_web_sockets_are_closed(client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/estimate"):
        pass
