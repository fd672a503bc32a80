"""Links to agents: what a client says when one is not there, and ssh as a program."""

import gc
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agent_processes import make_trial
from joulecast.agent.addresses import parse_address
from joulecast.agent.client import AgentSilentError, HttpLink, LinkLimits, open_remote_measurer
from joulecast.errors import DeviceAwayError, InputError, JoulecastError

QUICK = LinkLimits(connect_s=1.0, answer_s=0.3, retry_s=0.5)

# Runs the command here instead of there, and keeps what it was called with.
FAKE_SSH = """#!/bin/sh
printf '%s\\n' "$@" > "$SSH_CALL"
for word; do last="$word"; done
{before}
PATH="$SSH_PATH:$PATH" exec sh -c "$last"
"""
JOULECAST = "#!/bin/sh\nexec {python} -c 'from joulecast.cli.main import main; main()' \"$@\"\n"


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Return a function that puts a program ssh on the path."""

    def install(before="", text=FAKE_SSH):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        there = tmp_path / "there"
        there.mkdir(exist_ok=True)
        for path, content in (
            (folder / "ssh", text.replace("{before}", before)),
            (there / "joulecast", JOULECAST.replace("{python}", sys.executable)),
        ):
            path.write_text(content)
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SSH_PATH", str(there))
        monkeypatch.setenv("SSH_CALL", str(tmp_path / "call"))
        return tmp_path / "call"

    return install


@pytest.fixture
def silent_port():
    """Yield the port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_without_an_agent_is_one_line_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started_s = time.monotonic()
    with pytest.raises(DeviceAwayError, match=r"cannot be reached \(Connection refused\)"):
        open_remote_measurer(f"http://127.0.0.1:{port}")
    assert time.monotonic() - started_s < 2.0


def test_unknown_host_is_one_line():
    with pytest.raises(DeviceAwayError, match=r"agent at http://no-such-host.invalid .* reached"):
        open_remote_measurer("http://no-such-host.invalid", limits=QUICK)


def test_agent_that_does_not_answer_is_told_apart_from_one_that_is_away(silent_port):
    with pytest.raises(AgentSilentError, match=r"has not answered for 0.3 s"):
        open_remote_measurer(f"http://127.0.0.1:{silent_port}", limits=QUICK)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b"HTTP/1.0 404 Not Found\r\n\r\nnothing here",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b'HTTP/1.0 200 OK\r\n\r\n{"protocol": 1, "id": "ffffffff"}',
        b'HTTP/1.0 200 OK\r\n\r\n{"protocol": 9}',
        b'HTTP/1.0 200 OK\r\n\r\n{"protocol": 1, "id": ""}',
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 3_000_000,
        b"",
    ],
)
def test_other_servers_are_named_in_one_line(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                with suppress(OSError):
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(JoulecastError) as caught:
            open_remote_measurer(f"http://127.0.0.1:{server.getsockname()[1]}", limits=QUICK)
        thread.join()
    text = str(caught.value)
    assert "127.0.0.1" in text and "\n" not in text and len(text) < 300


def test_connection_is_checked_by_the_operating_system(silent_port):
    link = HttpLink(parse_address(f"http://127.0.0.1:{silent_port}"), "", LinkLimits(answer_s=1.0))
    thread = threading.Thread(target=pytest.raises, args=(AgentSilentError, link.ask, b"{}"))
    thread.start()
    time.sleep(0.3)
    # Column 6 of the kernel's table: timer 02 is the one of keep-alive.
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    timers = [row[5] for row in rows if row[2].endswith(f":{silent_port:04X}")]
    thread.join()
    assert timers and all(timer.startswith("02:") for timer in timers)


# -- ssh ----------------------------------------------------------------------------------------


def test_ssh_starts_the_agent_there(ssh):
    call = ssh()
    with open_remote_measurer("ssh://pi@board:2222?on=simulated:3") as measurer:
        assert measurer.runtime.device.name == "simulated-3"
        assert measurer.measure(make_trial()).energy_j > 0
    words = call.read_text().splitlines()
    assert words[-2:] == ["pi@board", "joulecast agent --stdio --on simulated:3"]
    assert "-T" in words and "BatchMode=yes" in words and words[words.index("-p") + 1] == "2222"


def test_lines_of_a_login_shell_are_skipped(ssh):
    ssh("echo Welcome; echo 'Last login: today'")
    with open_remote_measurer("ssh://board?on=simulated:3") as measurer:
        assert measurer.version


@pytest.mark.parametrize(
    ("before", "address", "part"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "ssh://a", "Permission denied"),
        ("", "ssh://a?on=simulated:x", "give its seed"),
        ("", "ssh://a/none.pyz", "none.pyz"),
        ("exit 3", "ssh://a", "connection closed|Broken pipe"),
        ("yes", "ssh://a", "prints something else"),
    ],
)
def test_ssh_that_fails_is_one_line_with_its_words(ssh, before, address, part):
    ssh(before)
    with pytest.raises(DeviceAwayError, match=part) as caught:
        open_remote_measurer(address)
    assert "\n" not in str(caught.value) and "check that ssh reaches" in str(caught.value)


def test_missing_ssh_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceAwayError, match="ssh cannot be started"):
        open_remote_measurer("ssh://board")


def test_agent_that_died_is_started_again(ssh):
    ssh()
    with open_remote_measurer("ssh://board?on=simulated:3") as measurer:
        first = measurer.measure(make_trial())
        process = measurer.connection._link._program._process
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        again = measurer.measure(make_trial())
    # It starts with the same seed: a simulated device repeats itself.
    assert again.energy_j == first.energy_j


def test_agent_ends_when_nobody_holds_its_measurer_any_more(ssh):
    ssh()
    measurer = open_remote_measurer("ssh://board?on=simulated:3")
    process = measurer.connection._link._program._process
    del measurer
    gc.collect()
    assert process.returncode is not None


def test_command_that_hangs_is_given_up(ssh):
    ssh("sleep 30")
    with pytest.raises(AgentSilentError, match="not answered"):
        open_remote_measurer("ssh://board", limits=QUICK)


def test_token_that_would_change_the_request_is_refused():
    with pytest.raises(InputError, match="holds no token"):
        open_remote_measurer("http://127.0.0.1:1", "a-token\r\nheader: injected")
