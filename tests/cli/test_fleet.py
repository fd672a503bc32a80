"""joulecast fleet: check devices, profile them, and choose among them."""

from __future__ import annotations

import os

import pytest

from agent_processes import TOKEN, start_agent
from fleet_examples import AgentHere, make_device, run_fleet_here

DEVICES = (
    make_device("phone", battery_j=200.0, charge_share=0.5),
    make_device("board"),
    make_device("shelf"),
)
NET = ("lenet5:4,8,16,16", "--batch", "8")
CHEAP = ("--estimator", "flops")


@pytest.fixture
def fleet(shell):
    """Run a fleet of two simulated devices and one that is away."""
    agents = {"phone": AgentHere("simulated:1"), "board": AgentHere("simulated:2")}
    with run_fleet_here(os.environ["JOULECAST_STORE"], DEVICES, agents):
        yield shell


@pytest.fixture
def profiled(fleet):
    fleet("fleet", "profile", *NET, *CHEAP, "--rounds", "1", "--devices", "phone,board")
    return fleet


def test_fleet_is_profiled_and_a_device_that_stays_away_is_reported(fleet):
    result = fleet("fleet", "profile", *NET, *CHEAP, "--rounds", "1", code=1)
    words = result.stdout.split("\n")
    assert any(line.startswith("board") and " done " in line for line in words)
    assert any(line.startswith("shelf") and " parked " in line for line in words)
    assert "2 of 3 devices profiled." in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("joulecast: 1 of 3 devices have no new profile; shelf: the agent of")
    status = fleet.json("fleet", "status")
    assert status["is_up"]
    assert [one["state"] for one in status["devices"]] == ["ready", "ready", "parked"]
    assert [one["observations"] for one in status["devices"]] == [7, 7, 0]
    text = fleet("fleet", "status").stdout
    assert text.startswith("The fleet is up.") and "cannot be reached" in " ".join(text.split())


def test_profile_can_be_requested_without_waiting(fleet):
    data = fleet.json("fleet", "profile", *NET, *CHEAP, "--devices", "shelf", "--detach")
    assert data["network"] == "lenet5:4,8,16,16"
    assert [one["device"] for one in data["devices"]] == ["shelf"]


def test_estimate_says_who_can_finish_and_why_not(profiled):
    few = profiled.json("fleet", "estimate", *NET, *CHEAP, "--steps", "10")
    assert [one["can_finish"] for one in few["devices"]] == [True, True, None]
    assert few["steps"] == 10 and few["confidence"] == 0.9 and few["deadline_s"] is None
    phone = next(one for one in few["devices"] if one["name"] == "phone")
    assert phone["battery_share"] == pytest.approx(phone["energy_j"] / 200.0)
    assert phone["interval_j"][0] < phone["energy_j"] < phone["interval_j"][1]
    many = profiled.json("fleet", "estimate", *NET, *CHEAP, "--steps", "1000000")
    found = {one["name"]: one["obstacle"] for one in many["devices"]}
    assert found == {"board": "", "phone": "battery", "shelf": "unknown"}
    late = profiled.json(
        "fleet", "estimate", *NET, *CHEAP, "--steps", "1000000", "--deadline", "1s"
    )
    assert {one["obstacle"] for one in late["devices"]} == {"battery", "deadline", "unknown"}
    text = profiled("fleet", "estimate", *NET, *CHEAP, "--steps", "1000000").stdout
    assert text.startswith("Training lenet5:4,8,16,16 (batch 8, sgd, fp32) for 1,000,000 steps\n")
    assert "1 of 3 devices can finish, with a probability of at least 90.0 %." in text


def test_charge_of_this_moment_decides(profiled):
    words = ("fleet", "estimate", *NET, *CHEAP, "--steps", "10")
    empty = profiled.json(*words, "--charge", "phone=0%")
    assert {one["name"]: one["obstacle"] for one in empty["devices"]}["phone"] == "battery"
    assert "like phone=60%" in profiled.fails(*words, "--charge", "60%")
    assert "no device of the fleet is called 'tablet'" in profiled.fails(
        *words, "--charge", "tablet=60%"
    )


def test_commands_without_a_fleet_say_what_to_do(shell):
    for words in (("status",), ("estimate", "lenet5"), ("profile", "lenet5")):
        assert "`joulecast fleet up FILE`" in shell.fails("fleet", *words)


def test_unknown_device_is_named(fleet):
    words = ("fleet", "profile", *NET, "--devices", "phone,tablet", "--detach")
    line = fleet("fleet", *words[1:], code=1).stderr
    assert "the fleet has no device 'tablet': give all, or some of board, phone, shelf" in line


def test_fleet_that_is_not_up_is_not_waited_for(shell):
    with run_fleet_here(os.environ["JOULECAST_STORE"], DEVICES, {}):
        pass
    assert "the fleet is not up" in shell.fails("fleet", "profile", "lenet5")
    assert shell("fleet", "status").stdout.startswith("The fleet is not up")


def test_fleet_file_with_two_devices_of_one_name_is_refused(shell, write):
    table = '[[device]]\nname = "phone"\naddress = "http://phone"\n'
    write("fleet.toml", table * 2)
    line = shell.fails("fleet", "up", "fleet.toml")
    assert line == (
        "joulecast: fleet.toml: two [[device]] are called 'phone': give each its own name"
    )


def test_check_reports_every_device(shell, write, monkeypatch):
    monkeypatch.setenv("JOULECAST_TOKEN", TOKEN)
    with start_agent("simulated:4") as agent:
        table = '[[device]]\nname = "{}"\naddress = "{}"\n'
        write("fleet.toml", table.format("board", agent.address))
        assert "1 of 1 device ready." in shell("fleet", "up", "fleet.toml", "--check").stdout
        away = table.format("shelf", "http://127.0.0.1:9")
        write("fleet.toml", table.format("board", agent.address) + away)
        result = shell("fleet", "up", "fleet.toml", "--check", "--json", code=1)
        monkeypatch.setenv("JOULECAST_TOKEN", f"{TOKEN}-of-another")
        refused = shell("fleet", "up", "fleet.toml", "--check", code=1)
    assert '"state": "ready"' in result.stdout and '"state": "away"' in result.stdout
    assert result.stderr == "joulecast: 1 of 2 devices are not ready: see above\n"
    assert "refuses the token" in " ".join(refused.stdout.split())
    assert not any(path.name.endswith(".sqlite") for path in shell.folder.rglob("*"))


def test_fleet_without_any_device_that_answers_ends_with_the_reason(shell, write):
    write("fleet.toml", '[[device]]\nname = "shelf"\naddress = "http://127.0.0.1:9"\n')
    line = shell("fleet", "up", "fleet.toml", code=1).stderr
    assert line.startswith("joulecast: no device of the fleet is ready: shelf: the agent at http")
    assert line.count("\n") == 1


def test_second_coordinator_of_a_store_is_refused(fleet, write, monkeypatch):
    monkeypatch.setattr("joulecast.features.fleet._CLAIM_WAIT_S", 0.0)
    write("fleet.toml", '[[device]]\nname = "shelf"\naddress = "http://127.0.0.1:9"\n')
    line = fleet("fleet", "up", "fleet.toml", code=1).stderr
    assert "another process runs the fleet of the store" in line
