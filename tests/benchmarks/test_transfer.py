"""The kept results of transfers between devices: their criteria, and the figures of pages."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "transfer"


@pytest.fixture(scope="module")
def transfers():
    return json.loads((FOLDER / "results" / "report.json").read_text())["transfers"]


def test_criteria_hold(transfers):
    assert transfers["rtx6000 to rtx3060"]["transfer"]["mape"] <= 6.0
    for name, found in transfers.items():
        better = min(found["scale"], found["cold"]["mape"])
        assert found["transfer"]["mape"] <= better + 0.3, name
        assert 90.0 <= found["transfer"]["inside"] <= 99.0, name


def test_report_is_the_mean_of_all_draws(transfers):
    draws = json.loads((FOLDER / "results" / "draws.json").read_text())
    assert draws.keys() == transfers.keys()
    for name, rows in draws.items():
        assert [row["draw"] for row in rows] == list(range(50))
        mean = sum(row["transfer"]["mape"] for row in rows) / len(rows)
        assert mean == pytest.approx(transfers[name]["transfer"]["mape"], abs=0.01)


def test_pages_show_the_kept_figures(transfers):
    readme = (FOLDER / "README.md").read_text()
    for name, found in transfers.items():
        values = found["scale"], found["cold"]["mape"], found["transfer"]["mape"]
        row = " | ".join(f"{value:.2f}" for value in values)
        assert f"| {row} |" in readme, name
    guide = (ROOT / "docs" / "how-to" / "transfer.md").read_text()
    both = transfers["rtx6000 to rtx3060"]
    assert f"{both['transfer']['mape']:.1f} %" in guide and f"{both['cold']['mape']:.1f} %" in guide
