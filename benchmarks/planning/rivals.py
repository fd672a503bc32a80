"""Compare CP-SAT with HiGHS on the same problems: no chargers, one job at a time.

HiGHS solves a mixed-integer program: a choice for each pair of job and device, an order for each
pair of jobs, and start times with big-M constants. CP-SAT has intervals. Both model batteries, idle
power and deadlines; neither models chargers, memory and parallel jobs here.

    python benchmarks/planning/rivals.py --out benchmarks/planning/results/rivals.json
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from problems import DAY_S, draw_problem
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from joulecast.features.plan.model import solve
from joulecast.features.plan.problem import Problem
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor

SIZES = ((6, 3), (10, 5), (16, 5))
SEEDS = (1, 2)
LIMIT_S = 20.0

Json = dict[str, Any]


def main() -> None:
    """Run both solvers on every problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = [compare(jobs, devices, seed) for jobs, devices in SIZES for seed in SEEDS]
    report = {
        "processor": find_processor(),
        "limit_s": LIMIT_S,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "rows": rows,
    }
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(row)


def compare(jobs: int, devices: int, seed: int) -> Json:
    """Solve one problem with both solvers."""
    problem = simplify(draw_problem(jobs, devices, seed))
    begun_s = time.perf_counter()
    ours = solve(problem, LIMIT_S)
    ours_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    energy_j, gap_share = solve_milp(problem)
    return {
        "jobs": jobs,
        "devices": devices,
        "seed": seed,
        "cp_sat": {"wall_s": round(ours_s, 2), "energy_j": ours.energy_j, "gap": ours.gap_share},
        "highs": {
            "wall_s": round(time.perf_counter() - begun_s, 2),
            "energy_j": energy_j,
            "gap": gap_share,
        },
        "left_out": len(ours.left_out),
    }


def simplify(problem: Problem) -> Problem:
    """Remove chargers, memory and parallel jobs, and charge the batteries."""
    devices = []
    for device in problem.devices:
        battery = device.battery
        if battery is not None:
            battery = replace(battery, windows=(), charge_j=battery.capacity_j)
        devices.append(replace(device, max_parallel=1, asleep_w=0.0, battery=battery))
    return replace(problem, devices=tuple(devices))


def solve_milp(problem: Problem) -> tuple[float | None, float | None]:
    """Return the least energy and its gap by HiGHS; None if it found no schedule."""
    tasks, devices = problem.tasks, problem.devices
    big_s = 2.0 * DAY_S
    pairs = [
        (i, m)
        for i, task in enumerate(tasks)
        for m, own in enumerate(devices)
        if own.name in task.costs
    ]
    orders = [(i, k) for i in range(len(tasks)) for k in range(i + 1, len(tasks))]
    # Columns: choices, orders, starts, wakings, ends.
    place = {pair: at for at, pair in enumerate(pairs)}
    order = {pair: len(pairs) + at for at, pair in enumerate(orders)}
    start = len(pairs) + len(orders)
    first, last = start + len(tasks), start + len(tasks) + len(devices)
    size = last + len(devices)
    rows: list[tuple[dict[int, float], float, float]] = []
    price = np.zeros(size)
    for (i, m), at in place.items():
        price[at] = tasks[i].costs[devices[m].name].extra_j
    for m, device in enumerate(devices):
        price[first + m], price[last + m] = -device.awake_w, device.awake_w
        rows.append(({first + m: -1.0, last + m: 1.0}, 0.0, np.inf))
        if device.battery:
            drawn = {place[i, m]: price[place[i, m]] for i in range(len(tasks)) if (i, m) in place}
            drawn |= {first + m: -device.awake_w, last + m: device.awake_w}
            rows.append((drawn, -np.inf, device.battery.charge_j - device.battery.reserve_j))
    for i, task in enumerate(tasks):
        here = {place[i, m]: 1.0 for m in range(len(devices)) if (i, m) in place}
        rows.append((here, 1.0, 1.0))
        lengths = {
            place[i, m]: task.costs[devices[m].name].duration_s
            for m in range(len(devices))
            if (i, m) in place
        }
        rows.append(({start + i: 1.0, **lengths}, -np.inf, task.deadline_s))
        for m in range(len(devices)):
            if (i, m) in place:
                at = place[i, m]
                rows.append(({first + m: 1.0, start + i: -1.0, at: big_s}, -np.inf, big_s))
                ends = {start + i: 1.0, last + m: -1.0, at: big_s + lengths[at]}
                rows.append((ends, -np.inf, big_s))
    for i, k in orders:
        for m in range(len(devices)):
            if (i, m) in place and (k, m) in place:
                for before, after, turn in ((i, k, 1.0), (k, i, -1.0)):
                    length_s = tasks[before].costs[devices[m].name].duration_s
                    both = {place[i, m]: big_s, place[k, m]: big_s, order[i, k]: turn * big_s}
                    limit = 2 * big_s + (big_s if turn > 0 else 0.0) - length_s
                    rows.append(
                        ({start + before: 1.0, start + after: -1.0, **both}, -np.inf, limit)
                    )
    matrix = lil_array((len(rows), size))
    for number, (row, _, _) in enumerate(rows):
        for at, value in row.items():
            matrix[number, at] += value
    whole = np.zeros(size)
    whole[:start] = 1
    lows, highs = np.zeros(size), np.full(size, big_s)
    highs[:start] = 1.0
    for i, task in enumerate(tasks):
        lows[start + i] = task.release_s
    limits = LinearConstraint(
        matrix.tocsr(), [low for _, low, _ in rows], [high for *_, high in rows]
    )
    found = milp(
        price,
        constraints=limits,
        integrality=whole,
        bounds=Bounds(lows, highs),
        options={"time_limit": LIMIT_S},
    )
    return (None, None) if found.x is None else (float(found.fun), float(found.mip_gap))


if __name__ == "__main__":
    main()
