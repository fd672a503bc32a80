"""``compare`` ranks devices and setups."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.records import StepTotals
from joulecast.store.files import write_network

NET = ("lenet5:3,5,9,11", "--devices", "sim")
MANY = ("--batch", "4,8,16", "--optimizer", "sgd,adamw")


def test_every_combination_appears_once(profiled):
    data = profiled.json("compare", *NET, *MANY)
    setups = {(row["setup"]["batch"], row["setup"]["optimizer"]) for row in data["rows"]}
    assert len(data["rows"]) == len(setups) == 6 and data["comparable"]
    ranked = [row for row in data["rows"] if row["rank"]]
    energies = [row["energy_j_per_sample"] for row in ranked]
    assert energies == sorted(energies) and ranked[0]["rank"] == 1
    assert any(row["on_front"] for row in ranked)
    assert all(row["provenance"] == "simulated" and row["covers"] == "device" for row in ranked)


def test_a_row_agrees_with_estimate(profiled):
    (row,) = profiled.json("compare", *NET, "--batch", "8")["rows"]
    said = profiled.json("estimate", NET[0], "--device", "sim", "--batch", "8")
    assert row["step"]["energy_j"] == pytest.approx(said["energy_j"])
    assert row["energy_j_per_sample"] == pytest.approx(said["energy_j"] / 8)
    assert row["interval_j_per_sample"] == pytest.approx([end / 8 for end in said["interval_j"]])
    own = profiled.json("compare", *NET)["rows"][0]["setup"]["batch"]
    assert own == 10


def test_totals_in_other_units(profiled):
    words = ("--samples", "5000", "--epochs", "2", "--grid", "400", "--price", "0.5EUR")
    data = profiled.json("compare", *NET, "--batch", "8", *words)
    (row,) = data["rows"]
    assert data["samples"] == 10_000
    assert row["total_energy_j"] == pytest.approx(10_000 * row["energy_j_per_sample"])
    assert row["co2e_g"] == pytest.approx(400 * row["kwh"])
    assert row["cost"] == pytest.approx(0.5 * row["kwh"]) and row["currency"] == "EUR"
    text = profiled("compare", *NET, "--batch", "8,16", *words).stdout
    assert "Totals of 10,000 samples" in text and "CO2e" in text and "EUR" in text


@pytest.mark.parametrize("columns", ["100", "130"])
def test_text_shows_ranks_and_provenance(profiled, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = profiled("compare", *NET, *MANY).stdout
    assert "(simulated)" in text and "the meter covers device" in text and "front" in text
    assert "probability that it takes less energy" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= int(columns)


def test_rows_say_whether_they_fit_and_what_made_the_profile(shell, monkeypatch):
    monkeypatch.setattr("joulecast.runtimes.version", lambda name: "9.9.9")
    words = ("compare", "cnn5", "--devices", "nvidia-h200", "--batch", "8,16,1000000")
    rows = shell.json(*words)["rows"]
    assert [row["fits_memory"] for row in rows] == [True, True, False]
    assert all(row["runtime"] == "torch-2.11.0" for row in rows)
    assert any("would not fit" in note for note in rows[-1]["notes"])
    text = " ".join(shell(*words).stdout.split())
    assert "does not fit: needs about" in text
    assert text.count("made with torch 2.11.0, but torch 9.9.9 is installed here") == 1


def test_notes_on_how_the_net_was_read_are_printed_once(profiled):
    totals = StepTotals(1.0, 1.0, 1, notes=("Read with two samples.",))
    write_network(replace(make_family(NET[0]), totals=totals), "net.json")
    text = profiled("compare", "net.json", *NET[1:], "--batch", "4,8").stdout
    assert text.count("Read with two samples.") == 1


def test_unknown_devices_are_listed_and_none_at_all_is_an_error(profiled):
    words = ("compare", NET[0], "--devices", "sim,elsewhere", "--batch", "8")
    data = profiled.json(*words)
    assert [row["device"] for row in data["rows"]] == ["simulated-7", "elsewhere"]
    assert "no profile of 'elsewhere'" in data["rows"][1]["reason_not_ranked"]
    assert "Not ranked: elsewhere" in profiled(*words).stdout
    assert "no profile of 'elsewhere'" in profiled.fails(
        "compare", NET[0], "--devices", "elsewhere"
    )


def test_a_setup_that_was_never_profiled_is_listed(profiled):
    data = profiled.json("compare", *NET, "--batch", "8", "--precision", "fp32,bf16")
    first, second = data["rows"]
    assert first["rank"] == 1 and second["rank"] is None
    assert "precision bf16 was never profiled" in second["reason_not_ranked"]


def test_columns_are_explained_only_where_they_appear(profiled):
    """Where nothing could be ranked there is no table, no legend, and the exit code says so."""
    words = ("compare", *NET, "--batch", "8", "--precision", "bf16")
    done = profiled(*words, code=1)
    text = done.stdout
    assert done.stderr.startswith("joulecast: nothing could be ranked (a guess: precision bf16")
    assert json.loads(profiled(*words, "--json", code=1).stdout)["rows"][0]["rank"] is None
    assert "Not ranked:" in text and "Not included:" in text
    assert "Pareto front" not in text and "P(less):" not in text and "Provenance" not in text


def test_numbers_of_gpus_are_rows(profiled):
    words = ("compare", *NET, "--batch", "8", "--gpus", "1,4", "--parallel", "data")
    text = " ".join(profiled(*words, "--link-gb-s", "300").stdout.split())
    assert "1 GPU" in text and "4 GPUs" in text and "Batch sizes are those of each GPU" in text
    assert "is modelled, not measured" in text and "simulated, not a real device" in text
    unknown = profiled.json(*words)["rows"][1]
    assert unknown["gpus"] == 4 and "give --link-gb-s" in unknown["reason_not_ranked"]
    said = profiled.fails(*words[:-1], "pipeline", code=2)
    assert "pipeline parallelism is not modelled yet" in said


def test_a_plot_is_written(profiled, shell):
    profiled("compare", *NET, *MANY, "--plot", "front.html")
    page = (shell.folder / "front.html").read_text()
    assert "energy and time per sample" in page and "simulated" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "8,x"), "give whole numbers"),
        (("--batch", "0"), "give whole numbers"),
        (("--precision", ""), "give at least one"),
        (("--optimizer", " , "), "give at least one"),
        (("--batch", ""), "give at least one"),
        (("--devices", ","), "give at least one"),
        (("--precision", "fp8"), "choose from"),
        (("--epochs", "3"), "--epochs needs --samples"),
        (("--gpus", "x"), "give whole numbers"),
        (("--parallel", "data"), "--parallel needs --gpus"),
    ],
)
def test_wrong_usage_is_reported(profiled, words, said):
    assert said in profiled.fails("compare", *NET, *words, code=2)


def test_settings_may_give_lists(profiled, write):
    write("joulecast.toml", '[compare]\nbatch = [4, 8]\noptimizer = "sgd"\n')
    assert len(profiled.json("compare", *NET)["rows"]) == 2
    write("joulecast.toml", "[compare]\nbatch = 4\n")
    assert len(profiled.json("compare", *NET)["rows"]) == 1
    assert json.loads(profiled("compare", *NET, "--json").stdout)["rows"]
