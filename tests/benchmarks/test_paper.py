"""The scripts around the paper's experiments: measuring with little installed, and the page."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import joulecast
from joulecast.records import Device
from joulecast.uses.reproduce import (
    EXPERIMENTS,
    HELD,
    NOT_HELD,
    ExperimentResult,
    ResultFolder,
)

FOLDER = Path(__file__).parents[2] / "benchmarks" / "paper"
BLOCKED = ("click", "rich", "sqlalchemy", "alembic", "plotly", "matplotlib", "optuna", "fastapi")
RUN_BLOCKED = f"""
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"paper_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", RUN_BLOCKED, str(FOLDER / "run.py"), *words]
    source = str(Path(joulecast.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_measuring_needs_neither_a_command_line_nor_a_database_nor_plots(tmp_path):
    out = str(tmp_path / "out")
    words = (out, "fig5", "--on", "simulated:7", "--quick")
    first = run(*words, "--until-s", "4")
    assert first.returncode == 3 and "run it again to continue" in first.stdout, first.stderr
    second = run(*words)
    assert second.returncode == 0 and "everything is measured" in second.stdout, second.stderr
    (result,) = joulecast.reproduce("fig5", out=out, redraw=True).results
    assert result.verdict == HELD


def test_the_page_gets_the_results_between_its_marks(tmp_path):
    report = load("report")
    experiment = EXPERIMENTS["table1"]
    result = ExperimentResult(
        "table1",
        experiment.title,
        experiment.statement,
        experiment.criterion,
        HELD,
        "It took 60 s.",
        {"families": {}},
        Device("board", "A Board"),
        "torch-2",
        "gpu",
        "measured",
        "2026-11-17",
        is_quick=False,
        device_seconds=60.0,
        notes=("Beware.",),
    )
    folder = ResultFolder(tmp_path)
    folder.save_result(result)
    page = report.PAGE.read_text(encoding="utf-8")
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    text = report.write_results([(result, tmp_path)], report.PAGE)
    assert "On an A Board with torch-2, measured, 2026-11-17." in text
    assert "[table1](#table-1-time-of-profiling-and-fitting)" in text
    assert "### Table 1: Time of profiling and fitting" in text
    assert "**It held.** It took 60 s." in text and "*Beware.*" in text
    assert report.sort_names()[:2] == ["fig2", "fig4"] and report.sort_names()[-1] == "table1"


def test_an_experiment_is_taken_from_the_first_folder_that_has_it(tmp_path):
    report = load("report")
    results = ResultFolder(FOLDER / "results")
    fig4, fig5 = (results.find_result(name) for name in ("fig4", "fig5"))
    other = replace(fig5, device=replace(fig5.device, unit="other"))
    for name, kept in {"a": [fig4], "b": [replace(fig4, verdict=NOT_HELD), other]}.items():
        (tmp_path / name).mkdir()
        for result in kept:
            ResultFolder(tmp_path / name).save_result(result)
    found = report.find_results([tmp_path / "a", tmp_path / "b"])
    assert found == [(fig4, tmp_path / "a"), (other, tmp_path / "b")]
    assert report.write_results(found, report.PAGE).count("Measured on another unit") == 1
