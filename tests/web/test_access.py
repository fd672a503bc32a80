"""Who may use a dashboard with a token: programs that send it, browsers that signed in with it."""

from __future__ import annotations

import logging

import pytest
from starlette.requests import HTTPConnection

from joulecast.web.access import COOKIE, SESSION_S, AccessCheck
from web_examples import TOKEN

BEARER = {"Authorization": f"Bearer {TOKEN}"}
ELSEWHERE = "http://lab.example:8378"
PAGE = {"Accept": "text/html,*/*"}


@pytest.fixture
def guarded(make_client):
    return make_client(ELSEWHERE, token=TOKEN)


def connect(**headers):
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/openapi.json", "/devices", "/nothing"])
def test_nothing_is_shown_without_the_token(guarded, path):
    answer = guarded.get(path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert guarded.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert guarded.post("/api/estimate", json={}).status_code == 401


def test_health_needs_no_token(guarded):
    assert guarded.get("/health").json() == {"status": "ok"}


def test_programs_send_the_token(guarded):
    assert guarded.get("/api/openapi.json", headers=BEARER).status_code == 200
    assert guarded.get("/metrics", headers=BEARER).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        TOKEN,
        f"bearer {TOKEN}",
        f"Bearer {TOKEN} ",
        f"Bearer {TOKEN[:-1]}",
        "Basic eDp5",
        "Bearer é",
    ],
)
def test_other_authorizations_are_refused(guarded, given):
    assert guarded.get("/metrics", headers={"Authorization": given.encode()}).status_code == 401


def test_guessing_is_slowed_down(make_client):
    for send in (
        lambda one: one.get("/metrics", headers={"Authorization": "Bearer x"}),
        lambda one: one.post("/sign-in", data={"token": "x"}),
    ):
        client = make_client(ELSEWHERE, token=TOKEN)
        found = [send(client) for _ in range(25)]
        assert found[0].status_code == 401 and found[-1].status_code == 429
        assert int(found[-1].headers["Retry-After"]) >= 1
        # Programs with the token are not affected.
        assert client.get("/metrics", headers=BEARER).status_code == 200


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


def test_without_a_token_nothing_is_a_token():
    access = AccessCheck("")
    assert not access.is_needed
    assert not access.accepts_token("") and not access.has_token(connect(authorization="Bearer "))
    assert not access.has_session(connect(cookie=f"{COOKIE}={access.make_session()}"))


def test_the_token_appears_nowhere(guarded, caplog):
    caplog.set_level(logging.DEBUG)
    answers = [
        guarded.get("/", headers=BEARER),
        guarded.get("/metrics", headers=BEARER),
        guarded.post("/sign-in", data={"token": TOKEN}),
        guarded.post("/sign-in", data={"token": f"{TOKEN}x"}),
        guarded.get(f"/{TOKEN}"),
    ]
    shown = "".join(f"{answer.headers}{answer.text}" for answer in answers[:4])
    assert TOKEN not in shown + caplog.text.replace(f"/{TOKEN}", "")
    assert TOKEN not in repr(guarded.app.state.settings)
