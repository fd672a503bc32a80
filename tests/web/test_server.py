"""A real server: its address, who may reach it, and that a client cannot keep it busy."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from joulecast.features import nets
from joulecast.system.errors import InputError
from joulecast.web.app import check_reach, open_socket, serve_dashboard
from joulecast.web.dashboard import WebSettings
from web_examples import QUERY, TOKEN

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


def test_a_server_answers(address):
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


def test_it_survives_broken_requests(address):
    host, port = address.removeprefix("http://").split(":")
    for sent in (
        b"\x00" * 100,
        b"GET / HTTP/9\r\n\r\n",
        b"GET " + b"a" * 100_000,
        b"POST / HTTP/1.1\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(sent)
    assert ask(address, "/health")[1] == b'{"status":"ok"}'


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
