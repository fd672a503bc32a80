"""Measure how long planning takes and how close to the optimum the plans are.

Jobs and devices are random numbers; nothing is estimated. Devices resemble phones, laptops and
boards by their power; three in five have a battery, most of those with charging windows; a third
runs two jobs in parallel. Every plan is replayed before it counts.

    python benchmarks/planning/run.py                   print a table; about seven minutes
    python benchmarks/planning/run.py --json            print JSON
    python benchmarks/planning/run.py --out FILE        also write JSON to a file
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from problems import draw_problem

from joulecast.features.plan.model import solve
from joulecast.features.plan.replay import replay
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor

# Jobs, devices, number of problems of that size, time limit in seconds.
SIZES = ((10, 5, 10, 20.0), (50, 10, 5, 40.0), (300, 30, 3, 60.0))

Json = dict[str, Any]


def main() -> None:
    """Solve every problem and print the figures."""
    args = parse_arguments()
    report = run_all([size for size in SIZES if size[0] <= args.most_jobs], args.first_seed)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most-jobs", type=int, default=300, help="skip larger problems")
    parser.add_argument("--first-seed", type=int, default=200, help="seed of the first problem")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser.parse_args()


def run_all(sizes: Sequence[tuple[int, int, int, float]], first_seed: int) -> Json:
    """Solve every problem of every size."""
    rows = []
    for jobs, devices, count, limit_s in sizes:
        for seed in range(first_seed, first_seed + count):
            rows.append({"limit_s": limit_s, **plan_one(jobs, devices, seed, limit_s)})
    return {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "ortools": version("ortools"),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "rows": rows,
    }


def plan_one(jobs: int, devices: int, seed: int, limit_s: float) -> Json:
    """Solve one problem; return its time and gap."""
    problem = draw_problem(jobs, devices, seed)
    begun_s = time.perf_counter()
    found = solve(problem, limit_s)
    took_s = time.perf_counter() - begun_s
    assert not replay(problem, found.schedule).violations
    return {
        "jobs": jobs,
        "devices": devices,
        "seed": seed,
        "wall_s": round(took_s, 2),
        "energy_j": found.energy_j,
        "lower_bound_j": found.lower_bound_j,
        "gap_share": found.gap_share,
        "is_optimal": found.is_optimal,
        "left_out": len(found.left_out),
        "runs_most": found.runs_most,
        "calls": found.calls,
        "time_step_s": found.time_step_s,
    }


# ---------------------------------------------------------------------------------------------
# Table


def make_table(report: Json) -> str:
    """Return a table with a line per size."""
    lines = [
        f"{report['processor']}, {report['cores']} cores, load {report['load']}",
        f"{'jobs x devices':16s} {'problems':>8s} {'proven':>6s} {'median s':>9s} {'max s':>8s} "
        f"{'median gap':>11s} {'max gap':>9s} {'left out':>9s}",
    ]
    for size in dict.fromkeys((row["jobs"], row["devices"]) for row in report["rows"]):
        rows = [row for row in report["rows"] if (row["jobs"], row["devices"]) == size]
        seconds = [row["wall_s"] for row in rows]
        gaps = [100 * row["gap_share"] for row in rows]
        lines.append(
            f"{size[0]:>4d} x {size[1]:<9d} {len(rows):8d} {sum(r['is_optimal'] for r in rows):6d} "
            f"{statistics.median(seconds):9.1f} {max(seconds):8.1f} "
            f"{statistics.median(gaps):9.2f} % {max(gaps):7.2f} % "
            f"{sum(row['left_out'] for row in rows):9d}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
