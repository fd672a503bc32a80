"""Who may use a dashboard, what it refuses before it reads a request, and a real server."""

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from joulecast.features import nets
from joulecast.system.errors import InputError
from joulecast.web import security
from joulecast.web.app import check_reach, open_socket, serve_dashboard
from joulecast.web.dashboard import WebSettings
from joulecast.web.security import (
    HEADERS,
    MOST_BODY_BYTES,
    SESSION_S,
    AccessCheck,
    RateLimit,
    limit_body,
)
from web_examples import BEARER, HERE, QUERY, TOKEN

COOKIE = security.COOKIE
PAGE = {"Accept": "text/html,*/*"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OTHER_ORIGINS = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "http://[", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
]


PATHS = ("/", "/health", "/static/report.css", "/api/openapi.json")
TOKENS = (TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN} ", f"Bearer {TOKEN[:-1]}", "Basic eDp5")
HOSTS = ("evil.example:8378", "127.0.0.1.evil.example", "localhost.evil", "", "[", "10.0.0.1")
TYPES = ("text/plain", "multipart/form-data; boundary=x", *FORM.values())
ESTIMATE = "/api/estimate"
# Whose dashboard, method, path, headers, and the status.
REFUSED = [
    *(("guarded", "GET", path, {}, 401) for path in ("/", "/metrics", "/devices", "/nothing")),
    ("guarded", "GET", "/api/openapi.json", {}, 401),
    ("guarded", "POST", ESTIMATE, JSON, 401),
    ("guarded", "GET", "/metrics", {"Authorization": "Bearer é".encode()}, 401),
    *(("guarded", "GET", "/metrics", {"Authorization": given}, 401) for given in TOKENS),
    *(("client", "GET", path, {"Host": host}, 403) for host in HOSTS for path in PATHS),
    *(("client", "POST", ESTIMATE, {**JSON, **one}, 403) for one in OTHER_ORIGINS),
    *(("client", "POST", "/sign-in", {**FORM, **one}, 403) for one in OTHER_ORIGINS),
    *(("client", "POST", ESTIMATE, {"Content-Type": given}, 415) for given in TYPES),
    *(("client", "POST", "/api/networks", {"Content-Type": given}, 415) for given in TYPES),
    *(("client", "POST", ESTIMATE, {**JSON, "Content-Length": n}, 400) for n in ("-1", "x", "1e9")),
    ("client", "POST", ESTIMATE, {**JSON, "Content-Length": "²".encode()}, 400),
    *(
        ("client", "POST", ESTIMATE, {**JSON, "Content-Length": n}, 413)
        for n in ("9" * 20, "9" * 12)
    ),
]


@pytest.mark.parametrize(("whose", "method", "path", "headers", "status"), REFUSED)
def test_what_is_refused_before_it_is_read(request, whose, method, path, headers, status):
    client = request.getfixturevalue(whose)
    answer = client.request(method, path, headers=headers, content=b"{}")
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.headers.get("WWW-Authenticate") == "Bearer") == (status == 401)
    assert "Set-Cookie" not in answer.headers and "\n" not in answer.json()["detail"]


def test_what_passes(guarded, client):
    assert guarded.get("/health").json() == {"status": "ok"}
    assert guarded.get("/metrics", headers=BEARER).status_code == 200
    for host in ("127.0.0.1:8378", "localhost:1", "[::1]:8378", "127.0.0.9"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    own = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    assert client.post(ESTIMATE, json=QUERY, headers=own).status_code == 200
    # A program that sends the token is not a page, whatever it calls itself.
    given = {**BEARER, "Origin": "http://evil.example"}
    assert guarded.post(ESTIMATE, json=QUERY, headers=given).status_code == 200


@pytest.mark.parametrize(
    "send",
    [
        lambda one: one.get("/metrics", headers={"Authorization": "Bearer x"}),
        lambda one: one.post("/sign-in", data={"token": "x"}),
    ],
)
def test_guessing_is_slowed_down(guarded, send):
    found = [send(guarded) for _ in range(25)]
    assert found[0].status_code == 401 and found[-1].status_code == 429
    assert int(found[-1].headers["Retry-After"]) >= 1
    # Programs with the token are not affected.
    assert guarded.get("/metrics", headers=BEARER).status_code == 200


def connect(**headers):
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


def test_sessions_end_and_cannot_be_made_up():
    clock = [1e9]
    access = AccessCheck(TOKEN, now=lambda: clock[0])
    session = access.make_session()
    expires, signature = session.split(".")
    assert access.has_session(connect(cookie=f"a=b; {COOKIE}={session}"))
    later = f"{int(expires) + 1}.{signature}"
    for forged in (later, f"{expires}.", f"{expires}.{'0' * 64}", expires, "", f"é.{signature}"):
        assert not access.has_session(connect(cookie=f"{COOKIE}={forged}"))
    assert not AccessCheck("another-token-0123").has_session(connect(cookie=f"{COOKIE}={session}"))
    clock[0] += SESSION_S + 1
    assert not access.has_session(connect(cookie=f"{COOKIE}={session}"))
    # Without a token nothing is a token.
    open_access = AccessCheck("")
    assert not open_access.accepts_token("")
    assert not open_access.has_token(connect(authorization="Bearer "))
    assert not open_access.has_session(connect(cookie=f"{COOKIE}={open_access.make_session()}"))


def test_the_token_appears_nowhere(guarded, caplog):
    caplog.set_level(logging.DEBUG)
    answers = [
        guarded.get("/", headers=BEARER),
        guarded.get("/metrics", headers=BEARER),
        guarded.post("/sign-in", data={"token": TOKEN}),
        guarded.post("/sign-in", data={"token": f"{TOKEN}x"}),
    ]
    shown = "".join(f"{answer.headers}{answer.text}" for answer in answers)
    assert TOKEN not in shown + caplog.text + repr(guarded.app.state.dashboard.settings)


@pytest.mark.parametrize("path", ["/", "/health", "/nothing", "/static/report.css", "/api/x"])
def test_every_answer_has_the_headers(client, path):
    for answer in (client.get(path), client.post(path, content=b"")):
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_only_static_files_are_kept(client):
    assert client.get("/").headers["Cache-Control"] == "no-store"
    assert "immutable" in client.get("/static/units.js?v=1").headers["Cache-Control"]
    assert client.get("/static/report.css").headers["Cache-Control"] == "no-cache"
    for name in ("..%2fapp.py", "%2e%2e/app.py", "base.html", "none.js"):
        assert client.get(f"/static/{name}").status_code == 404


def test_web_sockets_are_closed(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/estimate"):
        pass


# Rates


def test_a_client_that_asks_too_often_has_to_wait(make_client):
    client = make_client(requests_per_second=2)
    found = [client.get("/health") for _ in range(8)]
    assert [answer.status_code for answer in found[:4]] == [200] * 4
    assert found[-1].status_code == 429 and found[-1].headers["Retry-After"] == "1"


def test_buckets_empty_fill_and_belong_to_a_network(monkeypatch):
    clock = [0.0]
    limit = RateLimit(2.0, 3, now=lambda: clock[0])
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1] and limit.take("b") == 0
    clock[0] = 0.5
    assert [limit.take("a"), limit.take("a")] == [0, 1]
    slow = RateLimit(0.1, 1, now=lambda: 0.0)
    assert [slow.take("2001:db8::1"), slow.take("2001:db8::ffff%eth0")] == [0, 10]
    assert slow.take("2001:db8:0:1::1") == slow.take("not:an:address") == 0
    monkeypatch.setattr(security, "_MOST_CLIENTS", 10)
    for number in range(100):
        slow.take(f"10.0.0.{number}")
    assert len(slow) == 10 and slow.take("10.0.0.99") == 10
    free = RateLimit(0, 0)
    assert {free.take("a") for _ in range(100)} == {0} and len(free) == 0


# Bodies


def test_large_bodies_are_refused_announced_or_not(client):
    content = b"[" + b" " * MOST_BODY_BYTES + b"]"
    assert "8 MiB" in client.post("/api/estimate", content=content, headers=JSON).json()["detail"]
    answer = client.post("/sign-in", content=b"token=" + b"x" * 5000, headers=FORM)
    assert answer.status_code == 413 and "4 KiB" in answer.json()["detail"]
    parts = (b" " * 2**20 for _ in range(9))
    assert client.post("/api/estimate", content=parts, headers=JSON).status_code == 413
    assert security.BODY_LIMITS["/api/networks"] > MOST_BODY_BYTES


def receive_all(parts, limit_s=60.0):
    """Return what a limited body of at most ten bytes receives; None stands for silence."""
    waiting = list(parts)

    async def receive():
        body = waiting.pop(0)
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def run():
        limited = limit_body(receive, 10, limit_s)
        return [await limited() for _ in parts]

    return asyncio.run(run())


def test_size_and_time_of_all_parts_count():
    assert len(receive_all([b"12345", b"67890"])) == 2
    for parts, limit_s, status in (([b"123456", b"78901"], 60, 413), ([b"1", None], 0.01, 408)):
        with pytest.raises(HTTPException) as caught:
            receive_all(parts, limit_s)
        assert caught.value.status_code == status


# Signing in


def test_browsers_sign_in_by_a_form(guarded, make_client):
    query = "a=1%262&b=x+y&c=%C3%A9"
    answer = guarded.get(f"/devices?{query}", headers=PAGE)
    assert answer.status_code == 303
    form = guarded.get(answer.headers["Location"], headers=PAGE)
    assert f'value="/devices?{query.replace("&", "&amp;")}"' in form.text
    done = guarded.post("/sign-in", data={"token": TOKEN, "next": f"/devices?{query}"})
    assert (done.status_code, done.headers["Location"]) == (303, f"/devices?{query}")
    cookie = done.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert "Secure" not in cookie
    assert guarded.get("/", headers=PAGE).status_code == 200
    guarded.post("/sign-out", headers=FORM)
    assert guarded.get("/", headers=PAGE).status_code == 303
    secure = make_client("https://lab.example", token=TOKEN)
    assert "Secure" in secure.post("/sign-in", data={"token": TOKEN}).headers["Set-Cookie"]


@pytest.mark.parametrize("body", [b"", b"token", b"&" * 100, b"\xff=\xff", b"token=%zz"])
def test_broken_forms_do_not_sign_in(guarded, client, body):
    answer = guarded.post("/sign-in", content=body, headers=FORM)
    assert answer.status_code == 401 and "Set-Cookie" not in answer.headers
    assert "This is not the token." in answer.text
    # Without a token there is nothing to sign in to.
    assert "Set-Cookie" not in client.post("/sign-in", content=body, headers=FORM).headers


@pytest.mark.parametrize(
    "next",
    ["https://evil.example/", "//evil.example?/devices", "/\\evil.example", "/static/x",
     "javascript:1", "/\\t/evil.example?x"],
)  # fmt: skip
def test_signing_in_leads_to_pages_only(guarded, next):
    answer = guarded.post("/sign-in", data={"token": TOKEN, "next": next})
    assert answer.headers["Location"] == "/"


PROGRAM = (sys.executable, "-c", "from joulecast.cli.main import main; main()", "serve", "--json")


@pytest.fixture(scope="module")
def address(web_store):
    words = [*PROGRAM, "--port", "0", "--store", web_store, "--behind-proxy"]
    environ = {**os.environ, "JOULECAST_TOKEN": TOKEN}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        yield json.loads("".join([*iter(process.stdout.readline, "}\n"), "}"]))["address"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        process.stdout.close()


def ask(address, path, data=None, **headers):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    content = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(f"{address}{path}", content, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers, answer.read()


def test_a_server_answers_after_broken_requests(address):
    host, port = address.removeprefix("http://").split(":")
    for sent in (
        b"\x00" * 100,
        b"GET / HTTP/9\r\n\r\n",
        b"GET " + b"a" * 100_000,
        b"POST / HTTP/1.1\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(sent)
    headers, content = ask(address, "/api/estimate", QUERY)
    assert json.loads(content)["energy_j"] > 0
    assert "Server" not in headers and "Content-Security-Policy" in headers
    assert b"Joulecast" in ask(address, "/")[1]


def test_a_proxy_says_whether_clients_use_https(address):
    form = b"token=" + TOKEN.encode()
    for scheme in ("http", "https"):
        headers = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": scheme}
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request("POST", "/sign-in", form, headers)
        answer = connection.getresponse()
        assert answer.status == 303
        assert ("Secure" in answer.headers["Set-Cookie"]) == (scheme == "https")
        connection.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lab.example", "127.0.0.1"])
def test_whoever_can_be_reached_by_others_needs_a_token(host):
    is_own = host == "127.0.0.1"
    with pytest.raises(InputError, match="JOULECAST_TOKEN"):
        serve_dashboard(WebSettings(is_behind_proxy=is_own), host, 0)
    check_reach(WebSettings(is_behind_proxy=is_own, token=TOKEN), host)
    check_reach(WebSettings(), "127.0.0.1")


def test_a_port_that_is_taken_is_one_clear_line():
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"):
            open_socket("127.0.0.1", port)
    with pytest.raises(InputError, match="cannot listen"):
        open_socket("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("words", "part", "code"),
    [
        (["--host", "0.0.0.0"], "JOULECAST_TOKEN", 1),
        (["--behind-proxy"], "--behind-proxy", 1),
        (["--results", "nowhere"], "there is no folder", 1),
        (["--token-file", "nowhere"], "nowhere", 1),
        (["--port", "70000"], "--port", 2),
    ],
)
def test_what_cannot_be_served_is_one_line(shell, words, part, code):
    assert part in shell.fails("serve", *words, code=code)


def test_missing_packages_are_named(shell, monkeypatch):
    find = nets.find_spec
    monkeypatch.setattr(nets, "find_spec", lambda name: None if name == "fastapi" else find(name))
    message = shell.fails("serve")
    assert "FastAPI" in message and "joulecast[web]" in message


def test_help_needs_no_web_framework(shell, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("joulecast.web")]:
        # They come back after the test: FastAPI looks up the types of routes in these modules.
        monkeypatch.delitem(sys.modules, name)
    assert "--results" in shell("serve", "--help").stdout
    assert not [name for name in sys.modules if name.startswith("joulecast.web")]
