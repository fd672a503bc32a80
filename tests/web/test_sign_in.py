"""Browsers sign in by a form, which sets a cookie that no script can read."""

from __future__ import annotations

import pytest

from web_examples import TOKEN

PAGE = {"Accept": "text/html,*/*"}


@pytest.fixture
def guarded(make_client):
    return make_client("http://lab.example:8378", token=TOKEN)


def test_browsers_sign_in_by_a_form(guarded):
    answer = guarded.get("/devices", headers=PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in?next=/devices")
    form = guarded.get(answer.headers["Location"], headers=PAGE)
    assert form.status_code == 200 and 'value="/devices"' in form.text
    done = guarded.post("/sign-in", data={"token": TOKEN, "next": "/devices"})
    assert (done.status_code, done.headers["Location"]) == (303, "/devices")
    cookie = done.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert "Secure" not in cookie
    assert guarded.get("/", headers=PAGE).status_code == 200
    guarded.post("/sign-out", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert guarded.get("/", headers=PAGE).status_code == 303


def test_the_cookie_is_sent_over_https_only_where_there_is_https(make_client):
    client = make_client("https://lab.example", token=TOKEN)
    assert "Secure" in client.post("/sign-in", data={"token": TOKEN}).headers["Set-Cookie"]


def test_a_wrong_token_does_not_sign_in(guarded):
    answer = guarded.post("/sign-in", data={"token": "wrong", "next": "/"})
    assert answer.status_code == 401 and "Set-Cookie" not in answer.headers
    assert "This is not the token." in answer.text


@pytest.mark.parametrize(
    "next",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/static/x", "javascript:1"],
)
def test_signing_in_leads_to_pages_only(guarded, next):
    answer = guarded.post("/sign-in", data={"token": TOKEN, "next": next})
    assert answer.headers["Location"] == "/"


def test_without_a_token_there_is_nothing_to_sign_in_to(client):
    answer = client.post("/sign-in", data={"token": "anything"})
    assert answer.status_code == 303 and "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"token", b"&" * 100, b"\xff=\xff", b"token=%zz"])
def test_broken_forms_do_not_sign_in(guarded, body):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert guarded.post("/sign-in", content=body, headers=form).status_code == 401
