"""Commands on devices elsewhere: the same results, and one line for everything that goes wrong."""

import json
import subprocess
import sys

import pytest

from agent_processes import TOKEN, make_trial, start_agent
from joulecast.agent.client import open_remote_measurer

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
    named = shell.json("measure", *NET, "--on", agent.address, "--device-name", "desk")
    assert named["device"]["name"] == "desk"
    for where, part in (
        (("http://127.0.0.1:1",), "cannot be reached (Connection refused)"),
        (("http://token@board",), "JOULECAST_TOKEN"),
        ((agent.address, "--meter", "rapl"), "leave --meter rapl out"),
    ):
        assert part in shell.fails("measure", *NET, "--on", *where)


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
        (["--on", "simulated:3", "--meter", "rapl"], 1, "leave --meter rapl out"),
        (["--on", "simulated:x", "--stdio"], 1, "give its seed"),
        (["--stdio", "--json"], 2, "both use stdout"),
        (["--token", "secret"], 2, "--token"),
    ],
)
def test_agent_that_cannot_start_is_one_line(shell, words, code, part):
    assert part in shell.fails("agent", *words, code=code)


def test_program_on_the_device_fails_in_one_line_too():
    for words, code in ((["--on", "nonsense"], 1), (["--token", "secret"], 2)):
        command = [sys.executable, "-m", "joulecast.agent.command", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code and done.stdout == "" and "Traceback" not in done.stderr
        assert words[1] in done.stderr.splitlines()[-1]


def test_recorder_and_token_of_an_agent(shell, monkeypatch):
    environ = {"JOULECAST_TOKEN": TOKEN}
    with start_agent("simulated:3", "--meter", "later", environ=environ) as agent:
        assert "refuses the token" in shell.fails("measure", *NET, "--on", agent.address)
        monkeypatch.setenv("JOULECAST_TOKEN", TOKEN)
        seen = shell.json("measure", *NET, "--on", agent.address)
        assert seen["energy_j"] is None and seen["windows"] and seen["pulses"]
        result = shell("evaluate", "lenet5", "--on", agent.address, code=1)
    assert "--meter later records windows" in result.stderr
