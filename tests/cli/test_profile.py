"""``profile`` profiles a device, ``profiles`` manages the results."""

import json
import os

import pytest

from joulecast.campaign import CampaignResult, Progress
from joulecast.cli.progress import format_atlas, format_campaign, guess_left, share_done
from joulecast.features.profile_report import describe_campaign
from joulecast.measurer.device_lock import hold_device
from joulecast.records import Device, Profile
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.store.files import read_profile
from joulecast.system.errors import NotTrainingError
from joulecast.views.report import Text

EMPTY = Profile(Device("new-board"), "torch-2.13.0", "board", "measured")
SMALL = ("lenet5:4,8,16,16", "--on", "simulated:7", "--batch", "8")


def test_a_campaign_ends_after_its_points_and_the_same_command_resumes(shell, monkeypatch):
    first = shell("profile", *SMALL, "--points", "8", "--json")
    assert first.stderr == "" and json.loads(first.stdout)["new"] == 8
    # A progress bar appears on terminals only.
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = shell("profile", *SMALL, "--points", "12", "--json")
    assert "12 of 12 points" in result.stderr
    data = json.loads(result.stdout)
    assert (data["points"], data["new"], data["provenance"]) == (12, 4, "simulated")
    assert "12 points" in data["stopped"]
    items = data["profile"]["estimators"]["additive"]
    points = {item["label"]: (item["energy_points"], item["duration_points"]) for item in items}
    assert points.keys() >= {"conv2d fp32", "linear fp32", "linear+loss fp32"}
    assert all(0 <= with_energy <= timed for with_energy, timed in points.values())
    # An anchor, which is only timed.
    assert points["conv2d fp32"][0] >= 1 and points["copy fp32"] == (0, 1)
    assert shell.json("profile", *SMALL, "--points", "12")["new"] == 0


@pytest.mark.parametrize(
    ("words", "stopped"),
    [
        (("--seconds", "20", "--interval", "0.1%"), "budget"),
        (("--interval", "90%"), "known within"),
        (("--points", "10", "--acquisition", "time"), "10 points"),
        (("--points", "12", "--estimator", "subtractive"), "12 points"),
    ],
)
def test_options_say_when_a_campaign_ends(shell, words, stopped):
    data = shell.json("profile", *SMALL, *words)
    assert stopped in data["stopped"]
    assert data["profile"]["estimators"].keys() == {
        "subtractive" if "subtractive" in words else "additive"
    }


def test_missing_measures_only_unseen_layers(shell):
    shell("profile", *SMALL, "--points", "10")
    net = ("har:4,8,8,8", *SMALL[1:])
    data = shell.json("profile", *net, "--missing")
    assert "was timed" in data["stopped"] and data["new"] > 0
    assert shell.json("profile", *net, "--missing")["new"] == 0
    answer = shell.json("estimate", "har:4,8,8,8", "--device", "sim", "--batch", "8")
    assert answer["unseen_share"] == 0


def test_the_suggested_command_names_the_key_of_an_ambiguous_device(shell):
    older = Profile(Device("toy"), "torch-1.0", "board", "measured")
    with open_store() as store:
        store.import_profile(older)
    text = shell("profile", *SMALL, "--points", "12", "--device-name", "toy").stdout
    assert "(simulated)" in text and "Profile of toy: 12 points" in text
    command = text.split("Next: joulecast ")[1].split()
    assert command[:3] == ["estimate", "lenet5:4,8,16,16", "--device"] and command[3] != "toy"
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


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["cnn5", "--batch", "0"], 2, "'--batch': 0"),
        (["cnn5", "--on", "cuda:0,cuda:1"], 1, "one device at a time"),
        (["cnn5", "--meter", "command:no-such-program"], 1, "no-such-program"),
        (["cnn5", "--acquisition", "stars"], 2, "energy"),
        ([*SMALL, "--store", "/proc/store.sqlite"], 1, "store"),
        ([*SMALL, "--store", "mysql://here/there"], 1, "store"),
    ],
)
def test_bad_options_are_one_line(shell, words, code, part):
    assert part in shell.fails("profile", *words, code=code)


def test_a_second_campaign_on_a_device_is_refused(shell):
    with hold_device("cpu"):
        error = shell.fails("profile", "lenet5", "--on", "cpu", "--points", "2")
    assert "another campaign" in error and f"process {os.getpid()}" in error


# -- progress -----------------------------------------------------------------------------------


def test_time_left_is_that_of_the_nearer_limit():
    first, now = Progress(10, 1.0, 0.0, 100.0, ""), Progress(14, 0.5, 40.0, 60.0, "why")
    assert guess_left(now, first, None) == 60.0 and guess_left(now, first, 17) == 30.0
    assert guess_left(first, first, None) == 100.0
    assert share_done(now, first, 17) == pytest.approx(40 / 70)
    start = Progress(0, 1.0, 0.0, None, "bounds " * 20)
    assert guess_left(start, start, 12) is None and share_done(start, start, 12) is None
    assert format_campaign(start, start, 12) == "0 of 12 points  ± 100 %"


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
    assert shown["key"] == one["key"] and shown["observations"] == one["observation_count"]
    text = profiled("profiles", "show", "simulated-7").stdout
    assert "simulated, not a real device" in text and "batch 8" in text


def test_a_read_only_store_is_one_line(profiled):
    place = f"sqlite:///file:{profiled.folder / 'store.sqlite'}?mode=ro&uri=true"
    assert "store" in profiled.fails("profile", *SMALL, "--points", "99", "--store", place)
    assert profiled.json("profiles", "list", "--store", place)["profiles"]


def test_only_an_unambiguous_profile_is_removed(profiled):
    other = Profile(Device("simulated-7"), "torch-1.0", "board", "measured")
    with open_store() as store:
        store.import_profile(other)
    assert other.key in profiled.fails("profiles", "remove", "simulated-7")
    assert profiled.json("profiles", "remove", other.key)["key"] == other.key
    assert profiled.json("profiles", "show", "simulated-7")["provenance"] == "simulated"


def test_profiles_that_cannot_be_used_are_one_line(shell, write):
    before = shell.snapshot()
    shell("profiles", "list")
    assert shell.snapshot() == before
    write("bad.json", "")
    assert "damaged" in shell.fails("profiles", "import", "bad.json")
    assert "damaged" in shell.fails("estimate", "lenet5", "--profile", "bad.json")
    for words in (["show", "x"], ["export", "x", "x.json"], ["remove", "x"]):
        assert "no profile of 'x'" in shell.fails("profiles", *words)
    with open_store() as store:
        store.import_profile(EMPTY)
    assert "profile of new-board" in shell.fails("estimate", "lenet5", "--device", "new-board")


def test_a_report_counts_equal_reasons_and_disturbances():
    skipped = ("anchor: no copy", "energy of conv2d", "anchor: no copy")
    causes = {"gap": 1, "throttled": 3}
    result = CampaignResult("key", 3, 1, 0.1, 9.0, "time is up", skipped, 2, causes)
    blocks = describe_campaign(result, EMPTY, "joulecast estimate").report().blocks
    assert [block.text.partition(" (the")[0] for block in blocks if isinstance(block, Text)] == [
        "Stopped because time is up. Provenance: measured by a meter.",
        "2 doubtful measurements repeated.",
        "3 disturbed windows: throttled",
        "1 disturbed window: gap.",
        "Skipped: anchor: no copy (2 times)",
        "Skipped: energy of conv2d",
        "Next: joulecast estimate",
    ]


@pytest.mark.parametrize("value", ['"nothing"', '["nothing"]'])
def test_settings_may_name_devices_to_start_from(shell, write, monkeypatch, value):
    write("joulecast.toml", f"[profile]\nfrom = {value}\n")
    assert "no profile of 'nothing'" in shell.fails("profile", *SMALL)
    monkeypatch.setenv("JOULECAST_FROM", "nowhere")
    assert "no profile of 'nowhere'" in shell.fails("profile", *SMALL)


# -- an atlas, and anchors ----------------------------------------------------------------------

ATLAS = ("profile", "--atlas", "--on", "simulated:7")


@pytest.fixture
def small_atlas(monkeypatch):
    """Draw few networks, so that planning takes no time."""
    monkeypatch.setattr("joulecast.campaign.atlas._NETWORKS", {True: 3, False: 3})


def test_an_atlas_is_measured_summarised_and_resumed(shell, small_atlas, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = shell(*ATLAS, "--points", "30", "--json")
    assert "30 of 30 trials" in result.stderr and "fitting additive" in result.stderr
    data = json.loads(result.stdout)
    assert data["stopped"] == "30 trials are done" and data["provenance"] == "simulated"
    assert data["trials"] == data["new"] and 0 < data["with_energy"] < data["trials"]
    assert set(data["peaks"]["flops_per_s"]) == {"fp32", "tf32", "bf16"}
    assert data["peaks"]["launch_s"] < 1e-3 and data["idle_power_w"] > 0
    assert data["profile"]["estimators"]["additive"]
    assert shell.json(*ATLAS, "--points", "30")["new"] == 0
    text = shell(*ATLAS, "--points", "34").stdout
    assert "Atlas of simulated-7" in text and "4 of them new" in text
    assert "matrix product, bf16" in text and "FLOP/s" in text and "idle power" in text
    assert "simulated, not a real device" in text


def test_an_atlas_of_inference_is_for_inference(shell, small_atlas):
    text = shell(*ATLAS, "--inference", "--points", "30").stdout
    assert text.rstrip().endswith("joulecast estimate NET --device simulated-7 --inference")
    lines = shell("profiles", "show", "simulated-7").stdout.splitlines()
    setups = [line for line in lines if " at batch " in line]
    assert setups and all("inference" in line for line in setups)


def test_refused_trials_are_listed_by_reason(shell, small_atlas, monkeypatch):
    prepare = SimulatedRuntime.prepare

    def refuse(self, trial):
        if trial.setup.precision == "bf16":
            raise NotTrainingError("bf16 does not train here; use fp32")
        return prepare(self, trial)

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    text = shell(*ATLAS, "--points", "30").stdout
    assert "trials refused" in text and "bf16 does not train here" in text


def test_too_short_an_atlas_says_how_to_continue(shell, small_atlas):
    assert format_atlas(Progress(5, 0.0, 1.0, 90.0, "", 100)) == "5 of 100 trials  1 min 30 s left"
    assert format_atlas(Progress(0, 0.0, 0.0, None, "planning")) == ""
    result = shell(*ATLAS, "--points", "1", code=1)
    assert "same command again" in result.stderr
    assert shell.json(*ATLAS, "--points", "30")["new"] > 20


ANCHORS = ("profile", "--anchors", "--on", "simulated:7")
CARD = """name = "simulated-7"
units = 46
clock_mhz = 1725
bandwidth_gb_s = 200
memory_gib = 16
power_limit_w = 130
tflops = { fp32 = 8.0, tf32 = 24.0, bf16 = 48.0 }
"""


def test_anchors_narrow_a_net_that_keeps_the_device_busy(shell, write):
    """Nets that wait for the host gain nothing: anchors tell about the device alone."""
    error = shell.fails(*ANCHORS)
    assert 'aliases = ["simulated-7"]' in error and "devices --add FILE.toml" in error
    shell("devices", "--add", write("card.toml", CARD))
    estimate = ("estimate", "cnn5", "--device", "simulated-7")
    start = shell.json(*estimate)
    assert start["provenance"] == "datasheet"
    run = shell.json(*ANCHORS)
    assert run["new"] == run["trials"] and 0 < run["with_energy"] < run["trials"]
    anchored = shell.json(*estimate)
    assert anchored["provenance"] == "simulated"
    narrow, wide = (one["interval_j"][1] / one["interval_j"][0] for one in (anchored, start))
    assert narrow < wide
    text = shell(*ANCHORS).stdout
    assert "matrix product, bf16" in text and "of simulated-7" in text
    assert "0 new measurements" in text
    assert text.rstrip().endswith("joulecast estimate NET --device simulated-7")


@pytest.mark.parametrize(
    ("words", "part", "code"),
    [
        (("lenet5", "--anchors"), "not both", 2),
        (("lenet5", "--atlas"), "not both", 2),
        (("--anchors", "--atlas"), "not both", 2),
        (("--anchors", "--batch", "8"), "leave --batch out", 2),
        (("--anchors", "--points", "8"), "leave --points out", 2),
        (("--atlas", "--batch", "8"), "leave --batch out", 2),
        (("--atlas", "--missing"), "leave --missing out", 2),
        ((), "NET, or --atlas", 2),
        (("--anchors", "--on", "cpu"), "is a processor", 1),
    ],
)
def test_a_net_an_atlas_or_anchors_are_given(shell, words, part, code):
    on = () if "--on" in words else ("--on", "simulated:7")
    assert part in shell.fails("profile", *words, *on, code=code)
