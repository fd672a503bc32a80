"""``profile`` profiles a device, ``profiles`` manages the results."""

from __future__ import annotations

import json
import os

import pytest

from joulecast.campaign import CampaignResult, Progress
from joulecast.cli.progress import format_campaign, guess_left, share_done
from joulecast.features.profile_report import NetProfile
from joulecast.measurer.device_lock import hold_device
from joulecast.records import Device, Profile
from joulecast.store import open_store
from joulecast.store.files import read_profile
from joulecast.system.errors import NotTrainingError
from joulecast.views.report import Text

SMALL = ("lenet5:4,8,16,16", "--on", "simulated:7", "--batch", "8")


def test_a_campaign_ends_after_its_points(shell):
    data = shell.json("profile", *SMALL, "--points", "12")
    assert data["points"] == data["new"] == 12
    assert data["provenance"] == "simulated" and "12 points" in data["stopped"]
    items = data["profile"]["estimators"]["additive"]
    points = {item["label"]: (item["energy_points"], item["duration_points"]) for item in items}
    assert points.keys() >= {"conv2d fp32", "linear fp32", "linear+loss fp32"}
    assert all(0 <= with_energy <= timed for with_energy, timed in points.values())
    assert points["conv2d fp32"][0] >= 1
    # An anchor, which is only timed.
    assert points["copy fp32"] == (0, 1)


def test_the_papers_estimator_can_be_profiled(shell):
    data = shell.json("profile", *SMALL, "--points", "12", "--estimator", "subtractive")
    curves = data["profile"]["estimators"]["subtractive"]
    assert sum(curve["energy_points"] for curve in curves) == 12


def test_missing_measures_only_unseen_layers(shell):
    shell("profile", *SMALL, "--points", "10")
    net = ("har:4,8,8,8", *SMALL[1:])
    data = shell.json("profile", *net, "--missing")
    assert "was timed" in data["stopped"] and data["new"] > 0
    assert shell.json("profile", *net, "--missing")["new"] == 0
    answer = shell.json("estimate", "har:4,8,8,8", "--device", "sim", "--batch", "8")
    assert answer["unseen_share"] == 0


def test_the_same_command_resumes(shell):
    shell("profile", *SMALL, "--points", "8")
    data = shell.json("profile", *SMALL, "--points", "12")
    assert data["points"] == 12 and data["new"] == 4
    assert shell.json("profile", *SMALL, "--points", "12")["new"] == 0


def test_the_suggested_command_runs(shell):
    text = shell("profile", *SMALL, "--points", "12", "--device-name", "toy").stdout
    assert "(simulated)" in text and "Profile of toy: 12 points" in text
    command = text.split("Next: joulecast ")[1].split()
    assert command[:4] == ["estimate", "lenet5:4,8,16,16", "--device", "toy"]
    assert shell.json(*command)["device"] == "toy"


def test_the_suggested_command_names_the_key_of_an_ambiguous_device(shell):
    older = Profile(Device("toy"), "torch-1.0", "board", "measured")
    with open_store() as store:
        store.import_profile(older)
    text = shell("profile", *SMALL, "--points", "12", "--device-name", "toy").stdout
    command = text.split("Next: joulecast ")[1].split()
    assert command[3] != "toy"
    assert shell.json(*command)["provenance"] == "simulated"
    # A name alone means the profile with the stronger provenance, and the command says so.
    result = shell("estimate", "lenet5:4,8,16,16", "--device", "toy", code=1)
    taken, problem = result.stderr.splitlines()
    assert older.key[:8] in taken and "1 other matches 'toy'" in taken
    assert "--device KEY" in taken and "profile of toy" in problem


def test_a_device_that_refuses_everything_gives_the_reason(shell, monkeypatch):
    def refuse(self, trial):
        raise NotTrainingError("no weight of the net moved: train one of its layers")

    monkeypatch.setattr("joulecast.simulation.runtime.SimulatedRuntime.prepare", refuse)
    result = shell("profile", *SMALL, "--points", "12", code=1)
    assert "no weight of the net moved" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_campaign_ends_after_its_time(shell):
    data = shell.json("profile", *SMALL, "--seconds", "20", "--interval", "0.1%")
    assert data["elapsed_s"] <= 20 and "budget" in data["stopped"]


def test_time_can_be_the_acquisition(shell):
    data = shell.json("profile", *SMALL, "--points", "10", "--acquisition", "time")
    assert data["points"] == 10


def test_a_wide_interval_is_soon_reached(shell):
    data = shell.json("profile", "lenet5:1,1,1,1", *SMALL[1:], "--interval", "90%")
    assert data["uncertainty_share"] < 0.9 and "known within" in data["stopped"]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["nix"], 1, "cnn5"),
        (["cnn5", "--batch", "0"], 2, "'--batch': 0"),
        (["cnn5", "--on", "cuda:0,cuda:1"], 1, "one device at a time"),
        (["cnn5", "--meter", "command:no-such-program"], 1, "no-such-program"),
        (["cnn5", "--points", "0"], 2, "--points"),
        (["cnn5", "--interval", "5"], 2, "not a share"),
        (["cnn5", "--acquisition", "stars"], 2, "energy"),
    ],
)
def test_bad_options_are_one_line(shell, words, code, part):
    assert part in shell.fails("profile", *words, code=code)


@pytest.mark.parametrize("place", ["/proc/store.sqlite", "mysql://here/there"])
def test_an_impossible_store_is_one_line(shell, place):
    assert "store" in shell.fails("profile", *SMALL, "--points", "2", "--store", place)


def test_a_read_only_store_is_one_line(profiled):
    place = f"sqlite:///file:{profiled.folder / 'store.sqlite'}?mode=ro&uri=true"
    assert "store" in profiled.fails("profile", *SMALL, "--points", "99", "--store", place)
    assert profiled.json("profiles", "list", "--store", place)["profiles"]


def test_a_second_campaign_on_a_device_is_refused(shell):
    with hold_device("cpu"):
        error = shell.fails("profile", "lenet5", "--on", "cpu", "--points", "2")
    assert "another campaign" in error and f"process {os.getpid()}" in error


# -- progress -----------------------------------------------------------------------------------


def test_time_left_is_that_of_the_nearer_limit():
    first, now = Progress(10, 1.0, 0.0, 100.0, ""), Progress(14, 0.5, 40.0, 60.0, "why")
    assert guess_left(now, first, None) == 60.0
    assert guess_left(now, first, 17) == 30.0
    assert guess_left(first, first, None) == 100.0
    assert share_done(now, first, 17) == pytest.approx(40 / 70)


def test_time_left_is_unknown_at_the_start():
    first = Progress(0, 1.0, 0.0, None, "bounds " * 20)
    assert guess_left(first, first, 12) is None and share_done(first, first, 12) is None
    assert format_campaign(first, first, 12) == "0 of 12 points  ± 100 %"


def test_a_progress_bar_appears_on_terminals_only(shell, monkeypatch):
    assert shell("profile", *SMALL, "--points", "6").stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shell("profile", *SMALL, "--points", "8").stderr
    assert "8 of 8 points" in text


# -- profiles -----------------------------------------------------------------------------------


def test_an_exported_profile_is_imported_again(profiled):
    profiled("profiles", "export", "sim", "again.json")
    with open_store(create=False) as store:
        kept = store.find_profile("simulated-7")
    assert read_profile("again.json") == kept
    assert profiled.json("profiles", "import", "again.json")["new_observations"] == 0
    assert profiled.json("profiles", "remove", "sim")["observations"] == len(kept.observations)
    assert all(one["shipped"] for one in profiled.json("profiles", "list")["profiles"])
    data = profiled.json("profiles", "import", "again.json")
    assert data["new_observations"] == len(kept.observations)


def test_profiles_are_listed_and_shown(profiled):
    (one,) = [p for p in profiled.json("profiles", "list")["profiles"] if not p["shipped"]]
    assert one["device"] == "simulated-7" and one["estimators"] == ["additive"]
    assert one["key"][:8] in profiled("profiles", "list").stdout
    shown = profiled.json("profiles", "show", one["key"][:6])
    assert shown["key"] == one["key"]
    assert shown["observations"] == one["observation_count"]
    text = profiled("profiles", "show", "simulated-7").stdout
    assert "simulated, not a real device" in text and "batch 8" in text


def test_listing_creates_no_store(shell):
    before = shell.snapshot()
    shell("profiles", "list")
    assert shell.snapshot() == before


def test_only_an_unambiguous_profile_is_removed(profiled):
    other = Profile(Device("simulated-7"), "torch-1.0", "board", "measured")
    with open_store() as store:
        store.import_profile(other)
    assert other.key in profiled.fails("profiles", "remove", "simulated-7")
    assert profiled.json("profiles", "remove", other.key)["key"] == other.key
    assert profiled.json("profiles", "show", "simulated-7")["provenance"] == "simulated"


def test_an_unknown_profile_is_one_line(shell):
    for words in (["show", "x"], ["export", "x", "x.json"], ["remove", "x"]):
        assert "no profile of 'x'" in shell.fails("profiles", *words)


def damage(text: str) -> str:
    return text.replace('"covers": "', '"covers": "not ', 1)


def make_newer(text: str) -> str:
    return text.replace('"version": 2', '"version": 99', 1)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (damage, "checksum"),
        (make_newer, "newer"),
        (lambda text: text[:1000], "damaged"),
        (lambda text: json.dumps({"format": "something-else"}), "not a joulecast-profile"),
        (lambda text: "", "damaged"),
    ],
)
def test_bad_profile_files_are_one_line(profiled, profile_file, write, change, part):
    write("bad.json", change(profile_file.read_text()))
    assert part in profiled.fails("profiles", "import", "bad.json")
    assert part in profiled.fails("estimate", "lenet5", "--profile", "bad.json")


def test_an_empty_profile_is_one_line(shell):
    empty = Profile(Device("new-board"), "torch-2.13.0", "board", "measured")
    with open_store() as store:
        store.import_profile(empty)
    assert "profile of new-board" in shell.fails("estimate", "lenet5", "--device", "new-board")


def test_a_report_counts_equal_reasons_and_disturbances():
    empty = Profile(Device("new-board"), "torch-2.13.0", "board", "measured")
    skipped = ("anchor: no copy", "energy of conv2d", "anchor: no copy")
    causes = {"gap": 1, "throttled": 3}
    result = CampaignResult("key", 3, 1, 0.1, 9.0, "time is up", skipped, 2, causes)
    blocks = NetProfile(empty, "joulecast estimate", result).report().blocks
    assert [block.text.partition(" (the")[0] for block in blocks if isinstance(block, Text)] == [
        "Stopped because time is up. Provenance: measured by a meter.",
        "2 doubtful measurements repeated.",
        "3 disturbed windows: throttled",
        "1 disturbed window: gap.",
        "Skipped: anchor: no copy (2 times)",
        "Skipped: energy of conv2d",
        "Next: joulecast estimate",
    ]


def test_a_device_starts_from_others(shell):
    shell("profile", *SMALL, "--points", "12")
    net = (SMALL[0], "--on", "simulated:8", "--batch", "8")
    assert "simulated-8" in shell("profile", *net, "--points", "8", "--from", "simulated-7").stdout
    text = shell("estimate", SMALL[0], "--device", "simulated-8", "--batch", "8").stdout
    assert "Transferred from simulated-7: " in " ".join(text.split())
    for name, reason in (
        ("simulated-8", "itself"),
        ("nvidia-h200", "frameworks are not mixed"),
        ("nothing", "there is no profile of 'nothing'"),
    ):
        assert reason in shell.fails("profile", *net, "--from", name)


@pytest.mark.parametrize("value", ['"nothing"', '["nothing"]'])
def test_settings_may_name_devices_to_start_from(shell, write, monkeypatch, value):
    write("joulecast.toml", f"[profile]\nfrom = {value}\n")
    assert "no profile of 'nothing'" in shell.fails("profile", *SMALL)
    monkeypatch.setenv("JOULECAST_FROM", "nowhere")
    assert "no profile of 'nowhere'" in shell.fails("profile", *SMALL)
