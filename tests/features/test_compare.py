"""``compare`` ranks devices, setups and numbers of GPUs; what is not ranked has a reason."""

import json
from dataclasses import replace

import pytest

from joulecast.devices.data_sheets import find_data_sheet, make_sheet_profile
from joulecast.estimators.additive.fit import load_shared_model
from joulecast.families import make_family
from joulecast.features.compare import rank_setups
from joulecast.features.run import ParallelOptions
from joulecast.records import Device, Setup, StepTotals
from joulecast.store.files import write_network
from joulecast.system.errors import ArgumentError, InputError
from joulecast.views.fronts import find_front

WORDS = ("compare", "lenet5:3,5,9,11", "--devices", "sim")
MANY = ("--batch", "4,8,16", "--optimizer", "sgd,adamw")
NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
SETUPS = [Setup(batch, precision=kind) for batch in (8, 32, 64) for kind in ("fp32", "bf16")]


def test_rows_are_ranked_by_energy_per_sample(cnn_profile):
    found = rank_setups(NET, {"test": cnn_profile}, [*SETUPS, SETUPS[0]])
    (rows,) = found.groups.values()
    assert [row.rank for row in rows] == list(range(1, len(SETUPS) + 1))
    assert [row.energy_j for row in rows] == sorted(row.energy_j for row in rows)
    assert {row.setup for row in rows} == set(SETUPS)
    pairs = [(row.duration_s, row.energy_j) for row in rows]
    assert tuple(row.is_on_front for row in rows) == find_front(pairs) and rows[0].is_on_front
    for row in rows:
        assert row.energy_j == pytest.approx(row.estimate.energy_j / row.setup.batch)
        assert row.interval_j[0] < row.energy_j < row.interval_j[1]
        assert row.duration_interval_s[0] < row.duration_s < row.duration_interval_s[1]


def test_a_row_agrees_with_estimate(profiled):
    (row,) = profiled.json(*WORDS, "--batch", "8")["rows"]
    said = profiled.json("estimate", WORDS[1], "--device", "sim", "--batch", "8")
    assert row["step"]["energy_j"] == pytest.approx(said["energy_j"])
    assert row["interval_j_per_sample"] == pytest.approx([end / 8 for end in said["interval_j"]])
    assert (row["provenance"], row["covers"]) == ("simulated", "device")
    assert profiled.json(*WORDS)["rows"][0]["setup"]["batch"] == 10


def test_totals_in_other_units(profiled):
    words = ("--samples", "5000", "--epochs", "2", "--grid", "400", "--price", "0.5EUR")
    data = profiled.json(*WORDS, "--batch", "8", *words)
    (row,) = data["rows"]
    assert data["samples"] == 10_000
    assert row["total_energy_j"] == pytest.approx(10_000 * row["energy_j_per_sample"])
    assert row["co2e_g"] == pytest.approx(400 * row["kwh"])
    assert row["cost"] == pytest.approx(0.5 * row["kwh"]) and row["currency"] == "EUR"
    text = profiled(*WORDS, "--batch", "8,16", *words).stdout
    assert "Totals of 10,000 samples" in text and "CO2e" in text and "EUR" in text


@pytest.mark.parametrize("columns", ["100", "130"])
def test_text_and_plot_show_ranks_and_provenance(profiled, shell, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = profiled(*WORDS, *MANY, "--plot", "front.html").stdout
    assert "(simulated)" in text and "the meter covers device" in text and "front" in text
    assert "probability that it takes less energy" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= int(columns)
    page = (shell.folder / "front.html").read_text()
    assert "energy and time per sample" in page and "simulated" in page


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
    write_network(replace(make_family(WORDS[1]), totals=totals), "net.json")
    text = profiled("compare", "net.json", *WORDS[2:], "--batch", "4,8").stdout
    assert text.count("Read with two samples.") == 1


def test_data_sheets_are_ranked_in_precisions_that_no_fit_has_seen(monkeypatch):
    profiles = {name: make_sheet_profile(find_data_sheet(name)) for name in ("l40s", "a10")}
    # As if the shared model knew no kind of layer.
    shared = replace(load_shared_model(), measured_kinds={})
    monkeypatch.setattr("joulecast.estimators.additive.fit.load_shared_model", lambda: shared)
    found = rank_setups(NET, profiles, [Setup(32, precision="bf16"), Setup(32)])
    (rows,) = found.groups.values()
    assert sorted(row.rank for row in rows) == [1, 2, 3, 4] and not found.unranked
    assert all(row.estimate.unseen_share == pytest.approx(1.0, abs=0.01) for row in rows)


def test_shared_errors_cancel_on_one_device_only(cnn_profile):
    """Two setups of one device are easier to tell apart than the same setups on two devices."""
    twin = replace(cnn_profile, device=Device("twin"))
    setups = [Setup(32), Setup(36)]
    alone = rank_setups(NET, {"a": cnn_profile}, setups).groups["device"]
    compared = rank_setups(NET, {"a": cnn_profile, "b": twin}, setups)
    both = compared.groups["device"]
    assert [row.device for row in both] == ["test", "twin", "test", "twin"]
    assert both[0].probability_below_next == both[2].probability_below_next == pytest.approx(0.5)
    assert 0.5 < both[1].probability_below_next < alone[0].probability_below_next <= 1.0
    assert alone[-1].probability_below_next is both[-1].probability_below_next is None
    assert "below 90.0 %: 1" in " ".join(str(compared).split())


def test_different_meter_coverages_are_ranked_separately(cnn_profile):
    board = replace(cnn_profile, device=Device("board"), covers="board")
    found = rank_setups(NET, {"gpu": cnn_profile, "board": board}, SETUPS[:2])
    assert set(found.groups) == {"device", "board"}
    assert all([row.rank for row in rows] == [1, 2] for rows in found.groups.values())
    assert found.to_dict()["comparable"] is False
    assert "not comparable" in found.report().plots[0].description


def test_rows_that_cannot_be_ranked_are_kept_with_the_reason(cnn_profile):
    profiles = {
        "test": cnn_profile,
        "small": replace(cnn_profile, device=Device("small", memory_bytes=2**20)),
        "empty": replace(cnn_profile, device=Device("empty"), observations=(), fits={}),
        "absent": "no profile of 'absent'",
    }
    found = rank_setups(NET, profiles, [Setup(32), Setup(32, precision="fp16")])
    (ranked,) = found.groups["device"]
    assert len(found.rows) == 8 and (ranked.device, ranked.setup) == ("test", Setup(32))
    reasons = {
        (row.device or row.requested_device, row.setup.precision): row.reason
        for row in found.unranked
    }
    assert "precision fp16 was never profiled on test (only fp32, bf16)" in reasons["test", "fp16"]
    assert reasons["small", "fp32"].startswith("does not fit: needs about")
    assert "holds nothing" in reasons["empty", "fp32"]
    assert reasons["absent", "fp32"] == "no profile of 'absent'"
    guess = json.loads(json.dumps(found.to_dict()))["rows"][1]
    assert guess["rank"] is None and guess["energy_j_per_sample"] > 0
    for profiles, setups in (({"test": cnn_profile}, []), ({}, SETUPS)):
        with pytest.raises(InputError, match="nothing to compare"):
            rank_setups(NET, profiles, setups)


def test_where_nothing_is_ranked_there_is_no_legend_and_the_exit_code_says_so(profiled):
    done = profiled(*WORDS, "--batch", "8", "--precision", "bf16", code=1)
    assert done.stderr.startswith("joulecast: nothing could be ranked (a guess: precision bf16")
    assert "Not ranked:" in done.stdout and "Not included:" in done.stdout
    assert not any(words in done.stdout for words in ("Pareto front", "P(less):", "Provenance"))
    words = ("compare", WORDS[1], "--batch", "8", "--devices")
    assert "Not ranked: elsewhere" in profiled(*words, "sim,elsewhere").stdout
    assert "no profile of 'elsewhere'" in profiled.fails(*words, "elsewhere")


def test_numbers_of_gpus_are_ranked_per_sample(cnn_profile):
    gpus = [ParallelOptions(), ParallelOptions(4, "data", 300.0), ParallelOptions(4, "data")]
    found = rank_setups(NET, {"test": cnn_profile}, SETUPS[:2], groups=gpus)
    (rows,) = found.groups.values()
    pairs = {(row.setup, row.gpus): row for row in rows}
    assert len(rows) == len(pairs) == 4
    for setup in SETUPS[:2]:
        one, four = pairs[setup, 1], pairs[setup, 4]
        assert four.energy_j == pytest.approx(four.estimate.energy_j / (4 * setup.batch))
        # Four GPUs are faster, and take a little more energy for each sample.
        assert one.energy_j < four.energy_j < 1.5 * one.energy_j
        assert one.duration_s / 4 < four.duration_s < one.duration_s
        assert one.to_dict()["gpus"] == 1 and "data_parallel" not in one.to_dict()
        part = four.to_dict()["data_parallel"]
        assert part["gpus"] == 4 and part["provenance"] == "modelled"
    assert all(row.gpus == 4 and "give link_gb_s" in row.reason for row in found.unranked)
    text = " ".join(str(found).split())
    assert all(words in text for words in ("1 GPU", "4 GPUs", "is modelled, not measured"))
    assert "simulated, not a real device" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--precision", ""), "give at least one"),
        (("--devices", ","), "give at least one"),
        (("--epochs", "3"), "--epochs needs --samples"),
        (("--parallel", "data"), "--parallel needs --gpus"),
        (("--gpus", "4", "--parallel", "pipeline"), "pipeline parallelism is not modelled yet"),
    ],
)
def test_wrong_usage_is_reported(profiled, words, said):
    assert said in profiled.fails(*WORDS, *words, code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((4, "tensor"), "^tensor parallelism is not modelled yet: give parallel='data'"),
        ((4, "FSDP"), "^FSDP is not modelled yet"),
        ((0,), "gpus is 0: give a whole number from 1 to 16"),
        ((17, "data"), "gpus is 17: .* of one machine"),
        ((2,), "2 GPUs have to share the work"),
        ((2, "magic"), "there is no parallelism 'magic': give parallel='data'"),
    ],
)
def test_wrong_values_are_one_clear_line(options, message) -> None:
    with pytest.raises(InputError, match=message):
        ParallelOptions(*options)


def test_bandwidths_are_bytes_per_second_of_a_number_of_gpus() -> None:
    assert ParallelOptions().link_bytes_per_s is None
    assert ParallelOptions(4, "data", 300).link_bytes_per_s == 300e9
    with pytest.raises(ArgumentError, match="link_gb_s needs gpus"):
        ParallelOptions.of(None, "", 32.0)
