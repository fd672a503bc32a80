"""``estimate`` answers for whole runs and sweeps, and for nets as people really train them."""

from __future__ import annotations

import pytest

from joulecast.features.estimate_report import list_run_lines
from joulecast.features.run import (
    EVALUATION,
    TRAINING,
    WAITING,
    DataWait,
    LoadingTime,
    RunCost,
    RunPart,
    RunSchedule,
)
from joulecast.records import Setup

NET = ("lenet5:3,5,9,11", "--device", "sim", "--batch", "8")
WHOLE = ("--steps", "100", "--eval-every", "25", "--eval-samples", "50", "--runs", "3")
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def make_loader():
    return DataLoader(TensorDataset(torch.zeros(80, 1, 28, 28)), batch_size=8)
"""


def test_whole_run_adds_up(profiled):
    step = profiled.json("estimate", *NET)
    evaluated = profiled.json("estimate", *NET, "--inference")
    data = profiled.json("estimate", *NET, *WHOLE)
    # 100 steps, and 4 times 7 batches, in each of three runs.
    expected_j = 3 * (100 * step["energy_j"] + 28 * evaluated["energy_j"])
    assert data["total_energy_j"] == pytest.approx(expected_j)
    assert data["run"]["energy_j"] == data["total_energy_j"]
    assert data["runs"] == 3 and data["steps"] == 100
    assert [part["name"] for part in data["run"]["parts"]] == [TRAINING, EVALUATION]
    low_j, high_j = data["total_interval_j"]
    assert low_j == pytest.approx(
        3 * (100 * step["interval_j"][0] + 28 * evaluated["interval_j"][0])
    )
    assert low_j < expected_j < high_j
    assert "run" not in profiled.json("estimate", *NET, "--steps", "100")


def test_text_names_every_part(profiled):
    text = profiled("estimate", *NET, *WHOLE).stdout
    assert "100 steps take" in text and "4 evaluations of 7 batches take" in text
    assert "The run takes" in text and "3 runs take" in text and "simulated" in text
    assert "Not included: loading data, checkpoint files and start-up." in " ".join(text.split())


def test_loader_is_timed(profiled, write):
    name = write("data.py", LOADER)
    words = ("--steps", "10", "--loader", f"{name}:make_loader", "--accumulate", "2")
    data = profiled.json("estimate", *NET, *words)
    waiting = data["run"]["parts"][-1]
    assert waiting["name"] == WAITING and waiting["count"] == 20
    wait = data["run"]["wait"]
    assert wait["loading"]["batches"] == 9 and wait["loading"]["workers"] == 0
    assert wait["wait_s"] == wait["loading"]["batch_s"] > 0
    # The profile knows the power of the idle device.
    assert waiting["energy_j"] == pytest.approx(20 * wait["wait_s"] * wait["idle_w"])
    assert "Loading data adds" in profiled("estimate", *NET, *words).stdout


def test_battery_has_to_last_for_everything(profiled):
    plain = profiled.json("estimate", *NET, "--steps", "100", "--battery", "1Wh")["finish"]
    whole = profiled.json("estimate", *NET, *WHOLE, "--battery", "1Wh")["finish"]
    assert whole["needed_j"] > 3 * plain["needed_j"]


def test_accumulated_epochs_have_fewer_steps(profiled):
    epochs = ("--epochs", "2", "--samples", "160")
    assert profiled.json("estimate", *NET, *epochs)["steps"] == 40
    data = profiled.json("estimate", *NET, *epochs, "--accumulate", "4")
    assert data["steps"] == 10
    text = profiled("estimate", *NET, "--accumulate", "4", "--compile").stdout
    assert "batch 8, 4 batches per step, sgd, fp32, compiled" in text


def test_compared_setups_say_what_differs(profiled):
    words = ("compare", *NET[:1], "--devices", "sim", "--batch", "8", "--accumulate", "1,4")
    rows = profiled.json(*words)["rows"]
    assert {row["setup"].get("accumulate", 1) for row in rows} == {1, 4}
    text = profiled(*words).stdout
    assert "4 batches per step" in text and "1 batch per step" in text


def test_hidden_and_unknown_waits_are_described():
    loading = LoadingTime(0.002, 10, workers=4)
    parts = (
        RunPart(TRAINING, 10, 5.0, (4.0, 6.0), 1.0),
        RunPart(WAITING, 10, 0.0, (0.0, 0.0), 0.0),
    )
    cost = RunCost(
        5.0, (4.0, 6.0), 0.95, 1.0, RunSchedule(10), parts, "", "measured", DataWait(loading, 0.0)
    )
    lines = list_run_lines(cost, Setup())
    assert "Loading data adds nothing: a batch takes 2.00 ms to load with 4 workers" in lines[1]
    waiting = (parts[0], RunPart(WAITING, 10, 0.0, (0.0, 0.0), 0.01))
    slow = RunCost(
        5.0, (4.0, 6.0), 0.95, 1.0, RunSchedule(10), waiting, "", "measured",
        DataWait(loading, 0.001),
    )  # fmt: skip
    assert "Loading data adds 10.0 ms: a batch" in list_run_lines(slow, Setup())[1]
