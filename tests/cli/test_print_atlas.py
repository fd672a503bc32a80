"""``profile --atlas``: what is measured, printed and refused."""

from __future__ import annotations

import pytest

from joulecast.campaign import Progress
from joulecast.cli.progress import format_atlas
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import NotTrainingError

ATLAS = ("profile", "--atlas", "--on", "simulated:7")


@pytest.fixture
def small_atlas(monkeypatch):
    """Draw few networks, so that planning takes no time."""
    monkeypatch.setattr("joulecast.campaign.atlas_campaign._NETWORKS", {True: 3, False: 3})


def test_an_atlas_is_measured_summarised_and_resumed(shell, small_atlas):
    data = shell.json(*ATLAS, "--points", "30")
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


def test_an_atlas_serves_a_network_it_never_saw(shell, small_atlas):
    shell(*ATLAS, "--points", "60")
    answer = shell.json("estimate", "resnet18", "--device", "simulated-7", "--batch", "8")
    assert answer["energy_j"] > 0


def test_an_atlas_of_inference_is_for_inference(shell, small_atlas):
    text = shell(*ATLAS, "--inference", "--points", "30").stdout
    assert text.rstrip().endswith("joulecast estimate NET --device simulated-7 --inference")
    lines = shell("profiles", "show", "simulated-7").stdout.splitlines()
    setups = [line for line in lines if " at batch " in line]
    assert setups and all("inference" in line for line in setups)


def test_an_atlas_ends_after_its_time(shell, small_atlas):
    data = shell.json(*ATLAS, "--seconds", "30")
    assert "30 s" in data["stopped"] and data["elapsed_s"] < 33


def test_refused_trials_are_listed_by_reason(shell, small_atlas, monkeypatch):
    prepare = SimulatedRuntime.prepare

    def refuse(self, trial):
        if trial.setup.precision == "bf16":
            raise NotTrainingError("bf16 does not train here; use fp32")
        return prepare(self, trial)

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse)
    text = shell(*ATLAS, "--points", "30").stdout
    assert "trials refused" in text and "bf16 does not train here" in text


def test_an_atlas_shows_trials_and_time_left(shell, small_atlas, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shell(*ATLAS, "--points", "12").stderr
    assert "12 of 12 trials" in text and "fitting additive" in text
    assert format_atlas(Progress(5, 0.0, 1.0, 90.0, "", 100)) == "5 of 100 trials  1 min 30 s left"
    assert format_atlas(Progress(0, 0.0, 0.0, None, "planning")) == ""


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["lenet5", "--atlas"], "not both"),
        (["--atlas", "--batch", "8"], "leave --batch out"),
        (["--atlas", "--missing"], "leave --missing out"),
        ([], "NET, or --atlas"),
    ],
)
def test_a_net_or_an_atlas_is_given(shell, words, part):
    assert part in shell.fails("profile", *words, "--on", "simulated:7", code=2)


def test_too_short_an_atlas_says_how_to_continue(shell, small_atlas):
    result = shell(*ATLAS, "--points", "1", code=1)
    assert "same command again" in result.stderr
    assert shell.json(*ATLAS, "--points", "30")["new"] > 20
