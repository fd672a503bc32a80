"""Runs of other tools are imported and learnt from; observations are exported with a data card."""

import csv
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import joulecast
from cli_stores import run_in_store
from joulecast.families import draw_family, make_family
from joulecast.features.data.export import LEVELS, export_dataset
from joulecast.features.data.import_runs import read_run_log
from joulecast.features.reference_applications import build_reference_application
from joulecast.onnx_nets.fusion import find_fusion_table, list_kernels
from joulecast.records import OWN_NET, Device, Execution, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.system.errors import FileError, InputError, MissingError

CSV, STEPS, OVERHEAD_J = "net,energy_j,duration_s", 200, 30.0
DEVICE = ("--device", "phone")
# The header and a row of a public emissions.csv, CodeCarbon 2.4.2.
CODECARBON = """\
timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,\
cpu_energy,gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,region,\
cloud_provider,cloud_region,os,python_version,codecarbon_version,cpu_count,cpu_model,gpu_count,\
gpu_model,longitude,latitude,ram_total_size,tracking_mode,on_cloud,pue
2024-05-27T11:31:35,codecarbon,979336a5,299.7817449569702,0.016563636840486076,5.52e-05,42.5,\
302.3,31.3,0.0035390833232137897,0.027742843305368026,0.00260613401381208,0.03388806064239389,\
Singapore,SGP,,,,Linux,3.10.12,2.4.2,12,Intel(R) Xeon(R) CPU @ 2.20GHz,1,\
1 x NVIDIA A100-SXM4-40GB,103.8503,1.2868,83.4,machine,N,1.0
"""
ZEUS = """\
start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy
1700000000.5,epoch,12.5,1000.5,20.0
1700000013.0,step,0.1,10.0,1.0
"""
# As tracker.py writes it and parser.py reads it.
CARBONTRACKER = """
CarbonTracker:
Actual consumption for 1 epoch(s):
\tTime:\t0:00:10
\tEnergy:\t0.000038 kWh
\tCO2eq:\t0.003130 g
CarbonTracker:
Predicted consumption for 1000 epoch(s):
\tTime:\t2:52:22
\tEnergy:\t0.038168 kWh
CarbonTracker:
Actual consumption for 3 epoch(s):
\tTime:\t1:02:03.50
\tEnergy:\t0.000114 kWh
\tCO2eq:\t0.009 g
"""
# The energy in several units counts once.
OWN = "net,energy_kwh,joules,duration_s,steps,batch,precision\nlenet5,0.001,3600,9.5,100,32,fp32\n"
FORMATS = {
    "codecarbon": (
        CODECARBON,
        {
            "energy_j": pytest.approx(0.03388806064239389 * 3.6e6),
            "duration_s": pytest.approx(299.78, abs=0.01), "covers": "cpu+gpu+ram",
            "net": "codecarbon", "device": "1 x NVIDIA A100-SXM4-40GB",
        },
    ),
    # All GPUs add up.
    "zeus": (ZEUS, {"energy_j": 1020.5, "duration_s": 12.5, "window": "epoch", "covers": "gpu"}),
    # What was consumed in the end, not what was predicted.
    "carbontracker": (
        CARBONTRACKER,
        {"energy_j": pytest.approx(0.000114 * 3.6e6), "duration_s": 3723.5, "epochs": 3},
    ),
    "csv": (
        OWN,
        {
            "net": "lenet5", "energy_j": 3600.0, "duration_s": 9.5, "steps": 100,
            "setup": {"batch": 32, "precision": "fp32"},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", FORMATS)
def test_logs_are_recognised_and_read(tmp_path, tool):
    text, expected = FORMATS[tool]
    (tmp_path / "log").write_text(text)
    found, runs = read_run_log(tmp_path / "log")
    assert found == tool and len(runs) == 1 + (tool == "zeus")
    assert {name: getattr(runs[0], name) for name in expected} == expected
    assert read_run_log(tmp_path / "log", tool) == (tool, runs)


def draw_names(count, seed):
    rng = random.Random(seed)
    return [draw_family("lenet5", rng.randint).name for _ in range(count)]


def compute_run(name):
    """Return energy and duration of a run on a simulated device, overhead included."""
    cost = make_simulated_device(5).true_cost(Trial(make_family(name), Setup(batch=16)))
    return STEPS * cost.energy_j + OVERHEAD_J, STEPS * cost.duration_s + 0.2


def make_runs_csv(names):
    rows = [(name, *compute_run(name)) for name in names]
    lines = (f'"{name}",{energy_j!r},{seconds!r},{STEPS},16' for name, energy_j, seconds in rows)
    return "\n".join([f"{CSV},steps,batch", *lines]) + "\n"


@pytest.fixture(scope="module")
def runs_store(tmp_path_factory):
    """Return a folder with runs, and a store that they were imported into."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "runs.csv").write_text(make_runs_csv(draw_names(15, seed=1)))
    path = str(folder / "runs.csv")
    said = run_in_store(folder / "store.sqlite", "data", "import", path, *DEVICE)
    assert "Imported 15 runs of phone from runs, 15 of them new." in said
    return folder


@pytest.fixture
def imported(shell, runs_store):
    for name in ("runs.csv", "store.sqlite"):
        shutil.copy(runs_store / name, shell.folder / name)
    return shell


def test_estimates_learn_from_imported_runs(imported):
    assert imported.json("data", "import", "runs.csv", *DEVICE)["new"] == 0
    (name,) = draw_names(1, seed=2)
    words = ("data", "predict", name, *DEVICE, "--steps", str(STEPS), "--batch", "16")
    run = imported.json(*words)
    true_j, true_s = compute_run(name)
    assert run["energy_j"] == pytest.approx(true_j, rel=0.15) and run["source"] == "runs"
    assert run["duration_s"] == pytest.approx(true_s, rel=0.25)
    assert run["interval_j"][0] < true_j < run["interval_j"][1]
    step = imported.json("estimate", name, *DEVICE, "--batch", "16")
    assert step["provenance"] == "imported" and STEPS * step["energy_j"] < run["energy_j"]
    text = " ".join(imported(*words).stdout.split())
    assert "(imported, 95 % interval" in text and "as runs reports it" in text


def test_imported_runs_start_from_others(imported, write):
    write("few.csv", make_runs_csv(draw_names(4, seed=3)))
    phone = ("--device", "new phone")
    imported("data", "import", "few.csv", *phone, "--from", "phone")
    (name,) = draw_names(1, seed=2)
    words = ("data", "predict", name, *phone, "--steps", str(STEPS), "--batch", "16")
    assert "Transferred from phone." in imported(*words).stdout
    # Again, without the option.
    imported("data", "import", "few.csv", *phone)
    assert imported.json(*words)["transferred_from"] == ["phone"]
    line = imported.fails("data", "import", "few.csv", *phone, "--from", "nvidia-h200")
    assert "was profiled with torch" in line and "not mixed" in line


def test_an_export_for_codecarbon_can_be_imported_again(imported):
    words = ("--format", "codecarbon", "--grid", "400")
    imported("data", "export", "phone", "emissions.csv", *words)
    with (imported.folder / "emissions.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert float(first["emissions"]) == pytest.approx(0.4 * float(first["energy_consumed"]))
    again = imported.json("data", "import", "emissions.csv", "--batch", "16", "--steps", str(STEPS))
    assert (again["tool"], again["device"], again["runs"]) == ("codecarbon", "phone", 15)


def test_options_fill_in_what_the_log_does_not_say(shell, write):
    """A net, steps or epochs, a device, a source; the net may be a network."""
    write("zeus.csv", "start_time,window_name,elapsed_time,gpu0_energy\n1.7e9,run,5.0,800\n")
    write("tracker.log", CARBONTRACKER)
    words = ("--net", "lenet5", "--batch", "8", "--samples", "1000", "--device", "board")
    assert shell.json("data", "import", "tracker.log", *words)["source"] == "carbontracker"
    network = make_family("lenet5:3,5,8,8")
    found = joulecast.import_runs("zeus.csv", network, device="gpu", steps=10, source="lab")
    assert (found.tool, found.source, found.new) == ("zeus", "lab", 1)
    (tracked,) = joulecast.load_profile("board").observations
    assert tracked.trial.execution.steps == 3 * 125 and tracked.trial.setup.batch == 8
    (seen,) = joulecast.load_profile("gpu").observations
    assert seen.trial.network == network and seen.trial.execution.steps == 10
    assert (seen.energy_j, seen.covers, seen.provenance) == (800.0, "gpu", "imported")
    run = joulecast.predict_run(network, device="gpu", steps=10)
    assert run.energy_j == pytest.approx(800, rel=0.2) and run.source == "lab"
    with pytest.raises(MissingError, match="'other'"):
        joulecast.predict_run(network, device="gpu", steps=10, source="other")
    joulecast.import_runs("zeus.csv", network, device="gpu", steps=10)
    with pytest.raises(InputError, match="lab, zeus: give one"):
        joulecast.predict_run(network, device="gpu", steps=10)


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("a,b\n1,2\n", (), "no known format"),
        ("net,energy_j\nlenet5,3\n", (), "no column duration_s"),
        ("net,duration_s\nlenet5,3\n", (), "no column energy_j"),
        (f"{CSV}\nlenet5,-3,1\n", (), "line 2: energy_j is '-3'"),
        (f"{CSV}\nlenet5,3,inf\n", (), "line 2: duration_s is 'inf'"),
        (f"{CSV}\nlenet5,3\n", (), "line 2 has 2 cells instead of 3"),
        (f"{CSV},steps\nlenet5,3,1,1.5\n", (), "steps is '1.5'"),
        (f"{CSV}\n", (), "has no runs"),
        ("start_time,window_name,elapsed_time\n1,a,2\n", (), "no column gpu0_energy"),
        (f"{CSV}\nlenet5,5,1\n", DEVICE, "number of steps is unknown"),
        (f"{CSV}\nlenet5,5,1\n", ("--steps", "3"), "names no device"),
        (f"{CSV}\nnone,5,1\n", (*DEVICE, "--steps", "3"), "no net 'none'"),
        (f"{CSV}\nevil.py:f,5,1\n", (*DEVICE, "--steps", "3"), "runs code"),
        (f"{CSV},device\nlenet5,5,1,a\nlenet5,5,1,b\n", ("--steps", "3"), "2 devices"),
        (ZEUS, (*DEVICE, "--net", "lenet5"), "windows epoch, step: give one as --window"),
        (ZEUS, (*DEVICE, "--window", "x"), "no window 'x'"),
        (ZEUS, (*DEVICE, "--window", "step", "--steps", "3"), "names no net"),
    ],
)
def test_logs_that_cannot_be_imported_are_refused(shell, write, text, words, reason):
    write("runs.csv", text)
    assert reason in shell.fails("data", "import", "runs.csv", *words)


INFERENCE, RUNTIME = Setup(1, "inference"), "onnxruntime-1.31.1"
COMMON = {
    "phase", "batch", "precision", "threads", "energy_j", "energy_sd_j", "duration_s",
    "mean_power_w", "device", "runtime", "meter", "covers", "provenance", "taken_at_s",
}  # fmt: skip
NAME = "cnn5:8,16,24,32"
SPEECH = build_reference_application("speech")


@pytest.fixture(autouse=True)
def folder(shell):
    return shell.folder


def store(network, setup=INFERENCE, **values):
    one = Observation(
        Trial(network, setup), energy_j=0.5, energy_sd_j=0.1, duration_s=0.25, count=3,
        device=Device("board"), runtime=RUNTIME, meter="rapl", covers="cpu", taken_at_s=1.7e9,
    )  # fmt: skip
    with open_store() as opened:
        opened.add_observation(replace(one, **values))


def read(path):
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def find_kernels(name):
    return list_kernels(make_family(name), INFERENCE, find_fusion_table(RUNTIME, INFERENCE))


def test_tidy_rows_are_observations_and_cells_are_no_formulas(shell):
    for energy_j in (0.5, 0.75):
        store(make_family(NAME), energy_j=energy_j, device=Device("=1+1"))
    data = shell.json("data", "export", "=1+1", "tidy.csv")
    assert data == {"file": "tidy.csv", "format": "tidy", "observations": 2}
    rows = read("tidy.csv")
    assert [float(row["energy_j"]) for row in rows] == [0.5, 0.75]
    assert {(row["device"], row["batch"]) for row in rows} == {("'=1+1", "1")}


def test_kernels_have_the_features_of_deepen2023():
    kernels = find_kernels(NAME)
    for kernel in kernels:
        store(kernel.network, trial=Trial(kernel.network, INFERENCE, Execution(copies=5, steps=2)))
    result = export_dataset("board", "kernels.csv", "kernel")
    rows = read("kernels.csv")
    assert result.rows == len(rows) == len(kernels)
    for row, kernel in zip(rows, kernels, strict=True):
        assert row["kernel"] == kernel.kind and row["phase"] == "inference"
        assert {name: float(row[name]) for name in kernel.features} == kernel.features
    first = rows[0]
    assert first["kernel"] == "conv+relu" and set(first) >= COMMON
    assert list(first)[:7] == ["kernel", "HW", "C_in", "C_out", "KS", "S", "groups"]
    # Those that ran side by side count once each.
    found = [float(first[name]) for name in ("energy_j", "duration_s", "mean_power_w", "copies")]
    assert found == pytest.approx([0.05, 0.025, 2.0, 5])
    # Other kernels have no groups.
    assert {row["groups"] for row in rows if not row["kernel"].startswith("conv")} == {""}


def test_levels_do_not_mix():
    family, kernel = make_family(NAME), find_kernels(NAME)[0].network
    for network in (family, SPEECH, kernel):
        store(network)
    store(replace(family, layers=family.layers[:2], name="Mine"), source=OWN_NET)
    store(family, Setup(32))
    store(kernel, Setup(32))
    store(SPEECH, Setup(8))
    for level in LEVELS:
        export_dataset("board", f"{level}.csv", level)
    assert [(row["net"], row["family"], row["phase"]) for row in read("network.csv")] == [
        (NAME, "cnn5", "inference"), ("Mine", "", "inference"), (NAME, "cnn5", "train"),
    ]  # fmt: skip
    assert [row["application"] for row in read("application.csv")] == ["speech"]
    assert [row["phase"] for row in read("kernel.csv")] == ["inference"]


@pytest.mark.parametrize(
    ("level", "networks", "setup"),
    [
        ("network", map(make_family, (NAME, "cnn5:4,8,8,8")), Setup(16, precision="bf16")),
        ("application", (SPEECH, build_reference_application("segmentation")), INFERENCE),
    ],
)
def test_datasets_can_be_imported_again(level, networks, setup):
    for place, network in enumerate(networks, start=1):
        store(network, setup, energy_j=float(place))
    export_dataset("board", "out.csv", level)
    joulecast.import_runs("out.csv", device="other", source="a dataset")
    found = joulecast.load_profile("other").observations
    original = joulecast.load_profile("board").observations
    assert [(one.trial, one.energy_j) for one in found] == [
        (one.trial, one.energy_j) for one in original
    ]
    assert {one.provenance for one in found} == {"imported"}


def test_the_card_says_where_the_data_come_from(shell):
    store(SPEECH)
    store(SPEECH, energy_j=None, run="second")
    words = ("data", "export", "board", "apps.csv", "--level", "application")
    data = shell.json(*words, "--licence", "CC BY 4.0")
    assert data == {
        "file": "apps.csv", "card": "apps.md", "level": "application", "observations": 1,
        "left_out": 1,
    }  # fmt: skip
    text = Path("apps.md").read_text()
    for part in (
        "# Energy of six reference applications on board", "`apps.csv`: 1 rows", "CC BY 4.0",
        "rapl, which covers cpu", "| measured by a meter |", "2023-11-14", RUNTIME,
        "| speech | inference | 1 |", "| `energy_j` | J |", "## Method", "warmed up",
    ):  # fmt: skip
        assert part in text
    named = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert named == list(read("apps.csv")[0])
    said = shell(*words).stdout
    assert "and a data card to apps.md" in said and "1 without energy were left out" in said


@pytest.mark.parametrize(
    ("provenance", "words"),
    [("simulated", "**simulated, not a real device**"), ("imported", "Whole runs were measured")],
)
def test_the_card_of_other_data_says_so(provenance, words):
    store(SPEECH, provenance=provenance, device=Device("a|b"), taken_at_s=0.0)
    export_dataset("a|b", "out.csv", "application")
    text = Path("out.md").read_text()
    assert words in text and "not stated" in text and "a\\|b" in text and "not known" in text


def test_bad_requests_are_refused(shell):
    store(Network())
    for level, hint in zip(LEVELS, ("kernel-gp", "measure FAMILY", "joulecast score"), strict=True):
        with pytest.raises(InputError, match=hint):
            export_dataset("board", "out.csv", level)
        assert not Path("out.csv").exists() and not Path("out.md").exists()
    store(make_family("cnn5"))
    with pytest.raises(InputError, match=r"ends in \.csv"):
        export_dataset("board", "out.md", "network")
    with pytest.raises(FileError, match="cannot write"):
        export_dataset("board", "missing/out.csv", "network")
    words = ("data", "export", "board", "out.csv")
    level = ("--level", "network", "--format", "codecarbon")
    assert "leave --format" in shell.fails(*words, *level, code=2)
    assert "--licence needs --level" in shell.fails(*words, "--licence", "CC0", code=2)
