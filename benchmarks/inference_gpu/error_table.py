"""Summarise errors of energies and durations by method, mode and one more column."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("truth", type=Path)
    parser.add_argument("--profile", default="nvidia-h200")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def write_tables(rows: Sequence[Row], column: str, out: Path | None) -> None:
    """Print the summary, and write it with all rows to a file."""
    summary = summarise(rows, column)
    for line in summary:
        print(line)
    if out:
        out.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")


def summarise(rows: Sequence[Row], column: str) -> list[Row]:
    """Return mean absolute errors for every method and mode, and for each value of a column."""
    found = []
    keys = {(row["method"], row["mode"], value) for row in rows for value in ("all", row[column])}
    for method, mode, value in sorted(keys):
        own = [
            row
            for row in rows
            if (row["method"], row["mode"]) == (method, mode) and value in ("all", row[column])
        ]
        found.append({"method": method, "mode": mode, column: value, **_summarise_group(own)})
    return found


def _summarise_group(rows: Sequence[Row]) -> Row:
    errors = np.array([100.0 * (row["energy_j"] / row["measured_j"] - 1.0) for row in rows])
    line: Row = {
        "n": len(rows),
        "mape_percent": round(float(np.abs(errors).mean()), 1),
        "median_percent": round(float(np.median(np.abs(errors))), 1),
        "worst_percent": round(float(errors[np.abs(errors).argmax()]), 1),
    }
    if "is_inside" in rows[0]:
        inside = float(np.mean([row["is_inside"] for row in rows]))
        line["inside_percent"] = round(100.0 * inside, 1)
        slow = [row["duration_s"] / row["measured_s"] - 1.0 for row in rows]
        line["duration_mape_percent"] = round(100.0 * float(np.abs(slow).mean()), 1)
    return line
