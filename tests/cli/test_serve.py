"""The command line of the dashboard: what it refuses before it listens."""

from __future__ import annotations

import sys

import pytest

from joulecast.features import nets


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--host", "0.0.0.0"], "JOULECAST_TOKEN"),
        (["--results", "nowhere"], "there is no folder"),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_served_is_one_line(shell, words, part):
    assert part in shell.fails("serve", *words)


def test_a_port_is_a_number(shell):
    assert "--port" in shell.fails("serve", "--port", "70000", code=2)


def test_others_must_not_read_the_token(shell, write):
    (shell.folder / write("token", "0123456789abcdef")).chmod(0o644)
    message = shell.fails("serve", "--token-file", "token")
    assert "chmod 600" in message and "0123456789abcdef" not in message


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
