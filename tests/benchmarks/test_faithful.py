"""The ablation of deviations from the paper: every one has an arm, and results become tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from joulecast.estimators.subtractive.options import DEVIATIONS, OURS, PAPER

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faithful" / "run.py"


@pytest.fixture(scope="module")
def faithful():
    spec = importlib.util.spec_from_file_location("faithful_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_deviation_is_switched_in_both_methods(faithful):
    arms = faithful.list_arms()
    assert {name for _, name in arms} == {"", *DEVIATIONS, "batches"}
    assert len(arms) == 2 * (len(DEVIATIONS) + 2)
    for base, whole in (("subtractive", OURS), ("ampere", PAPER)):
        for name in DEVIATIONS:
            estimator, has_batches = faithful.make_arm(base, name)
            changed = [
                one for one in DEVIATIONS if getattr(estimator.options, one) != getattr(whole, one)
            ]
            assert changed == [name] and has_batches == (base == "ampere")
        assert faithful.make_arm(base, "batches")[1] == (base == "subtractive")


def test_deviations_of_fitting_are_deviations(faithful):
    assert set(faithful.FIT_DEVIATIONS) < set(DEVIATIONS)


def test_published_results_make_the_tables_of_the_page(faithful):
    tables = faithful.make_tables(faithful.RESULTS)
    page = (faithful.HERE / "README.md").read_text()
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    assert len(rows) > 50 and all(row in page for row in rows)
    assert "| simulated, cnn5 |" in tables and "| measured, MAPE % |" in tables


def test_a_run_is_resumed(faithful, tmp_path, monkeypatch):
    monkeypatch.setattr(faithful, "list_arms", lambda: [("subtractive", ""), ("ampere", "stop")])
    calls = []

    def run_arm(family, seed, base, changed):
        calls.append((family, seed, base, changed))
        return {"family": family, "device": seed, "base": base, "changed": changed}

    monkeypatch.setattr(faithful, "run_arm", run_arm)
    faithful.run_simulated([1], ["cnn5"], tmp_path)
    faithful.run_simulated([1, 2], ["cnn5"], tmp_path)
    assert calls == [("cnn5", seed, *arm) for seed in (1, 2) for arm in faithful.list_arms()]
    report = json.loads((tmp_path / "simulated.json").read_text())
    assert report["simulated"] and len(report["runs"]) == 4 and report["date"]


def test_one_arm_is_scored_on_unseen_networks(faithful, monkeypatch):
    monkeypatch.setattr(faithful, "MOST_POINTS", {"subtractive": 24, "ampere": 24})
    monkeypatch.setattr(faithful, "TEST_NETS", 3)
    row = faithful.run_arm("lenet5", 101, "subtractive", "corners")
    assert row["points"] == 24 and row["device_seconds"] > 0
    assert 0 < row["mape_percent"] < 100 and row["stopped"] == "24 points are measured"
