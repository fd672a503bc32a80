"""``evaluate`` measures held-out nets, and evaluates them again without a device."""

from __future__ import annotations

import json

import pytest

from joulecast.cli.progress import format_report
from joulecast.records import PROVENANCES
from joulecast.uses.evaluate import EstimatorScore
from joulecast.uses.progress_report import ProgressReport

SMALL = ("lenet5", "--on", "simulated:7", "--batch", "8", "--nets", "3")
LEARNT = (*SMALL, "--estimators", "subtractive", "--seconds", "40")


@pytest.fixture
def evaluated(shell):
    """Return a command line whose store holds an evaluation, and its result."""
    return shell, shell.json("evaluate", *LEARNT)


def test_json_has_scores_and_nets(evaluated):
    _, data = evaluated
    (score,) = data["scores"]
    assert set(score) == set(EstimatorScore.__dataclass_fields__)
    assert score["estimator"] == "subtractive" and score["nets"] == 3
    assert 0 < score["device_seconds"] <= 42 and score["points"] > 3
    assert data["provenance"] == "simulated" and data["provenance"] in PROVENANCES
    assert data["setup"]["batch"] == 8 and data["device"]["name"] == "simulated-7"
    for net in data["nets"]:
        assert len(net["passes_j"]) == 2
        assert net["measured_j"] == pytest.approx(sum(net["passes_j"]) / 2)
        estimate = net["estimates"]["subtractive"]
        low, high = estimate["interval50_j"]
        assert low < estimate["energy_j"] < high
        assert estimate["interval95_j"][0] < low and high < estimate["interval95_j"][1]


def test_offline_gives_the_same_result_without_a_device(evaluated, monkeypatch):
    shell, data = evaluated
    monkeypatch.delattr("joulecast.runtimes.simulated.SimulatedRuntime.prepare")
    before = shell.snapshot()
    assert shell.json("evaluate", *LEARNT, "--offline") == data
    # A named device may be elsewhere.
    away = [word.replace("simulated:7", "cuda:7") for word in LEARNT]
    named = shell.json("evaluate", *away, "--device", "simulated-7", "--offline")
    assert named == data
    assert shell.snapshot() == before


def test_the_same_command_measures_nothing_again(evaluated):
    shell, data = evaluated
    before = shell.snapshot()
    assert shell.json("evaluate", *LEARNT) == data
    assert shell.snapshot() == before


def test_text_has_one_table_and_the_provenance(evaluated):
    shell, data = evaluated
    text = shell("evaluate", *LEARNT, "--offline").stdout
    lines = text.splitlines()
    assert "3 held-out nets of lenet5 on simulated-7 (simulated)" in lines[0]
    (row,) = [line for line in lines if line.startswith("subtractive")]
    error = data["scores"][0]["mape_percent"]
    assert row.split()[1] == (f"{error:.1f}" if error < 99.95 else f"{error:,.0f}")
    assert "Two measurements of the same net differ by" in text
    assert "simulated, not a real device" in text and "store.sqlite" in text
    assert max(map(len, lines)) <= 100
    assert "…" not in text


def test_missing_measurements_are_listed(evaluated):
    shell, _ = evaluated
    more = [word if word != "3" else "5" for word in LEARNT]
    more[-1] = "400"
    text = " ".join(shell("evaluate", *more, "--offline").stdout.split())
    assert "Not measured yet: pass 1 of 2 of 5 test nets" in text
    assert "Not measured yet: the rest of the campaign of subtractive" in text
    line = shell.fails("evaluate", *LEARNT, "--seed", "9", "--offline")
    assert "without --offline" in line


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["nix"], 1, "resnet18"),
        (["net.json"], 1, "not a family"),
        (["package.module:make_net"], 1, "not a family"),
        (["cnn5:8,16,32,64"], 1, "give cnn5 alone"),
        (["cnn5", "--estimators", "subtractive,nix"], 1, "'nix'"),
        (["cnn5", "--input", "3x8"], 1, "3x96x96"),
        (["lstm", "--nets", "1000"], 1, "at most"),
        (["cnn5", "--on", "nix"], 1, "nix"),
        (["cnn5", "--offline"], 1, "without --offline"),
        (["cnn5", "--offline", "--device", "nix"], 1, "no profile of 'nix'"),
        (["cnn5", "--device", "simulated-7"], 2, "--device needs --offline"),
        (["cnn5", "--nets", "0"], 2, "--nets"),
        (["cnn5", "--seconds", "0"], 2, "--seconds"),
    ],
)
def test_bad_options_are_one_line(shell, words, code, part):
    on = [] if "--on" in words else ["--on", "simulated:7"]
    assert part in shell.fails("evaluate", *words, *on, code=code)


def test_settings_may_name_the_estimators(shell, write):
    write("joulecast.toml", '[evaluate]\nestimators = "subtractive"\nseconds = 30')
    data = json.loads(shell("evaluate", *SMALL, "--json").stdout)
    assert [score["estimator"] for score in data["scores"]] == ["subtractive"]
    assert data["seconds"] == 30


def test_a_progress_bar_appears_on_terminals_only(shell, monkeypatch):
    assert shell("evaluate", *LEARNT).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shell("evaluate", *LEARNT, "--seed", "2").stderr
    assert "test nets, pass 2 of 2" in text


def test_a_progress_report_shows_the_stage_or_the_count():
    report = ProgressReport(0.5, 1.0, "2 of 6: additive learns", "conv2d")
    assert format_report(report) == "2 of 6: additive learns"
    assert format_report(ProgressReport(3, 8, "trials")) == "3 of 8 trials"


def test_plots_are_written_and_marked_as_simulated(shell):
    shell("evaluate", *LEARNT, "--plot", "page.html")
    (shell.folder / "plots").mkdir()
    shell("evaluate", *LEARNT, "--offline", "--plot", "plots/lenet5.svg")
    page = (shell.folder / "page.html").read_text(encoding="utf-8")
    assert "simulated" in page and "subtractive" in page
    names = sorted(path.name for path in (shell.folder / "plots").iterdir())
    assert "lenet5-agreement.svg" in names and len(names) == 6
