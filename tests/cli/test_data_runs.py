"""joulecast data import, predict and export: runs of other tools, in and out."""

import csv
import random

import pytest

from joulecast.families import draw_family
from joulecast.features.data_export import export_observations
from joulecast.records import Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store

STEPS, OVERHEAD_J = 200, 30.0
DEVICE = ("--device", "phone")


def draw_names(count, seed):
    rng = random.Random(seed)
    return [draw_family("lenet5", rng.randint).name for _ in range(count)]


def compute_run(name):
    """Return energy and duration of a run on a simulated device, overhead included."""
    from joulecast.families import make_family

    device = make_simulated_device(5)
    cost = device.true_cost(Trial(make_family(name), Setup(batch=16)))
    return STEPS * cost.energy_j + OVERHEAD_J, STEPS * cost.duration_s + 0.2


def make_runs_csv(names):
    rows = [(name, *compute_run(name)) for name in names]
    lines = (f'"{name}",{energy_j!r},{seconds!r},{STEPS},16' for name, energy_j, seconds in rows)
    return "\n".join(["net,energy_j,duration_s,steps,batch", *lines]) + "\n"


@pytest.fixture
def imported(shell, write):
    write("runs.csv", make_runs_csv(draw_names(15, seed=1)))
    result = shell.json("data", "import", "runs.csv", *DEVICE)
    assert (result["runs"], result["new"], result["is_fitted"]) == (15, 15, True)
    return shell


def test_estimates_learn_from_imported_runs(imported):
    assert imported.json("data", "import", "runs.csv", *DEVICE)["new"] == 0
    (name,) = draw_names(1, seed=2)
    run = imported.json("data", "predict", name, *DEVICE, "--steps", str(STEPS), "--batch", "16")
    true_j, true_s = compute_run(name)
    assert run["energy_j"] == pytest.approx(true_j, rel=0.15)
    assert run["duration_s"] == pytest.approx(true_s, rel=0.25)
    assert run["interval_j"][0] < true_j < run["interval_j"][1]
    assert run["source"] == "runs"
    step = imported.json("estimate", name, *DEVICE, "--batch", "16")
    assert step["provenance"] == "imported"
    assert STEPS * step["energy_j"] < run["energy_j"]
    text = imported("data", "predict", name, *DEVICE, "--steps", "10", "--batch", "16").stdout
    assert "(imported)" in text
    assert "as runs reports it" in " ".join(text.split())


def test_logs_of_other_tools_are_imported(shell, write):
    write("zeus.csv", "start_time,window_name,elapsed_time,gpu0_energy\n1.7e9,run,5.0,800\n")
    words = ("--net", "lenet5", "--batch", "8", "--steps", "100")
    zeus = shell.json("data", "import", "zeus.csv", *words, *DEVICE)
    assert (zeus["tool"], zeus["source"], zeus["new"]) == ("zeus", "zeus", 1)
    log = "Actual consumption for 2 epoch(s):\n\tTime:\t0:00:10\n\tEnergy:\t0.001 kWh\n"
    write("x_carbontracker_output.log", log)
    words = ("--net", "lenet5", "--batch", "8", "--samples", "1000")
    shell("data", "import", "x_carbontracker_output.log", *words, "--device", "board")
    with open_store(create=False) as store:
        (one,) = store.find_profile("board").observations
        (other,) = store.find_profile("phone").observations
    assert one.trial.execution.steps == 2 * 125
    assert (one.energy_j, one.duration_s) == (pytest.approx(3600.0), 10.0)
    assert (other.energy_j, other.covers, other.provenance) == (800.0, "gpu", "imported")


def test_export_is_tidy_and_codecarbon_can_be_imported_again(imported):
    assert imported.json("data", "export", "phone", "tidy.csv")["observations"] == 15
    with (imported.folder / "tidy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with open_store(create=False) as store:
        observations = store.find_profile("phone").observations
    assert [float(row["energy_j"]) for row in rows] == [one.energy_j for one in observations]
    assert {row["batch"] for row in rows} == {"16"}
    words = ("--format", "codecarbon", "--grid", "400")
    imported("data", "export", "phone", "emissions.csv", *words)
    with (imported.folder / "emissions.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    kwh = float(first["energy_consumed"])
    assert float(first["emissions"]) == pytest.approx(0.4 * kwh)
    again = imported.json("data", "import", "emissions.csv", "--batch", "16", "--steps", str(STEPS))
    assert (again["tool"], again["device"], again["runs"]) == ("codecarbon", "phone", 15)


def test_cells_are_no_formulas(shell, write, tmp_path):
    write("runs.csv", "net,energy_j,duration_s,steps\nlenet5,5,1,10\n")
    shell("data", "import", "runs.csv", "--device", "=1+1")
    export_observations("=1+1", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["device"] == "'=1+1"


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("net,energy_j,duration_s\nlenet5,5,1\n", DEVICE, "number of steps is unknown"),
        ("net,energy_j,duration_s\nlenet5,5,1\n", ("--steps", "3"), "names no device"),
        ("net,energy_j,duration_s\nnone,5,1\n", (*DEVICE, "--steps", "3"), "no net 'none'"),
        ("net,energy_j,duration_s\nevil.py:f,5,1\n", (*DEVICE, "--steps", "3"), "runs code"),
        (
            "net,energy_j,duration_s,batch\nlenet5,5,1,x\n",
            (*DEVICE, "--steps", "3"),
            "batch is 'x'",
        ),
        (
            "net,energy_j,duration_s,device\nlenet5,5,1,a\nlenet5,5,1,b\n",
            ("--steps", "3"),
            "2 devices",
        ),
        (
            "start_time,window_name,elapsed_time,gpu0_energy\n1,a,1,1\n2,b,1,1\n",
            (*DEVICE, "--net", "lenet5", "--steps", "3"),
            "windows a, b: give one as --window",
        ),
    ],
)
def test_incomplete_logs_are_refused_and_nothing_is_stored(shell, write, text, words, reason):
    write("runs.csv", text)
    assert reason in shell.fails("data", "import", "runs.csv", *words)


def test_prediction_needs_imported_runs(profiled):
    words = ("--device", "sim", "--steps", "10", "--batch", "8")
    assert "import some of its runs first" in profiled.fails(
        "data", "predict", "lenet5:4,8,16,16", *words
    )


def test_imported_runs_start_from_others(imported, write):
    write("few.csv", make_runs_csv(draw_names(4, seed=3)))
    phone = ("--device", "new phone")
    imported("data", "import", "few.csv", *phone, "--from", "phone")
    (name,) = draw_names(1, seed=2)
    words = ("data", "predict", name, *phone, "--steps", str(STEPS), "--batch", "16")
    assert imported.json(*words)["transferred_from"] == ["phone"]
    assert "Transferred from phone." in imported(*words).stdout
    # More runs of it, without the option.
    write("few.csv", make_runs_csv(draw_names(6, seed=4)))
    imported("data", "import", "few.csv", *phone)
    assert imported.json(*words)["transferred_from"] == ["phone"]
    line = imported.fails("data", "import", "few.csv", *phone, "--from", "nvidia-h200")
    assert "was profiled with torch" in line and "not mixed" in line


def test_a_level_is_exported_with_a_data_card(imported):
    words = ("data", "export", "phone", "networks.csv", "--level", "network")
    data = imported.json(*words, "--licence", "CC0")
    assert data["level"] == "network" and data["observations"] == 15
    card = (imported.folder / data["card"]).read_text()
    assert "CC0" in card and "imported: reported by somebody else" in card
    assert "Whole runs were measured by others" in card
    assert "and a data card to networks.md" in imported(*words).stdout
    assert "joulecast score" in imported.fails(*words[:-1], "application")


def test_options_of_other_formats_are_refused_with_a_level(imported):
    words = ("data", "export", "phone", "out.csv")
    assert "leave --format" in imported.fails(
        *words, "--level", "network", "--format", "codecarbon", code=2
    )
    assert "--licence needs --level" in imported.fails(*words, "--licence", "CC0", code=2)
