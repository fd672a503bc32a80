"""Datasets at three levels: tidy CSV with units, and a data card beside it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import joulecast
from joulecast.errors import FileError, InputError
from joulecast.families import make_family
from joulecast.features.data_card import DatasetFacts, make_card
from joulecast.features.data_levels import LEVELS, export_dataset
from joulecast.features.reference_applications import build_reference_application
from joulecast.fusion import find_fusion_table, list_kernels
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
from joulecast.store import open_store

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
        Trial(network, setup),
        energy_j=0.5,
        energy_sd_j=0.1,
        duration_s=0.25,
        count=3,
        device=Device("board"),
        runtime=RUNTIME,
        meter="rapl",
        covers="cpu",
        taken_at_s=1.7e9,
    )
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
    text = make_card(DatasetFacts("a.csv", "application", "", ["energy_j", "odd"], [row], profile))
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
