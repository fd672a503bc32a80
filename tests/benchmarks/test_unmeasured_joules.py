"""Joules of devices treated as unknown: the kept results, and the figures of their pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "devices"


@pytest.fixture(scope="module")
def ecnas():
    return json.loads((FOLDER / "results" / "ecnas.json").read_text())


def test_ten_runs_of_another_card_keep_the_goal(ecnas):
    rows = ecnas["ten runs there"]
    assert [row["draw"] for row in rows] == list(range(50))
    own, factor = (mean(row[name]["mape"] for row in rows) for name in ("all runs", "one factor"))
    assert own <= 6.0 < factor
    assert 90.0 <= mean(row["all runs"]["inside"] for row in rows) <= 99.0


def test_scores_of_the_other_card_are_those_of_its_predictions(ecnas):
    for scores in ecnas["nothing measured there"].values():
        errors = [abs(run["energy_j"] / run["measured_j"] - 1) for run in scores["runs"]]
        assert len(errors) == 55
        assert 100 * mean(errors) == pytest.approx(scores["mape"], abs=0.02)
        inside = [
            run["interval_j"][0] <= run["measured_j"] <= run["interval_j"][1]
            for run in scores["runs"]
        ]
        assert 100 * mean(inside) == pytest.approx(scores["inside"], abs=0.1)


def test_page_of_the_other_card_shows_the_kept_figures(ecnas):
    page = (FOLDER / "ecnas.md").read_text()
    for name, scores in ecnas["nothing measured there"].items():
        row = f"| {scores['mape']:.1f} | {scores['median']:.1f} | {scores['bias']:+.1f} |"
        assert f"**carried by data sheets, {name}** {row}" in page
    for scores in ecnas["rivals"].values():
        assert f"{scores['mape']:.1f}" in page
    for name in ("other networks", "all runs"):
        mape = mean(row[name]["mape"] for row in ecnas["ten runs there"])
        assert f"**carried by data sheets, {name}** | {mape:.2f} ±" in page


def test_page_of_the_unknown_h200_shows_the_kept_figures():
    report = json.loads((FOLDER / "results" / "h200.json").read_text())
    page = (FOLDER / "h200.md").read_text()
    for name, rows in report["estimates"].items():
        score = report["scores"][name]["all"]
        errors = [abs(row["energy_j"] / row["measured_j"] - 1) for row in rows]
        assert len(errors) == score["n"] == 203
        assert 100 * mean(errors) == pytest.approx(score["mape"], abs=0.06)
        figures = f"| {score['mape']:.1f} | {score['median']:.1f} | {score['bias']:+.1f} |"
        assert figures in page, name


def test_networks_with_measured_joules_are_read(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    from h200_networks import read_atlas, read_steps

    steps = read_steps()
    assert len(steps) == 203 and sum(one.test == "anywhere" for one in steps) == 83
    assert all(one.energy_j > 0 and one.duration_s > 0 and one.network.layers for one in steps)
    atlas = read_atlas(60.0)
    assert 50.0 < sum(one.cost_s for one in atlas) <= 60.0
    assert atlas[: len(read_atlas(20.0))] == read_atlas(20.0)
