"""Data of others: joules that come later, runs of other tools, and exported datasets."""

from __future__ import annotations

import csv
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import joulecast
from cli_stores import run_in_store
from joulecast import simulation
from joulecast.families import draw_family, make_family
from joulecast.features.data import LEVELS, export_dataset, export_observations, make_card
from joulecast.features.reference_applications import build_reference_application
from joulecast.onnx_nets.fusion import find_fusion_table, list_kernels
from joulecast.records import (
    OWN_NET,
    Device,
    Execution,
    Network,
    Observation,
    Profile,
    Setup,
    Trial,
)
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.system.errors import FileError, InputError, MissingError
from simulated_traces import Instrument

# ---------------------------------------------------------------------------------------------
# Joules that come later, on a simulated device with another clock


PROFILED = ("lenet5:4,8,16,16", "--batch", "8")
INSTRUMENT = Instrument(offset_s=-4321.0, drift=150e-6)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Return a store with a campaign that has no energies, and the device that it ran on."""
    made, make = [], simulation.make_simulated_device

    def make_and_keep(*args, **options):
        made.append(make(*args, **options))
        return made[-1]

    path = tmp_path_factory.mktemp("recorded") / "store.sqlite"
    words = ("--on", "simulated:7", "--meter", "later", "--points", "12")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "make_simulated_device", make_and_keep)
        said = run_in_store(path, "profile", *PROFILED, *words)
    assert "Next: joulecast data attach TRACE.csv --device simulated-7" in said
    return path, made[0]


@pytest.fixture
def recorded(shell, recording):
    """Return a command line whose store has that campaign, and its device."""
    shutil.copy(recording[0], shell.folder / "store.sqlite")
    return shell, recording[1]


def write_trace(path, device, instrument=INSTRUMENT, share=1.0):
    times, powers = instrument.sample(device, 0.0, share * device.now())
    rows = (
        f"{time!r},{power!r}" for time, power in zip(times.tolist(), powers.tolist(), strict=True)
    )
    path.write_text("\n".join(["time,watts", *rows]) + "\n")


def load_observations():
    with open_store(create=False) as store:
        return store.find_profile("simulated-7").observations


def test_recorded_campaign_gets_its_joules_and_estimates(recorded):
    shell, device = recorded
    assert "no energy" in shell.fails("estimate", *PROFILED, "--device", "simulated-7")
    before = load_observations()
    write_trace(shell.folder / "trace.csv", device)
    # Refused before any energy is filled in.
    itself = shell.fails("data", "attach", "trace.csv", "--from", "simulated-7")
    assert "is the profile of this device itself" in itself
    result = shell.json("data", "attach", "trace.csv")
    assert result["completed"] == sum(one.is_pending for one in before) > 4
    assert result["pending"] == 0
    (run,) = result["runs"]
    assert run["drift_ppm"] == pytest.approx(150, abs=20)
    assert run["residual_s"] < 0.005
    after = load_observations()
    assert len(after) == len(before)
    assert not any(one.is_pending for one in after)
    estimate = shell.json("estimate", *PROFILED, "--device", "simulated-7")
    truth_j = next(
        device.true_cost(one.trial).energy_j
        for one in after
        if one.trial.network.name == PROFILED[0] and one.trial.execution.is_user_step
    )
    assert estimate["energy_j"] == pytest.approx(truth_j, rel=0.15)


def test_rest_of_a_campaign_waits_for_its_own_trace(recorded):
    shell, device = recorded
    write_trace(shell.folder / "half.csv", device, share=0.5)
    first = shell("data", "attach", "half.csv")
    assert "Refused: " in first.stdout
    assert "the trace ends" in first.stdout
    assert "still wait for a trace" in first.stdout
    write_trace(shell.folder / "whole.csv", device, Instrument(offset_s=9.0))
    assert shell.json("data", "attach", "whole.csv")["pending"] == 0
    assert "waits for a trace" in shell.fails("data", "attach", "whole.csv")
    sources = {one.source for one in load_observations()}
    assert {"half.csv", "whole.csv"} <= sources


def test_trace_of_something_else_changes_nothing(recorded, write):
    shell, _ = recorded
    times = np.arange(0, 60, 0.005)
    rows = (f"{time!r},{5.0 + time % 3!r}" for time in times.tolist())
    write("other.csv", "\n".join(["time,watts", *rows]))
    assert "recorded during this run" in shell.fails("data", "attach", "other.csv")
    write("words.csv", "once,upon\na,time\n")
    assert "no columns of time and power" in shell.fails("data", "attach", "words.csv")
    assert "there is no file" in shell.fails("data", "attach", "missing.csv")


def test_recorder_is_refused_where_joules_are_needed_now(shell):
    for words in (
        ("measure", "--meter", "later", "--", "true"),
        ("evaluate", "lenet5", "--on", "simulated:7", "--meter", "later"),
    ):
        assert "give a meter of `joulecast detect`" in shell.fails(*words)
    assert "waits for a trace" in shell.fails("data", "attach", "trace.csv")
    atlas = shell("profile", "--atlas", "--on", "simulated:7", "--meter", "later", code=1)
    assert "give a meter of `joulecast detect`" in atlas.stderr


# ---------------------------------------------------------------------------------------------
# Runs of other tools, in and out


CSV, STEPS, OVERHEAD_J = "net,energy_j,duration_s", 200, 30.0
DEVICE = ("--device", "phone")


def draw_names(count, seed):
    rng = random.Random(seed)
    return [draw_family("lenet5", rng.randint).name for _ in range(count)]


def compute_run(name):
    """Return energy and duration of a run on a simulated device, overhead included."""
    device = make_simulated_device(5)
    cost = device.true_cost(Trial(make_family(name), Setup(batch=16)))
    return STEPS * cost.energy_j + OVERHEAD_J, STEPS * cost.duration_s + 0.2


def make_runs_csv(names):
    rows = [(name, *compute_run(name)) for name in names]
    lines = (f'"{name}",{energy_j!r},{seconds!r},{STEPS},16' for name, energy_j, seconds in rows)
    return "\n".join(["net,energy_j,duration_s,steps,batch", *lines]) + "\n"


@pytest.fixture(scope="module")
def runs_store(tmp_path_factory):
    """Return a store with imported runs."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "runs.csv").write_text(make_runs_csv(draw_names(15, seed=1)))
    said = run_in_store(
        folder / "store.sqlite", "data", "import", str(folder / "runs.csv"), *DEVICE
    )
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
        (f"{CSV}\nlenet5,5,1\n", DEVICE, "number of steps is unknown"),
        (f"{CSV}\nlenet5,5,1\n", ("--steps", "3"), "names no device"),
        (f"{CSV}\nnone,5,1\n", (*DEVICE, "--steps", "3"), "no net 'none'"),
        (f"{CSV}\nevil.py:f,5,1\n", (*DEVICE, "--steps", "3"), "runs code"),
        (f"{CSV},batch\nlenet5,5,1,x\n", (*DEVICE, "--steps", "3"), "batch is 'x'"),
        (f"{CSV},device\nlenet5,5,1,a\nlenet5,5,1,b\n", ("--steps", "3"), "2 devices"),
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


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("net,energy_j,duration_s\nlenet5,500,2\nlenet5,510,2.1\n")
    return path


def test_options_fill_in_what_the_log_does_not_say(file, place):
    options = {"device": "board", "batch": 8, "epochs": 2, "samples": 100, "store": place}
    result = joulecast.import_runs(file, **options, source="lab")
    assert (result.runs, result.new, result.source) == (2, 2, "lab")
    profile = joulecast.load_profile("board", store=place)
    assert {one.trial.execution.steps for one in profile.observations} == {2 * 13}
    assert {one.trial.setup.batch for one in profile.observations} == {8}
    run = joulecast.predict_run("lenet5", device="board", steps=26, batch=8, store=place)
    assert run.energy_j == pytest.approx(505, rel=0.2)
    with pytest.raises(MissingError, match="'other'"):
        joulecast.predict_run(
            "lenet5", device="board", steps=26, source="other", batch=8, store=place
        )


def test_net_may_be_a_network(tmp_path, place):
    path = tmp_path / "zeus.csv"
    path.write_text("start_time,window_name,elapsed_time,gpu0_energy\n1,run,5.0,800\n")
    network = make_family("lenet5:3,5,8,8")
    joulecast.import_runs(path, network, device="gpu", steps=10, store=place)
    (one,) = joulecast.load_profile("gpu", store=place).observations
    assert one.trial.network == network


def test_sources_are_not_mixed_up(file, place):
    options = {"device": "board", "steps": 10, "store": place}
    joulecast.import_runs(file, **options)
    joulecast.import_runs(file, **options, source="lab")
    with pytest.raises(InputError, match="lab, runs: give one"):
        joulecast.predict_run("lenet5", device="board", steps=10, store=place)


def test_unknown_choices_are_refused(file, place, tmp_path):
    with pytest.raises(InputError, match="tool is 'wattson'"):
        joulecast.import_runs(file, tool="wattson", store=place)
    with pytest.raises(InputError, match="did you mean 'source'"):
        joulecast.import_runs(file, sorce="x", store=place)
    with pytest.raises(InputError, match="form is 'xml'"):
        joulecast.export_observations("board", tmp_path / "x.csv", form="xml")


# ---------------------------------------------------------------------------------------------
# Datasets at three levels


INFERENCE = Setup(1, "inference")
RUNTIME = "onnxruntime-1.31.1"
COMMON = {
    "phase", "batch", "precision", "threads", "energy_j", "energy_sd_j", "duration_s",
    "mean_power_w", "device", "runtime", "meter", "covers", "provenance", "taken_at_s",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def store(network: Network, setup: Setup = INFERENCE, **values: Any) -> None:
    one = Observation(
        Trial(network, setup), energy_j=0.5, energy_sd_j=0.1, duration_s=0.25, count=3,
        device=Device("board"), runtime=RUNTIME, meter="rapl", covers="cpu", taken_at_s=1.7e9,
    )  # fmt: skip
    with open_store() as opened:
        opened.add_observation(replace(one, **values))


def read(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_kernels_have_the_features_of_deepen2023(folder: Path) -> None:
    network = make_family("cnn5:8,16,24,32")
    kernels = list_kernels(network, INFERENCE, find_fusion_table(RUNTIME, INFERENCE))
    for kernel in kernels:
        store(kernel.network)
    result = export_dataset("board", "kernels.csv", "kernel")
    rows = read("kernels.csv")
    assert result.rows == len(rows) == len(kernels)
    for row, kernel in zip(rows, kernels, strict=True):
        assert row["kernel"] == kernel.kind and row["phase"] == "inference"
        for name, value in kernel.features.items():
            assert float(row[name]) == value
    first = rows[0]
    assert first["kernel"] == "conv+relu" and set(first) >= COMMON
    sizes = {name: float(first[name]) for name in ("HW", "C_in", "C_out", "KS", "S")}
    assert sizes == {"HW": 96.0, "C_in": 3.0, "C_out": 8.0, "KS": 3.0, "S": 1.0}
    columns = list(first)
    assert columns[:7] == ["kernel", "HW", "C_in", "C_out", "KS", "S", "groups"]
    # Other kernels have no groups.
    assert {row["groups"] for row in rows if not row["kernel"].startswith("conv")} == {""}


def test_kernels_side_by_side_count_once_each(folder: Path) -> None:
    (kernel, *_) = list_kernels(
        make_family("cnn5"), INFERENCE, find_fusion_table(RUNTIME, INFERENCE)
    )
    trial = Trial(kernel.network, INFERENCE, Execution(copies=5, steps=2))
    store(kernel.network, trial=trial)
    export_dataset("board", "kernels.csv", "kernel")
    (row,) = read("kernels.csv")
    assert float(row["energy_j"]) == pytest.approx(0.05)
    assert float(row["duration_s"]) == pytest.approx(0.025)
    assert float(row["mean_power_w"]) == pytest.approx(2.0) and row["copies"] == "5"


def test_levels_do_not_mix(folder: Path) -> None:
    family, application = make_family("cnn5:8,16,24,32"), build_reference_application("speech")
    kernel = list_kernels(family, INFERENCE, find_fusion_table(RUNTIME, INFERENCE))[0].network
    own = replace(family, layers=family.layers[:2], name="Mine")
    for network in (family, application, kernel):
        store(network)
    store(own, source=OWN_NET)
    store(family, Setup(32))
    store(kernel, Setup(32))
    store(application, Setup(8))
    for level in LEVELS:
        export_dataset("board", f"{level}.csv", level)
    networks = [(row["net"], row["family"], row["phase"]) for row in read("network.csv")]
    name = "cnn5:8,16,24,32"
    assert networks == [
        (name, "cnn5", "inference"), ("Mine", "", "inference"), (name, "cnn5", "train"),
    ]  # fmt: skip
    assert [row["application"] for row in read("application.csv")] == ["speech"]
    assert [row["phase"] for row in read("kernel.csv")] == ["inference"]


def test_observations_without_energy_are_counted(folder: Path) -> None:
    store(make_family("cnn5"))
    store(make_family("cnn5"), energy_j=None, run="second")
    result = export_dataset("board", "networks.csv", "network")
    assert (result.rows, result.left_out) == (1, 1)


def test_networks_can_be_imported_again(folder: Path) -> None:
    for name in ("cnn5:8,16,24,32", "cnn5:4,8,8,8", "cnn5:2,4,8,8"):
        store(make_family(name), Setup(16, precision="bf16"), energy_j=float(len(name)))
    export_dataset("board", "networks.csv", "network")
    joulecast.import_runs("networks.csv", device="other", source="a dataset")
    found = joulecast.load_profile("other").observations
    original = joulecast.load_profile("board").observations
    assert [one.energy_j for one in found] == [one.energy_j for one in original]
    assert [one.trial.network for one in found] == [one.trial.network for one in original]
    assert {one.trial.setup for one in found} == {Setup(16, precision="bf16")}
    assert {one.provenance for one in found} == {"imported"}


def test_applications_can_be_imported_again(folder: Path) -> None:
    for name in ("speech", "segmentation"):
        store(build_reference_application(name))
    export_dataset("board", "apps.csv", "application")
    joulecast.import_runs("apps.csv", device="other")
    found = [one.trial for one in joulecast.load_profile("other").observations]
    assert found == [one.trial for one in joulecast.load_profile("board").observations]


def test_the_card_says_where_the_data_come_from(folder: Path) -> None:
    store(build_reference_application("speech"))
    result = export_dataset("board", "apps.csv", "application", licence="CC BY 4.0")
    text = Path(result.card).read_text()
    assert result.card == "apps.md"
    for words in (
        "# Energy of six reference applications on board", "`apps.csv`: 1 rows", "CC BY 4.0",
        "rapl, which covers cpu", "measured: read from a meter", "2023-11-14", RUNTIME,
        "| speech | inference | 1 |", "| `energy_j` | J |", "## Method",
    ):  # fmt: skip
        assert words in text
    named = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert named == list(read("apps.csv")[0])


@pytest.mark.parametrize(
    ("provenance", "words"), [("modelled", "**not measured**"), ("simulated", "**not a real")]
)
def test_the_card_of_other_data_says_so(provenance: str, words: str) -> None:
    profile = Profile(Device("a|b"), RUNTIME, "cpu", provenance)
    row = {"application": "speech", "phase": "inference", "meter": "x", "taken_at_s": 0.0}
    text = make_card("a.csv", "application", "", ["energy_j", "odd"], [row], profile)
    assert words in text and "not stated" in text and "a\\|b" in text and "not known" in text
    assert "| `odd` |" in text


@pytest.mark.parametrize(
    ("level", "hint"),
    [("kernel", "kernel-gp"), ("network", "joulecast measure"), ("application", "joulecast score")],
)
def test_an_empty_level_says_what_to_do(folder: Path, level: str, hint: str) -> None:
    store(Network())
    with pytest.raises(InputError, match=hint):
        export_dataset("board", "out.csv", level)
    assert not Path("out.csv").exists() and not Path("out.md").exists()


def test_bad_requests_are_refused(folder: Path) -> None:
    store(make_family("cnn5"))
    with pytest.raises(InputError, match="choose from kernel, network, application"):
        export_dataset("board", "out.csv", "layer")
    with pytest.raises(InputError, match=r"ends in \.csv"):
        export_dataset("board", "out.md", "network")
    with pytest.raises(FileError, match="cannot write"):
        export_dataset("board", "missing/out.csv", "network")
