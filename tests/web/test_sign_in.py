"""Browsers sign in by a form, which sets a cookie that no script can read."""

from __future__ import annotations

import pytest

from dashboard_browser import PHONE, has_sideways_scroll, run_server, save_screenshot, wait_until
from joulecast.web.app import create_app
from joulecast.web.web_settings import WebSettings
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


@pytest.mark.journey
def test_readers_come_back_to_their_choice_and_sign_out(web_store, no_shipped_profiles, chromium):
    app = create_app(WebSettings(web_store, token=TOKEN, requests_per_second=0))
    with run_server(app) as url:
        page = chromium.new_page(viewport=PHONE)
        page.goto(f"{url}/estimate?net=lenet5%3A4%2C8%2C16%2C16&batch=8")
        assert page.get_by_role("button", name="Sign out").count() == 0
        page.fill("#token", TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.locator("#batch").wait_for()
        # A script fills the controls from the address.
        wait_until(page, "document.getElementById('batch').value === '8'")
        assert "net=lenet5" in page.url
        assert not has_sideways_scroll(page)
        save_screenshot(page, "signed-in-phone")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/sign-in")
        page.goto(f"{url}/devices")
        assert page.url == f"{url}/sign-in?next=/devices"
        page.close()


def test_signing_in_keeps_the_query(guarded):
    query = "a=1%262&b=x+y&c=%C3%A9"
    place = guarded.get(f"/devices?{query}", headers=PAGE).headers["Location"]
    form = guarded.get(place, headers=PAGE)
    assert f'value="/devices?{query.replace("&", "&amp;")}"' in form.text
    done = guarded.post("/sign-in", data={"token": TOKEN, "next": f"/devices?{query}"})
    assert done.headers["Location"] == f"/devices?{query}"


def test_the_cookie_is_sent_over_https_only_where_there_is_https(make_client):
    client = make_client("https://lab.example", token=TOKEN)
    assert "Secure" in client.post("/sign-in", data={"token": TOKEN}).headers["Set-Cookie"]


def test_a_wrong_token_does_not_sign_in(guarded):
    answer = guarded.post("/sign-in", data={"token": "wrong", "next": "/"})
    assert answer.status_code == 401 and "Set-Cookie" not in answer.headers
    assert "This is not the token." in answer.text


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/static/x",
        "javascript:1",
        "//evil.example?/devices",
        "/\\t/evil.example?x",
    ],
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
