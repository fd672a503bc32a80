"""``score`` measures what is missing, computes both scores, and draws the label."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from joulecast.errors import NetError
from joulecast.measurer import Measurer
from joulecast.records import Device, Observation, Setup, Trial
from joulecast.store import open_store
from joulecast.uses.score import build_reference_application, list_reference_applications

SIMULATED = ("score", "--on", "simulated:7")


def add_device(name: str, joules: float, **values: object) -> None:
    """Store observations of all reference applications, with an energy and 10 W."""
    with open_store() as store:
        for one in list_reference_applications():
            trial = Trial(build_reference_application(one), Setup(1, "inference"))
            observation = Observation(
                trial,
                energy_j=joules,
                duration_s=joules / 10.0,
                device=Device(name),
                runtime="torch-2.13.0",
                meter="board",
                covers="board",
            )
            store.add_observation(replace(observation, **values))


def test_what_is_missing_is_measured_once(shell):
    first = shell.json(*SIMULATED, "--threads", "1", "--tdp", "150W")["devices"][0]
    assert len(first["configurations"]) == 6 and first["label"] in "ABCDEFG"
    assert {one["processor"] for one in first["configurations"]} == {"1 thread"}
    second = shell.json(*SIMULATED, "--threads", "1", "--tdp", "150W")["devices"][0]
    assert second == first
    more = shell.json(*SIMULATED, "--threads", "1,2", "--tdp", "150W")["devices"][0]
    assert len(more["configurations"]) == 12
    assert [one for one in more["configurations"] if one["processor"] == "1 thread"] == (
        first["configurations"]
    )
    stored = shell.json("score", "--devices", "simulated-7", "--tdp", "150W")["devices"][0]
    assert stored["iecs"] == pytest.approx(more["iecs"])


def test_scores_of_stored_observations(shell):
    add_device("board", joules=0.5)
    (board,) = shell.json("score", "--devices", "board", "--tdp", "40W")["devices"]
    assert (board["pcs"], board["pcs_label"]) == (75, "C")
    assert board["iecs"] == pytest.approx(12.0) and board["iecs_label"] == "D"
    assert board["label"] == "D" and board["provenance"] == "measured"
    assert board["wh_per_1000_inferences"] == pytest.approx(500 / 3600)
    assert board["inferences_per_s"] == pytest.approx(20.0)


def test_the_power_limit_of_a_gpu_is_its_tdp(shell):
    add_device("gpu", 0.5, device=Device("gpu", power_mode="limit 20W, persistence"))
    (gpu,) = shell.json("score", "--devices", "gpu")["devices"]
    assert (gpu["tdp_w"], gpu["tdp_source"], gpu["pcs"]) == (20.0, "power limit of the device", 50)
    (given,) = shell.json("score", "--devices", "gpu", "--tdp", "40W")["devices"]
    assert (given["tdp_w"], given["tdp_source"], given["pcs"]) == (40.0, "given", 75)


def test_without_tdp_the_rest_is_scored(shell):
    add_device("board", joules=0.5)
    data = shell.json("score", "--devices", "board")["devices"][0]
    assert data["pcs"] is None and data["label"] is None and data["iecs_label"] == "D"
    assert "--tdp 15W" in shell("score", "--devices", "board").stdout


def test_more_power_than_tdp_is_said(shell):
    add_device("board", joules=0.5)
    result = shell("score", "--devices", "board", "--tdp", "4W")
    assert "-150 (G)" in result.stdout and "PCS is negative" in result.stdout


def test_observations_without_energy_are_no_score(shell):
    add_device("board", joules=0.5, energy_j=None)
    message = shell.fails("score", "--devices", "board", "--tdp", "15W")
    assert "no energies of the reference applications" in message and "without energy" in message


def test_devices_that_are_not_stored(shell):
    assert "leave --offline out" in shell.fails("score", "--on", "cpu", "--offline")
    add_device("board", joules=0.5)
    assert "measure them there" in shell.fails("score", "--devices", "nvidia-h200")
    assert "'phone'" in shell.fails("score", "--devices", "board,phone")


def test_simulated_scores_say_so_everywhere(shell):
    words = (*SIMULATED, "--tdp", "150W", "--svg", "label.svg")
    text = shell(*words).stdout
    assert "(simulated)" in text and "say nothing about a real one" in text
    assert shell.json(*words)["devices"][0]["provenance"] == "simulated"
    svg = (shell.folder / "label.svg").read_text()
    assert "SIMULATED" in svg
    ElementTree.fromstring(svg)


def test_several_devices_with_a_file_and_a_chart(shell, write):
    add_device("board", joules=0.5)
    add_device("phone", joules=0.1, covers="phone")
    rows = "name,tdp,price,performance\nboard,40W,99EUR,\nphone,12W,599EUR,7\n"
    file = write("devices.csv", rows)
    words = ("score", "--device-file", file)
    data = shell.json(*words, "--plot", "chart.svg")["devices"]
    assert [one["name"] for one in data] == ["board", "phone"]
    assert [one["price"] for one in data] == [99.0, 599.0] and data[1]["inferences_per_s"] == 7.0
    price = (shell.folder / "chart-price.svg").read_text()
    assert "Price (EUR)" in price and "phone (G)" in price and "IECS (our reading)" in price
    assert (shell.folder / "chart-performance.svg").exists()
    text = shell(*words).stdout
    assert "599.00 EUR" in text and "meters cover different parts" in text


def test_published_scores(shell):
    data = shell.json("score", "--published")
    assert [one["pcs"] for one in data["devices"]] == [75, 78, 62, 78, 74, 70, 67, 56]
    assert [one["pcs_printed_tdp"] for one in data["devices"]] == [63, 57, 80, 78, 83, 63, 67, 67]
    text = " ".join(shell("score", "--published").stdout.split())
    assert "do not rank" in text and "25,000 formulas" in text and "117.8 instead of 151.7" in text
    shell("score", "--published", "--devices", "P40 Pro", "--svg", "p40.svg", "--out", "p40.json")
    assert "PUBLISHED" in (shell.folder / "p40.svg").read_text()
    written = json.loads((shell.folder / "p40.json").read_text())
    assert [one["name"] for one in written["devices"]] == ["P40 Pro"]


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("--on", "simulated:7", "--tdp", "15"), "like 15W", 1),
        (("--on", "simulated:7", "--tdp", "0W"), "more than 0 W", 1),
        (("--on", "simulated:7", "--price", "dear"), "like 599EUR", 1),
        (("--on", "simulated:7", "--threads", "0"), "whole numbers from 1", 2),
        (("--on", "simulated:7", "--performance", "0"), "--performance", 2),
        (("--on", "simulated:7", "--svg", "no/label.svg"), "there is no folder", 2),
        (("--devices", "a,b", "--tdp", "15W"), "--device-file", 1),
        (("--devices", "a,b", "--svg", "x.svg"), "label of one device", 1),
        (("--published", "--svg", "x.svg"), "label of one device", 1),
        (("--published", "--devices", "iPhone"), "choose from OnePlus 8 Pro", 1),
        (("--device-file", "missing.toml"), "missing.toml", 1),
        (("--devices", "a", "--on", "cpu"), "--on is for measuring", 2),
        (("--published", "--offline"), "--offline is for measuring", 2),
        (("--published", "--tdp", "15W"), "--published has no --tdp", 2),
    ],
)
def test_bad_input_is_one_clear_line(shell, words, reason, code):
    assert reason in shell.fails("score", *words, code=code)


def test_an_interrupted_run_keeps_what_was_measured(shell, monkeypatch):
    measured = []

    def interrupt(measurer, trial):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(trial)
        return measure(measurer, trial)

    measure = Measurer.measure
    monkeypatch.setattr(Measurer, "measure", interrupt)
    result = shell(*SIMULATED, "--tdp", "150W", code=130)
    assert "what was measured is stored" in result.stderr
    monkeypatch.setattr(Measurer, "measure", measure)
    (device,) = shell.json("score", "--devices", "simulated-7", "--tdp", "150W")["devices"]
    assert sum(one["missing"] is None for one in device["configurations"]) == 2
    assert device["label"] is None
    (device,) = shell.json(*SIMULATED, "--tdp", "150W")["devices"]
    assert device["label"] is not None


def test_an_application_that_does_not_run_is_named(shell, monkeypatch):
    def refuse(measurer, trial):
        if trial.network.name == "speech":
            raise NetError("it has no LSTM")
        return measure(measurer, trial)

    measure = Measurer.measure
    monkeypatch.setattr(Measurer, "measure", refuse)
    text = " ".join(shell(*SIMULATED, "--tdp", "150W").stdout.split())
    assert "(speech, default): it has no LSTM" in text and "There are no letters" in text


def test_a_label_that_cannot_be_written_loses_no_score(shell):
    (shell.folder / "label.svg").mkdir()
    result = shell(*SIMULATED, "--tdp", "150W", "--svg", "label.svg", code=1)
    assert "PCS" in result.stdout and "cannot write label.svg" in result.stderr
