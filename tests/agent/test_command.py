"""The program on the device: it starts anew after errors of CUDA, and ends quietly."""

import signal
import socket
import subprocess

import pytest

from agent_processes import PROGRAM, install_slow_device, make_trial, start_agent
from joulecast.agent.client import open_remote_measurer
from joulecast.errors import MeasurementError


def run(*words):
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_agent_starts_anew_after_its_device_was_lost(tmp_path):
    environ = install_slow_device(tmp_path / "site")
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("slow:5", "--meter", "modelled")
    with start_agent(*words, listen=listen, environ=environ) as agent:
        remote = open_remote_measurer(agent.address, rounds=1)
        with pytest.raises(MeasurementError, match="CUDA error"):
            remote.measure(make_trial(batch=13))
        assert remote.time(make_trial()).duration_s > 0
        assert agent.process.poll() is None


def test_interruption_ends_the_agent():
    with start_agent() as agent:
        agent.process.send_signal(signal.SIGINT)
        assert agent.process.wait(20) == 130
        assert agent.process.stderr.read() == ""


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--on", "nonsense"], 1, "there is no device 'nonsense'"),
        (["--on", "simulated:3", "--listen", "0.0.0.0:0"], 1, "JOULECAST_TOKEN"),
        (["--on", "simulated:3", "--token-file", "none"], 1, "there is no file none"),
        (["--token", "secret"], 2, "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_one_line(words, code, part):
    done = run(*words)
    assert done.returncode == code and done.stdout == ""
    assert part in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
