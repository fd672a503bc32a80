"""``plan`` schedules the jobs of a file on its devices."""

from __future__ import annotations

import sys
import time

import pytest

JOBS = """
[[job]]
name = "first"
net = "lenet5:3,5,9,11"
batch = 8
steps = 50_000
deadline = "3h"

[[job]]
name = "second"
net = "lenet5:4,8,16,16"
batch = 8
epochs = 2
samples = 100_000
release = "10min"
deadline = 2030-05-02T02:00:00
devices = ["phone"]
"""
DEVICES = """
[[device]]
name = "phone"
profile = "sim"
battery_wh = 50
charge = "70%"
reserve = "10%"
charger_w = 15
[[device.charging]]
from = "1h"
to = "2030-05-01T23:30"

[[device]]
name = "board"
power_w = 4
flops_per_s = 5e9
idle_w = 2
memory = "2GiB"
max_parallel = 2
"""
NOW = ("--now", "2030-05-01T22:00")


@pytest.fixture
def planned(profiled, write):
    write("jobs.toml", JOBS + DEVICES)
    return profiled


def test_json_has_a_valid_schedule(planned):
    data = planned.json("plan", "jobs.toml", *NOW)
    slots = {
        job["job"]: {**job, "on": dev["device"]} for dev in data["devices"] for job in dev["jobs"]
    }
    assert set(slots) == {"first", "second"} and not data["left_out"]
    assert slots["second"]["on"] == "phone"
    assert slots["second"]["start_s"] >= 600 and slots["second"]["end_s"] <= 4 * 3600
    assert slots["first"]["end_s"] <= 3 * 3600
    assert slots["second"]["start"].startswith("2030-05-01T22:1")
    assert data["is_optimal"] and data["gap_share"] == 0
    assert data["planned_lower_bound_j"] <= data["planned_energy_j"] * (1 + 1e-9)
    assert data["energy_j"] == pytest.approx(data["planned_energy_j"], rel=1e-6)
    low, high = data["interval_j"]
    assert low < data["energy_j"] < high
    assert data["provenance"] == "simulated" and data["confidence"] == 0.5
    (phone,) = (dev for dev in data["devices"] if dev["device"] == "phone")
    assert all(0.1 <= share <= 1 for _, share in phone["charge"])
    assert slots["second"]["charge_share"] == pytest.approx(phone["charge"][-1][1], abs=0.2)


def test_jobs_cost_what_estimate_predicts(planned):
    data = planned.json("plan", "jobs.toml", *NOW)
    words = ("lenet5:4,8,16,16", "--device", "sim", "--batch", "8", "--epochs", "2")
    asked = planned.json("estimate", *words, "--samples", "100000")
    (job,) = (j for dev in data["devices"] for j in dev["jobs"] if j["job"] == "second")
    assert job["energy_j"] == pytest.approx(asked["total_energy_j"])
    assert job["interval_j"] == pytest.approx(asked["total_interval_j"])
    assert job["end_s"] - job["start_s"] == pytest.approx(asked["total_duration_s"])


def test_confidence_plans_with_more_energy(planned):
    even, sure = (
        planned.json("plan", "jobs.toml", *NOW, "--confidence", level) for level in ("50%", "95%")
    )
    assert sure["planned_energy_j"] > even["planned_energy_j"]
    where = [[job["job"] for job in dev["jobs"]] for dev in even["devices"]]
    assert where == [[job["job"] for job in dev["jobs"]] for dev in sure["devices"]]
    assert sure["energy_j"] - sure["idle_j"] == pytest.approx(even["energy_j"] - even["idle_j"])
    assert "stays below its energy and time with a probability of 95 %" in " ".join(
        planned("plan", "jobs.toml", *NOW, "--confidence", "0.95").stdout.split()
    )


def test_text_shows_the_schedule_and_its_limits(planned):
    text = planned("plan", "jobs.toml", *NOW).stdout
    assert (
        "2 jobs on" in text
        and "(simulated, 95 % interval" in text
        and "The plan is optimal." in text
    )
    assert "mains" in text or "%" in text
    flat = " ".join(text.split())
    assert "Not modelled: slowdown of jobs that run at the same time" in flat
    assert "simulated, not a real device" in flat and "2030-05-01 22:00" in flat
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", ["timeline.html", "timeline.svg", "timeline.png"])
def test_a_timeline_is_plotted(planned, name):
    planned("plan", "jobs.toml", *NOW, "--plot", name)
    assert (planned.folder / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("old", "new", "kind", "words"),
    [
        ('deadline = "3h"', 'deadline = "1s"', "deadline", "late"),
        ('memory = "2GiB"', 'memory = "2kB"', "memory", "the memory of board lacks"),
        ('charge = "70%"', 'charge = "11%"', "battery", "the battery of phone lacks"),
    ],
)
def test_jobs_that_cannot_run_have_reasons(profiled, write, old, new, kind, words):
    only = {"deadline": ("first", ["board"]), "memory": ("first", ["board"])}
    jobs = JOBS.replace('deadline = "3h"', 'deadline = "3h"\ndevices = ["board"]')
    devices = DEVICES.replace('charger_w = 15\n[[device.charging]]\nfrom = "1h"\n', "")
    devices = devices.replace('to = "2030-05-01T23:30"\n', "")
    write(
        "jobs.toml",
        (jobs + devices).replace(old, new).replace("samples = 100_000", "samples = 4_000_000"),
    )
    data = profiled.json("plan", "jobs.toml", *NOW)
    name = only.get(kind, ("second", ["phone"]))[0]
    (left,) = (one for one in data["left_out"] if one["job"] == name)
    (reason,) = left["reasons"]
    assert reason["reason"] == kind and reason["missing"] > 0 and left["alone"]
    text = " ".join(profiled("plan", "jobs.toml", *NOW).stdout.split())
    assert f"{name} cannot run: " in text and words in text


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("steps = 50_000", "steps = 0", ("[[job]] first", "steps is 0")),
        ("steps = 50_000", "step = 5", ("[[job]] first", "unknown key 'step'")),
        ("steps = 50_000", "epochs = 5", ("[[job]] first", "epochs and samples")),
        ('net = "lenet5:3,5,9,11"', "", ("[[job]] first", "net is missing")),
        ('net = "lenet5:3,5,9,11"', 'net = "nix"', ("[[job]] first", "no net 'nix'")),
        ('deadline = "3h"', "deadline = 3", ("[[job]] first", "deadline is 3", "2h")),
        ('deadline = "3h"', 'deadline = "soon"', ("[[job]] first", "deadline is 'soon'")),
        ('release = "10min"', 'release = "6h"', ("[[job]] second", "deadline is before")),
        ('devices = ["phone"]', 'devices = ["fridge"]', ("second", "'fridge'", "phone")),
        ('name = "second"', 'name = "first"', ("two [[job]]", "'first'")),
        ('name = "second"', "", ("[[job]] number 2", "no name")),
        ('charge = "70%"', 'charge = "170%"', ("[[device]] phone", "charge is '170%'")),
        ("battery_wh = 50", "", ("[[device]] phone", "needs battery_wh")),
        ('to = "2030-05-01T23:30"', "", ("[[device]] phone, charging 1", "to is missing")),
        ('to = "2030-05-01T23:30"', 'to = "30min"', ("[[device]] phone", "charging window")),
        ('profile = "sim"', 'profile = "moon"', ("[[device]] phone", "'moon'")),
        ("flops_per_s = 5e9", "", ("[[device]] board", "power_w and flops_per_s")),
        ('memory = "2GiB"', 'memory = "2"', ("[[device]] board", "memory is '2'")),
        ("max_parallel = 2", "max_parallel = 0.5", ("[[device]] board", "max_parallel is 0.5")),
        ("max_parallel = 2", "asleep_w = 5", ("[[device]] board", "asleep_w is 5", "2 W")),
        ('deadline = "3h"', 'input = "3xx"', ("[[job]] first", "input is '3xx'", "3x96x96")),
        ('deadline = "3h"', "input = 3", ("[[job]] first", "input is 3", "3x96x96")),
        ("[[job]]", "[[jobs]]", ("unknown key 'jobs'",)),
        ("[[job]]", "[[job", ("not valid TOML",)),
    ],
)
def test_a_bad_file_is_one_line_with_its_location(profiled, write, old, new, parts):
    write("jobs.toml", (JOBS + DEVICES).replace(old, new))
    said = profiled.fails("plan", "jobs.toml", *NOW)
    assert "jobs.toml" in said
    assert all(part in said for part in parts), said


def test_a_job_that_is_not_a_table_is_one_line(profiled, write):
    write("jobs.toml", "job = [1]\n" + DEVICES)
    assert "[[job]] number 1 is 1" in profiled.fails("plan", "jobs.toml", *NOW)


def test_stated_devices_show_their_provenance(profiled, write):
    only = JOBS.split("[[job]]")[1].replace('deadline = "3h"', "")
    write("jobs.toml", "[[job]]" + only + "[[device]]" + DEVICES.split("[[device]]")[2])
    text = profiled("plan", "jobs.toml", *NOW).stdout
    flat = " ".join(text.split())
    assert "The plan is optimal." in flat
    assert "modelled, not measured: FLOPs / flops_per_s at a stated power_w (board)" in flat
    assert "CPU time" not in flat and "meters cover" not in flat
    assert all(len(line.split()) > 1 for line in text.splitlines() if line.strip("─ "))


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system's clock has no tzset")
def test_local_times_respect_daylight_saving(planned, write, monkeypatch):
    """From 22:00 to 08:00 it is eleven hours in the night that summer time ends."""
    jobs = JOBS.replace('deadline = "3h"', "").replace("2030-05-02T02", "2030-10-27T09")
    jobs = jobs.replace('release = "10min"', "release = 2030-10-27T08:00:00")
    phone = DEVICES.split("[[device.charging]]")[0].replace("charger_w = 15", "")
    write("jobs.toml", jobs + phone)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        starts = {
            now: planned.json("plan", "jobs.toml", "--now", now)["devices"][-1]["jobs"][-1]
            for now in ("2030-10-26T22:00", "2030-10-26T22:00+02:00")
        }
    time.tzset()
    local, named = starts.values()
    assert local["start_s"] == 11 * 3600 and local["start"] == "2030-10-27T08:00:00+01:00"
    assert named["start_s"] == 10 * 3600 and named["start"] == "2030-10-27T08:00:00+02:00"


def test_bad_options_are_one_line(planned):
    assert "nowhere.toml" in planned.fails("plan", "nowhere.toml")
    assert ".svg" in planned.fails("plan", "jobs.toml", "--plot", "plan.txt", code=2)
    for share in ("30%", "100%"):
        assert "--confidence" in planned.fails("plan", "jobs.toml", "--confidence", share, code=2)
    assert "not a time" in planned.fails("plan", "jobs.toml", "--now", "noon", code=2)


def test_a_missing_solver_names_the_extra(planned, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert "pip install 'joulecast[plan]'" in planned.fails("plan", "jobs.toml", *NOW)
