"""Recognise the JSON results of commands by their content, and report them.

joulecast evaluate --out     an evaluation
joulecast prune --out        a pruning
joulecast plan --out         a plan
joulecast score --out        scores of devices
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import FileError
from joulecast.input_files import first_line, parse_json, read_limited
from joulecast.records import Json
from joulecast.reports.report import Report

MOST_RESULT_BYTES = 16 * 2**20
"""Size of a result file; an evaluation of 100 networks has 200 KiB."""
COMMANDS = "`joulecast evaluate`, `prune`, `plan` or `score` wrote with --out"


def _report_evaluation(data: Json, what: str) -> Report:
    from joulecast.reports.evaluation_report import read_evaluation, report_evaluation

    return report_evaluation(read_evaluation(data, what))


def _report_pruning(data: Json, what: str) -> Report:
    from joulecast.features.prune_report import read_pruning
    from joulecast.reports.pruning_report import report_pruning

    return report_pruning(read_pruning(data, what))


def _report_plan(data: Json, what: str) -> Report:
    from joulecast.features.plan.result import read_plan
    from joulecast.reports.plan_report import report_plan

    return report_plan(read_plan(data, what))


def _report_scores(data: Json, what: str) -> Report:
    from joulecast.features.device_score import read_scores
    from joulecast.reports.score_report import report_scores

    return report_scores(read_scores(data, what).devices)


@dataclass(frozen=True)
class _ResultKind:
    """A kind of result: fields that only it has, and how it is reported."""

    fields: frozenset[str]
    report: Callable[[Json, str], Report]


_KINDS = {
    "evaluation": _ResultKind(frozenset({"family", "scores", "nets"}), _report_evaluation),
    "pruning": _ResultKind(frozenset({"budget", "strategy", "layers"}), _report_pruning),
    "plan": _ResultKind(frozenset({"devices", "planned_energy_j", "gap_share"}), _report_plan),
    "score": _ResultKind(frozenset({"devices", "scale", "notes"}), _report_scores),
}
RESULT_KINDS = tuple(_KINDS)


def recognise_result(data: Any) -> str:
    """Return the kind of a result; empty if it is none."""
    if not isinstance(data, dict):
        return ""
    return next((name for name, kind in _KINDS.items() if kind.fields <= data.keys()), "")


def report_result(data: Any, what: str) -> Report:
    """Return the report of a result.

    Args:
        data: JSON values.
        what: What messages call it.

    Raises:
        FileError: It is not the result of one of these commands, or damaged.
    """
    kind = recognise_result(data)
    if not kind:
        raise FileError(f"{what} is not a result that can be reported: give one that {COMMANDS}")
    return _KINDS[kind].report(data, what)


def read_result(path: Path) -> Any:
    """Return the JSON values of a result file.

    Raises:
        FileError: The file cannot be read, is too large or is not JSON.
    """
    return parse_result(read_limited(path, MOST_RESULT_BYTES), str(path))


def parse_result(content: bytes | str, what: str) -> Any:
    """Return the JSON values of a result.

    Raises:
        FileError: It is too large or not JSON.
    """
    if len(content) > MOST_RESULT_BYTES:
        raise FileError(f"{what} is larger than {MOST_RESULT_BYTES // 2**20} MiB")
    try:
        return parse_json(content)
    except ValueError as error:
        raise FileError(
            f"{what} is not JSON ({first_line(error)}): give one that {COMMANDS}"
        ) from error
