"""Commands on devices elsewhere: the same results, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agent_processes import TOKEN, install_slow_device, make_trial, start_agent
from joulecast.agent.client import open_remote_measurer
from joulecast.store import open_store

NET = ("lenet5:4,8,16,16", "--batch", "8")
PROGRAM = (sys.executable, "-c", "from joulecast.cli.main import main; main()", "agent")


@pytest.fixture(scope="module")
def agent():
    with start_agent("simulated:3") as started:
        yield started


def test_profile_estimate_and_probe_through_an_agent(shell, agent):
    shell("profile", *NET, "--on", agent.address, "--points", "6")
    profiles = shell.json("profiles", "list")["profiles"]
    assert ("simulated-3", "simulated") in {(one["device"], one["runtime"]) for one in profiles}
    named = shell.json("estimate", *NET, "--device", "simulated-3")
    assert shell.json("estimate", *NET, "--on", agent.address)["energy_j"] == named["energy_j"]
    probed = shell.json("estimate", "lenet5:3,7,9,11", "--on", agent.address, "--probe")
    measured = shell.json("measure", "lenet5:3,7,9,11", "--on", agent.address)
    assert probed["energy_j"] == pytest.approx(measured["energy_j"], rel=0.3)


def test_device_name_is_recorded(shell, agent):
    words = ("measure", *NET, "--on", agent.address, "--device-name", "desk")
    assert shell.json(*words)["device"]["name"] == "desk"


def test_agent_of_the_command_line_prints_where_it_is(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    words = ["--on", "simulated:3", "--listen", "127.0.0.1:0", "--token-file", str(token), "--json"]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stdout.readline, "}\n")
        found = json.loads("".join([*lines, "}"]))
        assert found["device"]["name"] == "simulated-3"
        with open_remote_measurer(found["address"], TOKEN) as remote:
            assert remote.time(make_trial()).duration_s > 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--on", "simulated:3", "--listen", "0.0.0.0:0"], 1, "set JOULECAST_TOKEN"),
        (["--on", "simulated:3", "--listen", "here"], 1, "like 127.0.0.1:8377"),
        (["--on", "simulated:3", "--token-file", "none"], 1, "there is no file none"),
        (["--on", "http://board:1"], 1, "there is no device"),
        (["--stdio", "--json"], 2, "both use stdout"),
        (["--token", "secret"], 2, "--token"),
    ],
)
def test_agent_that_cannot_start_is_one_line(shell, words, code, part):
    assert part in shell.fails("agent", *words, code=code)


@pytest.mark.parametrize("command", ["measure", "profile"])
def test_device_that_is_away_is_one_line(shell, command):
    with start_agent() as gone:
        pass
    message = shell.fails(command, *NET, "--on", gone.address)
    assert "cannot be reached (Connection refused)" in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--on", "http://board/path"], "is not the address of an agent"),
        (["--on", "http://token@board"], "JOULECAST_TOKEN"),
        (["--on", "ssh://-x"], "is not the address of an agent"),
    ],
)
def test_wrong_addresses_are_one_line(shell, words, part):
    assert part in shell.fails("measure", *NET, *words)


def test_meter_is_that_of_the_agent(shell, agent):
    message = shell.fails("measure", *NET, "--on", agent.address, "--meter", "rapl")
    assert "has its own meter: leave --meter rapl out" in message


def test_wrong_token_is_one_line(shell, monkeypatch):
    with start_agent(environ={"JOULECAST_TOKEN": TOKEN}) as agent:
        assert "refuses the token" in shell.fails("measure", *NET, "--on", agent.address)
        monkeypatch.setenv("JOULECAST_TOKEN", TOKEN)
        assert shell.json("measure", *NET, "--on", agent.address)["energy_j"] > 0


def test_trial_that_does_not_fit_is_one_line(shell, tmp_path):
    environ = install_slow_device(tmp_path / "site")
    site = tmp_path / "site" / "slow_device.py"
    small = 'Device("board", memory_bytes=2**20)'
    site.write_text(site.read_text().replace('Device("slow device")', small))
    with start_agent("slow", "--meter", "modelled", environ=environ) as agent:
        words = ("measure", "resnet18", "--batch", "256", "--on", agent.address)
        message = shell.fails(*words, "--no-save")
    assert "MiB, and board has 1 MiB free: use a smaller batch" in message


def test_meter_that_vanishes_is_one_line_and_blames_no_trial(shell, tmp_path):
    environ = install_slow_device(tmp_path / "site")
    watts = tmp_path / "watts"
    watts.write_text("5 W\n")
    with start_agent("slow:5", "--meter", f"command:cat {watts}", environ=environ) as agent:
        watts.unlink()
        result = shell("profile", *NET, "--on", agent.address, "--points", "3", code=1)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and "No such file" in lines[0] and "run it by hand" in lines[0]
    with open_store(str(shell.folder / "store.sqlite")) as store:
        assert not [one for one in store.list_profiles() if one.device == "slow device"]


def test_recorder_of_an_agent_is_for_profile_and_measure(shell):
    with start_agent("simulated:3", "--meter", "later") as agent:
        seen = shell.json("measure", *NET, "--on", agent.address)
        assert seen["energy_j"] is None and seen["windows"] and seen["pulses"]
        result = shell("evaluate", "lenet5", "--on", agent.address, code=1)
    assert "--meter later records windows" in result.stderr
