"""Requests over HTTP: who is let in, how large they may be, and how quiet the agent is."""

import http.client
import io
import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agent_processes import TOKEN, make_trial, start_agent
from joulecast.agent.client import open_remote_measurer
from joulecast.agent.messages import AgentRequest, encode_message
from joulecast.agent.service import AgentOptions, AgentService, DeadlineReader, serve_http
from joulecast.errors import InputError

DESCRIBE = encode_message(AgentRequest("0" * 8, "describe"))
TYPE = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def agent():
    with start_agent(environ={"JOULECAST_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture(scope="module")
def open_agent():
    with start_agent() as started:
        yield started


def post(agent, content=DESCRIBE, token=TOKEN, **headers):
    """Return status and answer of a request."""
    connection = http.client.HTTPConnection(agent.listen, timeout=20)
    given = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("POST", "/", content, {**TYPE, **given, **headers})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def send(agent, text):
    """Return what the agent answers to bytes as they are, however long the rest would be."""
    host, port = agent.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode())
        with connection.makefile("rb") as file:
            return file.read().decode()


def test_agent_describes_its_device(agent):
    status, answer = post(agent)
    assert status == 200 and answer["description"]["device"]["name"] == "simulated-3"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü" * 9])
def test_wrong_tokens_are_refused_without_showing_the_right_one(agent, token):
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    status, answer = post(agent, token="", **headers)
    assert status == 401 and "refuses the token" in answer["error"]["message"]
    assert TOKEN not in json.dumps(answer)


def test_token_is_not_in_the_list_of_processes(agent):
    assert TOKEN not in Path(f"/proc/{agent.process.pid}/cmdline").read_text()


HEAD = f"POST / HTTP/1.1\nHost: a\nAuthorization: Bearer {TOKEN}\nContent-Type: application/json\n"


@pytest.mark.parametrize(
    ("head", "status", "part"),
    [
        (f"{HEAD}Content-Length: 10000000000\n\n{{", 413, "larger than 8 MiB"),
        (f"{HEAD}Content-Length: {'9' * 5000}\n\n", 413, "larger than 8 MiB"),
        (f"{HEAD}Content-Length: -1\n\n", 411, "how long"),
        (f"{HEAD}\n", 411, "how long"),
        (f"{HEAD}Transfer-Encoding: chunked\n\n", 411, "how long"),
        (f"{HEAD}Transfer-Encoding: chunked\nContent-Length: 5\n\n", 411, "how long"),
        (
            HEAD.replace("application/json", "text/plain") + "Content-Length: 5\n\n",
            415,
            "json only",
        ),
        (f"{HEAD}X: {'x' * 70_000}\n\n", 431, ""),
        ("GET / HTTP/1.1\nHost: a\n\n", 501, ""),
    ],
)
def test_requests_are_refused_before_they_are_read(agent, head, status, part):
    answer = send(agent, head)
    assert answer.split()[1] == str(status) and part in answer


def test_agent_survives_clients_that_break_off(agent):
    host, port = agent.listen.split(":")
    for text in (b"", b"POST / HT", HEAD.encode() + b"Content-Length: 1000\r\n\r\n{"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(text)
    assert post(agent)[0] == 200


def test_client_that_sends_a_byte_now_and_then_is_not_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs, io.BufferedReader(DeadlineReader(theirs, 0.5)) as reader:
        threading.Thread(target=drip, args=(ours,)).start()
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            reader.readline()
    assert 0.4 < time.monotonic() - started_s < 2.0


def drip(connection):
    with suppress(OSError):
        for _ in range(30):
            connection.sendall(b"x")
            time.sleep(0.1)


def test_request_whose_sender_gave_up_is_not_measured(agent):
    before = post(agent)[1]["clock_s"]
    content = encode_message(AgentRequest("a" * 8, "measure", make_trial()))
    head = HEAD.replace("\n", "\r\n") + f"Content-Length: {len(content)}\r\n\r\n"
    # The agent is kept busy by a client that sends nothing until the other one has given up.
    host, port = agent.listen.split(":")
    with socket.create_connection((host, int(port))) as busy:
        with socket.create_connection((host, int(port))) as impatient:
            impatient.sendall(head.encode() + content)
        time.sleep(0.1)
        busy.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert post(agent)[1]["clock_s"] == before


def test_agent_listens_on_addresses_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with start_agent(listen="[::1]:0") as started:
        assert started.address.startswith("http://[::1]:")
        assert open_remote_measurer(started.address).version


def test_without_a_token_only_this_machine_is_answered(open_agent):
    assert post(open_agent, token="")[0] == 200
    for host in ("evil.example", "evil.example:8377", "[", ""):
        status, answer = post(open_agent, token="", Host=host)
        assert status == 403 and "token" in answer["error"]["message"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2"])
def test_agent_that_others_reach_needs_a_token(host):
    with (
        AgentService(AgentOptions("simulated:3")) as service,
        pytest.raises(InputError, match="JOULECAST_TOKEN"),
    ):
        serve_http(service, (host, 0))


def test_port_in_use_is_one_line(agent):
    host, port = agent.listen.split(":")
    with (
        AgentService(AgentOptions("simulated:3")) as service,
        pytest.raises(InputError, match=r"cannot listen .* give another --listen"),
    ):
        serve_http(service, (host, int(port)))


def test_agent_has_one_thread_does_not_wake_and_writes_no_file(open_agent):
    content = encode_message(AgentRequest("b" * 8, "measure", make_trial()))
    assert post(open_agent, content, token="")[0] == 200
    process = Path(f"/proc/{open_agent.process.pid}")

    def count_wakes():
        text = (process / "status").read_text()
        return [line for line in text.splitlines() if "ctxt_switches" in line]

    # Until it waits for the next request.
    time.sleep(0.3)
    before = count_wakes()
    time.sleep(1.2)
    assert count_wakes() == before
    assert len(list((process / "task").iterdir())) == 1
    targets = [str(one.readlink()) for one in (process / "fd").iterdir()]
    assert not [one for one in targets if one.startswith("/") and not one.startswith("/dev/")]
