"""Exported observations: tidy rows, and datasets at three levels with a data card."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import joulecast
from joulecast.families import make_family
from joulecast.features.data.export import LEVELS, export_dataset, export_observations
from joulecast.features.reference_applications import build_reference_application
from joulecast.onnx_nets.fusion import find_fusion_table, list_kernels
from joulecast.records import OWN_NET, Device, Execution, Network, Observation, Setup, Trial
from joulecast.store import open_store
from joulecast.system.errors import FileError, InputError

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
        store(kernel.network)
    result = export_dataset("board", "kernels.csv", "kernel")
    rows = read("kernels.csv")
    assert result.rows == len(rows) == len(kernels)
    for row, kernel in zip(rows, kernels, strict=True):
        assert row["kernel"] == kernel.kind and row["phase"] == "inference"
        assert {name: float(row[name]) for name in kernel.features} == kernel.features
    first = rows[0]
    assert first["kernel"] == "conv+relu" and set(first) >= COMMON
    sizes = {name: float(first[name]) for name in ("HW", "C_in", "C_out", "KS", "S")}
    assert sizes == {"HW": 96.0, "C_in": 3.0, "C_out": 8.0, "KS": 3.0, "S": 1.0}
    assert list(first)[:7] == ["kernel", "HW", "C_in", "C_out", "KS", "S", "groups"]
    # Other kernels have no groups.
    assert {row["groups"] for row in rows if not row["kernel"].startswith("conv")} == {""}


def test_kernels_side_by_side_count_once_each():
    network = find_kernels("cnn5")[0].network
    store(network, trial=Trial(network, INFERENCE, Execution(copies=5, steps=2)))
    export_dataset("board", "kernels.csv", "kernel")
    (row,) = read("kernels.csv")
    found = [float(row[name]) for name in ("energy_j", "duration_s", "mean_power_w", "copies")]
    assert found == pytest.approx([0.05, 0.025, 2.0, 5])


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
    [
        ("modelled", "**modelled, not measured"),
        ("simulated", "**simulated, not a real device**"),
        ("imported", "Whole runs were measured by others"),
    ],
)
def test_the_card_of_other_data_says_so(provenance, words):
    store(SPEECH, provenance=provenance, device=Device("a|b"), taken_at_s=0.0)
    export_dataset("a|b", "out.csv", "application")
    text = Path("out.md").read_text()
    assert words in text and "not stated" in text and "a\\|b" in text and "not known" in text


@pytest.mark.parametrize(
    ("level", "hint"),
    [("kernel", "kernel-gp"), ("network", "joulecast measure"), ("application", "joulecast score")],
)
def test_an_empty_level_says_what_to_do(level, hint):
    store(Network())
    with pytest.raises(InputError, match=hint):
        export_dataset("board", "out.csv", level)
    assert not Path("out.csv").exists() and not Path("out.md").exists()


def test_bad_requests_are_refused(shell):
    store(make_family("cnn5"))
    with pytest.raises(InputError, match="choose from kernel, network, application"):
        export_dataset("board", "out.csv", "layer")
    with pytest.raises(InputError, match="form is 'xml'"):
        export_observations("board", "out.csv", form="xml")
    with pytest.raises(InputError, match=r"ends in \.csv"):
        export_dataset("board", "out.md", "network")
    with pytest.raises(FileError, match="cannot write"):
        export_dataset("board", "missing/out.csv", "network")
    words = ("data", "export", "board", "out.csv")
    level = ("--level", "network", "--format", "codecarbon")
    assert "leave --format" in shell.fails(*words, *level, code=2)
    assert "--licence needs --level" in shell.fails(*words, "--licence", "CC0", code=2)
