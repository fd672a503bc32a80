"""Static files come from the installed packages, and no other file does."""

from __future__ import annotations

import pytest

from joulecast.web.rendering import find_static, static_url
from joulecast.web.static_files import list_static


def test_files_of_the_dashboard_are_sent(client):
    for name in list_static():
        answer = client.get(static_url(name))
        assert answer.status_code == 200 and answer.content == find_static(name).read_bytes()
        assert "max-age=31536000" in answer.headers["Cache-Control"]
    assert client.get("/static/joulecast.css").headers["Cache-Control"] == "no-cache"


def test_plotly_is_that_of_the_installed_package(client):
    answer = client.get("/static/plotly.min.js")
    assert answer.headers["Content-Type"].startswith("text/javascript")
    assert b"plotly.js v" in answer.content[:200]


@pytest.mark.parametrize(
    "name",
    ["../app.py", "..%2Fapp.py", "%2e%2e%2fapp.py", "....//app.py", "%2Fetc%2Fpasswd", "app.py",
     "nothing.css", "joulecast.css%00", ".", ""],
)  # fmt: skip
def test_other_files_are_not_sent(client, name):
    assert client.get(f"/static/{name}").status_code == 404
