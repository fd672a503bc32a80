"""Tables about a fleet: what people see of campaigns, devices and forecasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_examples import make_device
from joulecast.api.fleet import FleetStatus
from joulecast.cli.print_fleet import (
    describe_forecast,
    describe_status,
    print_campaigns,
    print_checks,
    print_event,
    print_forecast,
    print_status,
)
from joulecast.fleet.fleet_devices import DeviceCheck
from joulecast.fleet.fleet_forecast import DeviceForecast, FleetEstimate
from joulecast.records import Setup
from joulecast.store.campaigns import StoredCampaign, StoredDevice

CAMPAIGN = StoredCampaign("k", "lenet5", "phone", "done", "9 points", 9, 0.05, 75.0, 0.0, 0.0)
DEVICE = StoredDevice("phone", {"address": "http://phone"}, "ready", "", "0123456789abcdef", "", 0)
STATUS = FleetStatus(True, (DEVICE,), (CAMPAIGN,), {"0123456789abcdef": 1234})
FORECAST = DeviceForecast(
    "phone", "ready", True, "", "", 0.95, 12.5, (10.0, 15.0), 3.0, (2.0, 4.0), 0.125, 2**20, 0.0125,
    0.0, "measured", "board", "k",
)  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def find_row(text, name):
    return next(line for line in text.splitlines() if line.startswith(name)).split()


def test_checks_show_what_was_found_and_why_not(capsys):
    ready = DeviceCheck(make_device("phone"), "ready", "", "k", "Pixel 8, mnn-3.6.1, battery")
    away = DeviceCheck(make_device("shelf"), "away", "it cannot be reached: start it")
    print_checks([ready, away])
    text = capsys.readouterr().out
    assert find_row(text, "phone") == ["phone", "ready", "Pixel", "8,", "mnn-3.6.1,", "battery"]
    assert find_row(text, "shelf ")[1:] == ["away", "http://shelf:8377"]
    assert "shelf: it cannot be reached: start it" in text
    assert "1 of 2 devices ready." in text


def test_events_have_a_time_and_go_to_stderr(capsys):
    print_event("phone", "away: unplugged")
    output = capsys.readouterr()
    assert output.out == "" and output.err.endswith("  phone: away: unplugged\n")


def test_campaigns_show_points_uncertainty_and_time(capsys):
    waiting = replace(CAMPAIGN, device="tablet", state="waiting", uncertainty_share=None)
    print_campaigns([CAMPAIGN, replace(waiting, elapsed_s=0.0, points=0, reason="")])
    text = capsys.readouterr().out
    assert " ".join(find_row(text, "phone")) == "phone done 9 5.00 % 1 min 15 s 9 points"
    assert find_row(text, "tablet")[1:] == ["waiting", "0", "-", "-"]
    assert "1 of 2 devices profiled." in text


def test_status_counts_observations_and_shows_each_reason_once(capsys):
    running = replace(CAMPAIGN, state="running", reason="conv2d")
    away = replace(DEVICE, name="shelf", state="away", reason="it is gone", profile_key="")
    print_status(replace(STATUS, is_up=False, devices=(DEVICE, away), campaigns=(running,)))
    text = capsys.readouterr().out
    assert text.startswith("The fleet is not up")
    assert find_row(text, "phone") == ["phone", "ready", "1,234", "01234567", "http://phone"]
    assert find_row(text, "lenet5")[1:3] == ["phone", "stopped"]
    assert text.count("it is gone") == 1
    data = describe_status(STATUS)
    assert data["devices"][0]["observations"] == 1234 and data["campaigns"][0]["points"] == 9


def test_forecast_shows_energy_battery_and_obstacle(capsys):
    late = replace(
        FORECAST, name="tablet", can_finish=False, obstacle="deadline", reason="takes up to 9 s",
        probability=0.2, battery_share=None, provenance="simulated",
    )  # fmt: skip
    unknown = DeviceForecast("shelf", "away", None, "unknown", "no profile yet")
    found = FleetEstimate("lenet5", Setup(), 1000, 0.95, 0.9, 5.0, (FORECAST, late, unknown))
    print_forecast(found)
    text = capsys.readouterr().out
    assert "for 1,000 steps within 5.00 s" in text
    row = " ".join(find_row(text, "phone"))
    assert row == "phone 12.5 J 10.0–15.0 J 3.00 s 12.5 % yes, 95.0 %"
    row = " ".join(find_row(text, "tablet"))
    assert "(simulated)" in row and row.endswith("- no, 20.0 % deadline: takes up to 9 s")
    assert find_row(text, "shelf")[-4:] == ["unknown", "no", "profile", "yet"]
    assert "1 of 3 devices can finish, with a probability of at least 90.0 %." in text


def test_forecast_of_inference_shows_the_latency(capsys):
    setup = Setup(batch=1, phase="inference")
    unknown = DeviceForecast("shelf", "away", None, "unknown", "no profile yet")
    found = FleetEstimate("lenet5", setup, 1000, 0.95, 0.9, None, (FORECAST, unknown))
    print_forecast(found)
    text = capsys.readouterr().out
    assert "Running lenet5 (batch 1, inference, fp32) for 1,000 inferences" in text
    row = " ".join(find_row(text, "phone"))
    assert row == "phone 12.5 J 10.0–15.0 J 3.00 s 3.00 ms 12.5 % yes, 95.0 %"
    known, missing = describe_forecast(found)["devices"]
    assert known["latency_s"] == 0.003 and known["energy_per_inference_j"] == 0.0125
    assert missing["latency_s"] is None
