"""Screening benchmark: its counts, and its published results."""

import importlib.util
import json
from pathlib import Path

import pytest

import joulecast

FOLDER = Path(__file__).parents[2] / "benchmarks" / "screening"


@pytest.fixture(scope="module")
def script():
    found = importlib.util.spec_from_file_location("screening", FOLDER / "run.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_batches_divide_the_counts(script):
    assert all(count % size == 0 for size, count in script.COUNTS.items())
    assert set(script.COUNTS) == set(script.BATCHES)


def test_budget_is_half_of_the_original(script):
    screener = script.make_half_screener("cnn5")
    original = joulecast.estimate("cnn5", device=script.DEVICE, setup=script.SETUP)
    assert screener.limit_j == pytest.approx(original.energy_j / 2)
    (smallest,) = screener.screen([{"c1": 1, "c2": 1, "c3": 1, "c4": 1}])
    assert smallest.is_within_budget


def test_interpolation_is_compared_with_exact_estimates(script, monkeypatch):
    monkeypatch.setattr(script, "MANY", (1000, 800))
    monkeypatch.setattr(script, "CHECKED_COUNT", 16)
    found = script.compare_with_exact("lenet5", 3)
    assert 0.5 < found["share"] < 1.0 and found["same_decision_share"] > 0.8
    assert 0.0 < found["rms_error"] <= found["largest_error"] < 0.1


def test_published_results_agree_with_the_page(script):
    report = json.loads((FOLDER / "results" / "two-cores.json").read_text())
    table = script.make_table(report)
    assert set(report["families"]) == set(script.FAMILIES) and report["commit"]
    page = (FOLDER / "README.md").read_text()
    assert f"{report['observations']:,} observations" in page
    for family, row in report["families"].items():
        assert family in table
        assert set(row["per_candidate_s"]) == set(script.MEASURES)
        for name in ("many_100000", "many_20000", "batch_256"):
            rate = f"{1 / row['per_candidate_s'][name]:,.0f}"
            assert rate in table and rate in page
        error = row["interpolation"]
        if error["share"]:
            assert f"{error['rms_error']:.1%}".replace("%", " %") in page
