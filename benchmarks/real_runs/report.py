"""Print errors of the estimates by network and by way of training.

python report.py results/first_run.jsonl results/second_run.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

Json = dict[str, Any]

WAYS = ("compiled", "checkpointed", "x")


def main(paths: list[str]) -> None:
    """Print a table of all rows; a network of a later file replaces that of an earlier one."""
    rows: dict[str, Json] = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            rows[row["name"]] = row
    print("| network | measured | shipped profile | with probes | seconds of probing |")
    print("|---|---:|---:|---:|---:|")
    for row in rows.values():
        cells = [f"{row['truth']['energy_j']:.1f} J", *map(format_error, find_errors(row).values())]
        print("|", " | ".join([row["name"], *cells, f"{row['probed']['took_s']:.0f}"]), "|")
    for way in WAYS:
        own = [find_errors(row) for row in rows.values() if f" {way}" in row["name"]]
        for name in ("shipped", "probed"):
            errors = [abs(error) for one in own if (error := one[name]) is not None]
            inside = sum(is_inside(row, name) for row in rows.values() if f" {way}" in row["name"])
            print(f"{way}, {name}: MAPE {100 * mean(errors):.1f} %, {inside} of {len(own)} inside")


def find_errors(row: Json) -> dict[str, float | None]:
    """Return the relative error of each estimate; None where it failed."""
    truth_j = row["truth"]["energy_j"]
    return {
        name: row[name]["energy_j"] / truth_j - 1.0 if "energy_j" in row[name] else None
        for name in ("shipped", "probed")
    }


def format_error(error: float | None) -> str:
    """Return an error in percent with its sign."""
    return "failed" if error is None else f"{100 * error:+.1f} %"


def is_inside(row: Json, name: str) -> bool:
    """Return whether the measured energy lies within the interval of an estimate."""
    if "interval_j" not in row[name]:
        return False
    low_j, high_j = row[name]["interval_j"]
    return bool(low_j <= row["truth"]["energy_j"] <= high_j)


if __name__ == "__main__":
    main(sys.argv[1:])
