"""Devices elsewhere are measured once, however often the connection, agent or client fails."""

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

from agent_processes import install_slow_device, make_trial, start_agent
from joulecast.agent.addresses import parse_address
from joulecast.agent.client import AgentSilentError, HttpLink, LinkLimits, open_remote_measurer
from joulecast.agent.messages import MOST_REQUEST_BYTES
from joulecast.agent.service import AgentService
from joulecast.campaign import find_profile_key
from joulecast.measurer.local_devices import open_local_measurer
from joulecast.records import Network, Setup, Trial
from joulecast.system.errors import (
    DeviceAwayError,
    InputError,
    JoulecastError,
    MeasurementError,
    NetError,
)

QUICK = LinkLimits(connect_s=1.0, answer_s=0.3, retry_s=0.5)
# An agent takes long to start on a busy machine.
PATIENT = LinkLimits(retry_s=300.0)


@pytest.fixture(scope="module")
def agent():
    with start_agent("simulated:3") as started:
        yield started


class LinkHere:
    """An agent in this process whose answers get lost, but for the description of its device."""

    def __init__(self, on, losses=0):
        self.service = AgentService(on)
        self.losses, self.contents = losses, []

    def ask(self, content):
        answer = self.service.answer(content)
        self.contents.append(content)
        if 1 < len(self.contents) <= 1 + self.losses:
            raise DeviceAwayError("the connection was lost")
        return answer

    def close(self):
        self.service.__exit__()


def test_remote_measurer_is_like_a_local_one(agent):
    local = open_local_measurer("simulated:3")
    with open_remote_measurer(agent.address) as remote:
        assert find_profile_key(remote) == find_profile_key(local)
        assert remote.runtime.modes == local.runtime.modes
        started_s = remote.now()
        seen = remote.measure(make_trial())
        assert remote.now() - started_s >= seen.cost_s > 1.0
        assert (seen.trial, seen.run, seen.count) == (make_trial(), remote.run, 3)
        assert remote.time(make_trial()).energy_j is None
        assert remote.measure_idle().trial.network == Network()
        own = remote.change_run("other", rounds=1).measure(make_trial())
        assert (own.run, own.count) == ("other", 1)
        refusal = remote.make_refusal(make_trial(), "why")
        assert (refusal.refusal, refusal.count, refusal.energy_j) == ("why", 0, None)
        with pytest.raises(NetError, match="the network is empty"):
            remote.measure(Trial(Network(), Setup()))
        large = Network(make_trial().network.layers, name="x" * MOST_REQUEST_BYTES)
        with pytest.raises(InputError, match="8 MiB"):
            remote.measure(Trial(large, Setup()))
    with open_remote_measurer(agent.address, device_name="desk") as remote:
        assert remote.measure(make_trial()).device.name == "desk"


def test_lost_answer_is_asked_for_again_and_not_measured_again(monkeypatch):
    monkeypatch.setattr("joulecast.agent.client._FIRST_PAUSE_S", 0.01)
    link = LinkHere("simulated:5", losses=2)
    with open_remote_measurer("http://here", link=link) as remote:
        link.service._measurer.runtime.simulated.disturb("throttled", 1.0)
        seen = [remote.measure(make_trial()) for _ in range(2)]
    assert len(link.contents) == 5 and len(set(link.contents)) == 3
    # A second measurement in between would have moved the device's clock and its noise.
    with open_local_measurer("simulated:5") as local:
        local.runtime.simulated.disturb("throttled", 1.0)
        expected = [local.measure(make_trial()) for _ in range(2)]
    for name in ("energy_j", "duration_s", "issue_s"):
        assert [getattr(one, name) for one in seen] == [getattr(one, name) for one in expected]
    # Disturbances of all answers add up.
    assert remote.disturbances == local.disturbances and remote.disturbances["throttled"] > 0
    impatient = {"link": LinkHere("simulated:5", 1000), "limits": LinkLimits(retry_s=0.0)}
    with pytest.raises(DeviceAwayError, match="lost"):
        open_remote_measurer("http://here", **impatient).measure(make_trial())


def test_agent_that_is_killed_or_loses_its_device_is_asked_again(tmp_path):
    environ = install_slow_device(tmp_path / "site")
    words = ("slow:5", "--meter", "modelled")
    with start_agent(*words, environ=environ) as first:
        remote = open_remote_measurer(first.address, rounds=1, limits=PATIENT)
        found = []
        thread = threading.Thread(target=lambda: found.append(remote.measure(make_trial())))
        thread.start()
        time.sleep(0.3)
        first.kill()
        with start_agent(*words, listen=first.listen, environ=environ) as second:
            thread.join(60)
            # After an error of CUDA it starts itself anew.
            with pytest.raises(MeasurementError, match="CUDA error"):
                remote.measure(make_trial(batch=13))
            assert remote.time(make_trial()).duration_s > 0
            assert second.process.poll() is None
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(60) == 130
    assert [one.count for one in found] == [1]


def test_simulated_device_that_is_started_again_is_recognised():
    with start_agent("simulated:3") as first:
        remote = open_remote_measurer(first.address, limits=PATIENT)
        for _ in range(3):
            remote.measure(make_trial())
        before_s = remote.now()
        first.kill()
        with start_agent("simulated:3", listen=first.listen) as second:
            remote.measure(make_trial())
            # Its clock began at 0, but time never goes back.
            assert remote.now() == before_s
            remote.measure(make_trial())
            assert remote.now() > before_s + 1.0
            second.kill()
        with (
            start_agent("simulated:4", listen=first.listen),
            pytest.raises(DeviceAwayError, match="another device"),
        ):
            remote.measure(make_trial())


def test_agent_listens_on_addresses_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with start_agent(listen="[::1]:0") as started:
        assert started.address.startswith("http://[::1]:")
        assert open_remote_measurer(started.address).version


# -- what is not an agent -----------------------------------------------------------------------


@pytest.fixture
def silent_port():
    """Yield the port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_agent_that_does_not_answer_is_told_apart_from_one_that_is_away(silent_port):
    with pytest.raises(AgentSilentError, match=r"has not answered for 0.3 s"):
        open_remote_measurer(f"http://127.0.0.1:{silent_port}", limits=QUICK)
    for address in ("http://127.0.0.1:1", "http://no-such-host.invalid"):
        with pytest.raises(DeviceAwayError, match="cannot be reached") as caught:
            open_remote_measurer(address, limits=QUICK)
        assert address in str(caught.value) and not isinstance(caught.value, AgentSilentError)


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
            open_remote_measurer(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    text = str(caught.value)
    assert "127.0.0.1" in text and "\n" not in text and len(text) < 300


def test_connection_is_checked_by_the_operating_system(silent_port):
    link = HttpLink(parse_address(f"http://127.0.0.1:{silent_port}"), "", LinkLimits(answer_s=2.0))
    thread = threading.Thread(target=pytest.raises, args=(AgentSilentError, link.ask, b"{}"))
    thread.start()
    timers = []
    while thread.is_alive() and not any(timer.startswith("02:") for timer in timers):
        time.sleep(0.05)
        # Column 6 of the kernel's table: timer 02 is the one of keep-alive.
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        timers = [row[5] for row in rows if row[2].endswith(f":{silent_port:04X}")]
    assert timers and all(timer.startswith("02:") for timer in timers)
    thread.join()


# -- ssh ----------------------------------------------------------------------------------------

# Runs the command here instead of there, and keeps what it was called with.
FAKE_SSH = """#!/bin/sh
printf '%s\\n' "$@" > "$SSH_CALL"
for word; do last="$word"; done
{before}
PATH="$SSH_PATH:$PATH" exec sh -c "$last"
"""
# `joulecast agent` does the same and takes longer to import.
JOULECAST = '#!/bin/sh\nshift\nexec {python} -m joulecast.agent.command "$@"\n'


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Return a function that puts a program ssh on the path."""

    def install(before=""):
        for folder, name, content in (
            ("bin", "ssh", FAKE_SSH.replace("{before}", before)),
            ("there", "joulecast", JOULECAST.replace("{python}", sys.executable)),
        ):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / name).write_text(content)
            (tmp_path / folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SSH_PATH", str(tmp_path / "there"))
        monkeypatch.setenv("SSH_CALL", str(tmp_path / "call"))
        return tmp_path / "call"

    return install


def test_ssh_starts_the_agent_and_starts_it_again_when_it_died(ssh):
    call = ssh("echo Welcome; echo 'Last login: today'")
    measurer = open_remote_measurer("ssh://pi@board:2222?on=simulated:3")
    assert measurer.runtime.device.name == "simulated-3"
    first = measurer.measure(make_trial())
    words = call.read_text().splitlines()
    assert words[-2:] == ["pi@board", "joulecast agent --stdio --on simulated:3"]
    assert "-T" in words and "BatchMode=yes" in words and words[words.index("-p") + 1] == "2222"
    process = measurer.connection._link._process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # It starts with the same seed: a simulated device repeats itself.
    assert measurer.measure(make_trial()).energy_j == first.energy_j
    # It ends when nobody holds its measurer any more.
    process = measurer.connection._link._process
    del measurer
    gc.collect()
    assert process.returncode is not None


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


def test_ssh_that_hangs_or_is_missing_is_given_up(ssh, monkeypatch, tmp_path):
    ssh("sleep 30")
    with pytest.raises(AgentSilentError, match="not answered"):
        open_remote_measurer("ssh://board", limits=QUICK)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceAwayError, match="ssh cannot be started"):
        open_remote_measurer("ssh://board")
