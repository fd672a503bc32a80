"""joulecast fleet: check devices, profile them, and choose among them."""

import os
from dataclasses import replace

import pytest

from agent_processes import TOKEN, start_agent
from fleet_examples import AgentHere, make_device, run_fleet_here
from joulecast.features.fleet import FleetCampaigns, FleetForecast, FleetStatus, answer_checks
from joulecast.fleet.fleet_devices import DeviceCheck
from joulecast.fleet.fleet_forecast import DeviceForecast, FleetEstimate
from joulecast.records import Setup
from joulecast.store.campaigns import StoredCampaign, StoredDevice
from joulecast.views.terminal import format_report

DEVICES = (
    make_device("phone", battery_j=200.0, charge_share=0.5),
    make_device("board"),
    make_device("shelf"),
)
NET = ("lenet5:4,8,16,16", "--batch", "8")
CHEAP = ("--estimator", "flops")
AWAY = '[[device]]\nname = "shelf"\naddress = "http://127.0.0.1:9"\n'


def test_fleet_is_profiled_and_says_who_can_finish(shell, write, monkeypatch):
    for words in (("status",), ("estimate", "lenet5"), ("profile", "lenet5")):
        assert "`joulecast fleet up FILE`" in shell.fails("fleet", *words)
    agents = {"phone": AgentHere("simulated:1"), "board": AgentHere("simulated:2")}
    with run_fleet_here(os.environ["JOULECAST_STORE"], DEVICES, agents):
        result = shell("fleet", "profile", *NET, *CHEAP, "--rounds", "1", code=1)
        words = result.stdout.split("\n")
        assert any(line.startswith("board") and " done " in line for line in words)
        assert any(line.startswith("shelf") and " parked " in line for line in words)
        (line,) = result.stderr.splitlines()
        assert line.startswith("joulecast: 1 of 3 devices have no new profile; shelf: the agent of")
        unknown = ("fleet", "profile", *NET, "--devices", "phone,tablet", "--detach")
        assert (
            "'tablet': give all, or some of board, phone, shelf" in shell(*unknown, code=1).stderr
        )
        data = shell.json("fleet", "profile", *NET, *CHEAP, "--devices", "shelf", "--detach")
        assert data["network"] == "lenet5:4,8,16,16"
        assert [one["device"] for one in data["devices"]] == ["shelf"]
        status = shell.json("fleet", "status")
        assert status["is_up"] and status["devices"][2]["state"] in ("away", "parked")
        assert [one["observations"] for one in status["devices"]] == [7, 7, 0]
        monkeypatch.setattr("joulecast.features.fleet._CLAIM_WAIT_S", 0.0)
        write("fleet.toml", AWAY)
        second = shell("fleet", "up", "fleet.toml", code=1)
        assert "another process runs the fleet" in second.stderr
    assert "the fleet is not up" in shell.fails("fleet", "profile", "lenet5")
    assert shell("fleet", "status").stdout.startswith("The fleet is not up")

    words = ("fleet", "estimate", *NET, *CHEAP)
    few = shell.json(*words, "--steps", "10")
    assert [one["can_finish"] for one in few["devices"]] == [True, True, None]
    assert few["steps"] == 10 and few["confidence"] == 0.9 and few["deadline_s"] is None
    phone = next(one for one in few["devices"] if one["name"] == "phone")
    assert phone["battery_share"] == pytest.approx(phone["energy_j"] / 200.0)
    assert phone["interval_j"][0] < phone["energy_j"] < phone["interval_j"][1]

    def list_obstacles(*more):
        found = shell.json(*words, *more)["devices"]
        return [one["obstacle"] for one in sorted(found, key=lambda one: one["name"])]

    assert list_obstacles("--steps", "1000000") == ["", "battery", "unknown"]
    late = list_obstacles("--steps", "1000000", "--deadline", "1s")
    assert late[0] == "deadline" and late[1] in ("battery", "deadline")
    assert list_obstacles("--steps", "10", "--charge", "phone=0%")[1] == "battery"
    for charge, part, code in (("60%", "like phone=60%", 2), ("tablet=60%", "'tablet'", 1)):
        assert part in shell.fails(*words, "--steps", "10", "--charge", charge, code=code)


def test_check_reports_every_device_and_stores_nothing(shell, write, monkeypatch):
    monkeypatch.setenv("JOULECAST_TOKEN", TOKEN)
    with start_agent("simulated:4") as agent:
        board = f'[[device]]\nname = "board"\naddress = "{agent.address}"\n'
        write("fleet.toml", board)
        assert "1 of 1 device ready." in shell("fleet", "up", "fleet.toml", "--check").stdout
        write("fleet.toml", board + AWAY)
        result = shell("fleet", "up", "fleet.toml", "--check", "--json", code=1)
    assert '"state": "ready"' in result.stdout and '"state": "away"' in result.stdout
    assert result.stderr == "joulecast: 1 of 2 devices are not ready: see above\n"
    assert not any(path.name.endswith(".sqlite") for path in shell.folder.rglob("*"))
    write("fleet.toml", AWAY)
    (line,) = shell("fleet", "up", "fleet.toml", code=1).stderr.splitlines()
    assert line.startswith("joulecast: no device of the fleet is ready: shelf: the agent at http")


# -- tables -------------------------------------------------------------------------------------

CAMPAIGN = StoredCampaign("k", "lenet5", "phone", "done", "9 points", 9, 0.05, 75.0, 0.0, 0.0)
DEVICE = StoredDevice("phone", {"address": "http://phone"}, "ready", "", "0123456789abcdef", "", 0)
FORECAST = DeviceForecast(
    "phone", "ready", True, "", "", 0.95, 12.5, (10.0, 15.0), 3.0, (2.0, 4.0), 0.125, 2**20, 0.0125,
    0.0, "measured", "board", "k",
)  # fmt: skip
UNKNOWN = DeviceForecast("shelf", "away", None, "unknown", "no profile yet")


@pytest.fixture
def find_row(capsys, monkeypatch):
    """Return a function that returns a printed row by its first word."""
    monkeypatch.setenv("COLUMNS", "120")

    def find(name):
        find.text = capsys.readouterr().out or find.text
        row = next(line for line in find.text.splitlines() if line.startswith(name))
        return " ".join(row.split())

    find.text = ""
    return find


def test_tables_of_devices_and_campaigns(find_row):
    ready = DeviceCheck(make_device("phone"), "ready", "", "k", "Pixel 8, mnn-3.6.1, battery")
    away = DeviceCheck(make_device("shelf"), "away", "it cannot be reached: start it")
    print(answer_checks([ready, away]))
    assert find_row("phone") == "phone ready Pixel 8, mnn-3.6.1, battery"
    assert find_row("shelf ") == "shelf away http://shelf:8377"
    assert "shelf: it cannot be reached: start it" in find_row.text
    waiting = replace(CAMPAIGN, device="tablet", state="waiting", uncertainty_share=None)
    ended = [CAMPAIGN, replace(waiting, elapsed_s=0.0, points=0, reason="")]
    print(FleetCampaigns("lenet5", tuple(ended)))
    assert find_row("phone") == "phone done 9 5.00 % 1 min 15 s 9 points"
    assert find_row("tablet") == "tablet waiting 0 - -"
    running = replace(CAMPAIGN, state="running", reason="conv2d")
    away = replace(DEVICE, name="shelf", state="away", reason="it is gone", profile_key="")
    counts = {"0123456789abcdef": 1234}
    status = FleetStatus(False, (DEVICE, away), (running,), counts)
    print(status)
    assert find_row("phone") == "phone ready 1,234 01234567 1970-01-01 00:00 UTC http://phone"
    assert find_row("lenet5").startswith("lenet5 phone stopped")
    assert find_row.text.count("it is gone") == 1
    failed = replace(CAMPAIGN, state="failed", reason="too large")
    report = FleetStatus(True, (DEVICE, away), (failed,), counts).report()
    assert "The fleet is up: 1 of 2 devices ready, 0 open campaigns." in format_report(report)
    assert [row[0] for row in report.blocks[-1].rows] == ["shelf", "phone: lenet5"]


def test_tables_of_forecasts(find_row):
    late = replace(
        FORECAST, name="tablet", can_finish=False, obstacle="deadline", reason="takes up to 9 s",
        probability=0.2, battery_share=None, provenance="simulated",
    )  # fmt: skip
    devices = (FORECAST, late, UNKNOWN)
    found = FleetEstimate("lenet5", Setup(), 1000, 0.95, 0.9, 5.0, devices)
    print(FleetForecast(found))
    assert find_row("phone") == "phone 12.5 J 10.0–15.0 J 3.00 s 12.5 % yes, 95.0 %"
    assert "for 1,000 steps within 5.00 s" in find_row.text
    row = find_row("tablet")
    assert "(simulated)" in row and row.endswith("- no, 20.0 % deadline: takes up to 9 s")
    assert find_row("shelf").endswith("unknown no profile yet")
    assert "1 of 3 devices can finish, with a probability of at least 90.0 %." in find_row.text
    setup = Setup(batch=1, phase="inference")
    found = FleetEstimate("lenet5", setup, 1000, 0.95, 0.9, None, (FORECAST, UNKNOWN))
    print(FleetForecast(found))
    assert find_row("phone") == "phone 12.5 J 10.0–15.0 J 3.00 s 3.00 ms 12.5 % yes, 95.0 %"
    assert "Running lenet5 (batch 1, inference, fp32) for 1,000 inferences" in find_row.text
