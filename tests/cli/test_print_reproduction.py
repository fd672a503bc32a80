"""What ``reproduce`` prints: plans, verdicts, and what is missing."""

from __future__ import annotations

from pathlib import Path

from joulecast.cli.print_reproduction import (
    make_plan_data,
    make_result_data,
    print_plan,
    print_results,
)
from joulecast.features.reproduce import ReproduceOptions
from joulecast.records import Device
from joulecast.uses.reproduce import NOT_HELD, ExperimentResult, PlannedWork, Reproduction

PLAN = {"fig2": (PlannedWork("stacks", 18, 40.0),), "fig7": ()}
RESULT = ExperimentResult(
    "fig2",
    "Stacks",
    "Energy grows linearly.",
    "R² is at least 98 %.",
    NOT_HELD,
    "R² is 50 %.",
    {"r_squared": 0.5},
    Device("board"),
    "torch-2",
    "cpu",
    "modelled",
    "2026-11-17",
    is_quick=False,
    device_seconds=40.0,
)


def test_a_plan_has_a_total(capsys):
    print_plan(PLAN)
    text = capsys.readouterr().out
    assert "stacks" in text and "nothing of its own" in text and text.count("40 s") == 2
    assert make_plan_data(PLAN)["fig2"] == [{"name": "stacks", "trials": 18, "seconds": 40.0}]


def test_a_verdict_names_provenance_and_what_is_missing(capsys):
    outcome = Reproduction((RESULT,), (Path("fig2.svg"),), ("a net: too large",), False)
    print_results(outcome, ReproduceOptions(out="there"))
    text = " ".join(capsys.readouterr().out.split())
    assert "fig2 Stacks (modelled): did not hold" in text
    assert "The paper: Energy grows linearly." in text and "board: R² is 50 %." in text
    assert "Left out: a net: too large" in text and "run it again to continue" in text
    assert "CPU time x a stated power" in text
    data = make_result_data(outcome)
    assert data["results"] == [RESULT.to_dict()] and not data["is_complete"]
