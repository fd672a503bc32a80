"""Errors are one line of problem details, or a page; never a traceback."""

from __future__ import annotations

import pytest
from starlette.responses import StreamingResponse

from joulecast.errors import FileError, InputError, MeasurementError, MissingError, StoreError
from joulecast.web.problems import find_status, make_problem
from joulecast.web.protection import HEADERS

BUG = "secret detail of a bug"


@pytest.fixture
def broken(make_client):
    client = make_client()

    def fail():
        raise RuntimeError(BUG)

    def refuse():
        raise MissingError("there is\nno profile \x1b[2J")

    client.app.get("/api/bug")(fail)
    client.app.get("/page-with-bug")(fail)
    client.app.get("/api/missing")(refuse)
    return client


def test_statuses():
    errors = (InputError, FileError, MissingError, StoreError, MeasurementError)
    assert [find_status(one("x")) for one in errors] == [422, 422, 404, 503, 500]


def test_our_errors_are_one_line(broken):
    answer = broken.get("/api/missing")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no profile \\x1b[2J",
    }


def test_bugs_are_logged_and_not_shown(broken, caplog):
    answer = broken.get("/api/bug")
    assert answer.status_code == 500 and BUG not in answer.text and "Traceback" not in answer.text
    assert BUG in caplog.text
    page = broken.get("/page-with-bug", headers={"Accept": "text/html"})
    assert page.status_code == 500 and "<h1>Internal Server Error</h1>" in page.text
    assert BUG not in page.text
    for one in (answer, page):
        assert {name: one.headers.get(name) for name in HEADERS} == HEADERS
        assert one.headers["Cache-Control"] == "no-store"


def test_an_answer_that_has_started_is_not_answered_twice(make_client):
    client = make_client()

    def write():
        yield b"half"
        raise RuntimeError(BUG)

    client.app.get("/api/half")(lambda: StreamingResponse(write()))
    answer = client.get("/api/half")
    assert (answer.status_code, answer.content) == (200, b"half")


def test_browsers_get_pages(client):
    answer = client.get("/nothing/<script>", headers={"Accept": "text/html"})
    assert answer.status_code == 404 and "<h1>Not Found</h1>" in answer.text
    assert "<script>" not in answer.text.split("<main")[1]
    assert client.get("/nothing").json()["status"] == 404


def test_long_lines_are_cut():
    assert len(make_problem(422, "x" * 10_000).body) < 1000
