"""The page on several GPUs shows what the model says now, and how far it is off."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "devices"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("data_parallel")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("data_parallel", None)


def test_page_has_the_rows_that_the_script_prints(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main([])
    *table, overall, bound = capsys.readouterr().out.splitlines()
    page = (FOLDER / "data_parallel.md").read_text()
    assert len(table) == 2 + 18 and "\n".join(table) in page
    assert "n = 18, MAPE 3.4 %, median 1.4 %, worst 14.5 %, inside 14" in overall
    assert "3.4 % on average (median 1.4 %, worst 14.5 %), and 14 are inside" in page
    assert "n = 16" in bound


def test_efficiencies_follow_from_throughputs(script: Any) -> None:
    rows = script.read_scaling(FOLDER / "published_scaling.csv")
    (bert,) = [row for row in rows if row.name.startswith("BERT")]
    assert bert.measured == pytest.approx(469.8 / 61.5 / 8)
    # A step that is predicted too short has a negative error.
    assert bert.predicted > bert.measured and bert.error < 0 and bert.is_inside


def test_steps_of_several_gpus_are_predicted_from_a_data_sheet(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The law of the benchmark is tested with it; here it gives a fixed duration."""
    data = importlib.import_module("neusight_data")
    law = Namespace(predict=lambda rows: Namespace(medians_s=[0.4] * len(rows)))
    fake = Namespace(fit_law=lambda device, kernels, steps: law)
    monkeypatch.setitem(sys.modules, "duration_law", fake)
    for name in ("read_kernels", "read_steps"):
        monkeypatch.setattr(data, name, lambda folder: [])
    (found,) = script.predict_distributed(FOLDER / "neusight_distributed.csv", tmp_path)
    sys.modules.pop("neusight_data", None)
    assert found.one_s == 0.4 and 0.4 < found.all_s < 0.45
    assert found.measured_s == pytest.approx(0.4523)
