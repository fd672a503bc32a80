"""Measure how many candidates of a search are screened per second on this machine.

A candidate is drawn and screened against a budget with the shipped profile (nvidia-h200, measured):
tens of thousands as ``joulecast search`` does it, some exactly and the rest interpolated, and
smaller batches all exactly. For comparison: building random nets of the same family and running
them on this CPU, and the time to measure one on the H200 when the profile was made. Every figure is
taken in a new process, so that no layer is cached. Interpolation is also compared with exact
estimates of the same candidates.

    python benchmarks/screening/run.py                a table
    python benchmarks/screening/run.py --out FILE     also write it
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import joulecast
from joulecast.budgets import RunLength, parse_budget
from joulecast.estimators import estimate_network
from joulecast.families import draw_family
from joulecast.records import Device, Profile, Setup, Trial
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor
from joulecast.uses.search import (
    BudgetScreener,
    make_screener,
    make_search_space,
    screen_randomly,
)

FAMILIES = ("cnn5", "transformer", "resnet18")
DEVICE, SETUP, SEED = "nvidia-h200", Setup(batch=32), 7
# Candidates of a random screening: what is learnt first costs the same for any number of them.
MANY = (100_000, 20_000)
BATCHES = (256, 64, 16, 1)
# Candidates per figure; fewer where screening is slow.
COUNTS = {256: 512, 64: 256, 16: 64, 1: 20}
AFRESH_COUNT, RUN_COUNT, MIN_MEASURED = 8, 6, 3
# Interpolated candidates that are compared with exact estimates.
CHECKED_COUNT = 256

Json = dict[str, Any]


def main() -> None:
    """Measure everything, or one thing if called by itself."""
    args = parse_arguments()
    if args.measure:
        measure = MEASURES.get(args.measure, compare_with_exact)
        print(json.dumps(measure(args.family, args.seed)))
        return
    report = run_all(args.repeats)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--measure", choices=[*MEASURES, ERROR], help=argparse.SUPPRESS)
    parser.add_argument("--family", choices=FAMILIES, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(repeats: int) -> Json:
    """Run every measure in new processes, in turns, so that all meet the same other load."""
    found: dict[str, dict[str, list[float]]] = {f: {m: [] for m in MEASURES} for f in FAMILIES}
    load = [os.getloadavg()[0]]
    for turn in range(repeats):
        for family in FAMILIES:
            for name in MEASURES:
                found[family][name].append(run_child(family, name, SEED + turn))
    load.append(os.getloadavg()[0])
    profile = joulecast.load_profile(DEVICE)
    families = {
        family: {
            "per_candidate_s": {name: min(values) for name, values in rows.items()},
            "all_s": rows,
            "interpolation": run_child(family, ERROR, SEED),
            "measured_on_device_s": find_measuring_time_s(profile, family),
        }
        for family, rows in found.items()
    }
    return {
        **describe_machine(),
        "profile": DEVICE,
        "observations": len(profile.observations),
        "setup": SETUP.to_dict(),
        "repeats": repeats,
        "load": load,
        "families": families,
    }


def run_child(family: str, name: str, seed: int) -> Any:
    """Return what a measure found in its own process: mostly CPU seconds per candidate."""
    command = [sys.executable, __file__, "--measure", name, "--family", family, "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------------------------------------
# Measures


def make_half_screener(family: str) -> BudgetScreener:
    """Return a screener of a family's whole space with half the original's energy as budget."""
    profile = joulecast.load_profile(DEVICE)
    space, length = make_search_space(family, SETUP), RunLength()
    original = joulecast.estimate(family, device=profile, setup=SETUP)
    budget = parse_budget(f"{original.energy_j / 2}J", length)
    return make_screener(profile, space, budget, length, confidence=0.9)


def measure_many(count: int) -> Callable[[str, int], float]:
    """Return a measure that screens random candidates as ``joulecast search`` does."""

    def measure(family: str, seed: int) -> float:
        screener = make_half_screener(family)
        started_s = time.process_time()
        screen_randomly(screener, count, seed)
        return (time.process_time() - started_s) / count

    return measure


def compare_with_exact(family: str, seed: int) -> Json:
    """Return how far interpolated energies and decisions are from exact ones."""
    screener = make_half_screener(family)
    found = screen_randomly(screener, MANY[-1], seed).candidates
    some = [one for one in found if one.is_interpolated][:CHECKED_COUNT]
    if not some:
        return {"share": 0.0}
    exact = screener.screen([one.params for one in some])
    pairs = list(zip(some, exact, strict=True))
    errors = [abs(one.energy_j / other.energy_j - 1.0) for one, other in pairs]
    same = [one.is_within_budget == other.is_within_budget for one, other in pairs]
    return {
        "share": sum(one.is_interpolated for one in found) / len(found),
        "rms_error": statistics.fmean(error**2 for error in errors) ** 0.5,
        "largest_error": max(errors),
        "same_decision_share": statistics.fmean(same),
    }


def measure_batches(size: int) -> Callable[[str, int], float]:
    """Return a measure that draws, builds and screens candidates in batches of ``size``."""

    def measure(family: str, seed: int) -> float:
        screener, rng = make_half_screener(family), random.Random(seed)
        # The first batch loads the fit, which happens once in a search and is not counted.
        screener.screen([screener.space.draw(random.Random(0))])
        started_s = time.process_time()
        for _ in range(COUNTS[size] // size):
            screener.screen([screener.space.draw(rng) for _ in range(size)])
        return (time.process_time() - started_s) / COUNTS[size]

    return measure


def estimate_afresh(family: str, seed: int) -> float:
    """Estimate each candidate on its own, loading the fit every time."""
    profile, rng = joulecast.load_profile(DEVICE), random.Random(seed)
    started_s = time.process_time()
    for _ in range(AFRESH_COUNT):
        estimate_network(profile, draw_family(family, rng.randint), SETUP)
    return (time.process_time() - started_s) / AFRESH_COUNT


def run_here(family: str, seed: int) -> float:
    """Build each candidate and run three steps of it on this CPU, without a meter."""
    from joulecast.runtimes.torch.runtime import TorchRuntime

    runtime, rng = TorchRuntime("cpu", Device("cpu")), random.Random(seed)
    setup = Setup(batch=SETUP.batch, threads=1)
    durations_s = []
    for _ in range(RUN_COUNT):
        trial = Trial(draw_family(family, rng.randint), setup)
        started_s = time.process_time()
        step = runtime.prepare(trial)
        step.run(1)
        step.wait()
        durations_s.append(time.process_time() - started_s)
        step.close()
    return statistics.fmean(durations_s)


ERROR = "error"
MEASURES: dict[str, Callable[[str, int], float]] = {
    **{f"many_{count}": measure_many(count) for count in MANY},
    **{f"batch_{size}": measure_batches(size) for size in BATCHES},
    "afresh": estimate_afresh,
    "run_here": run_here,
}


def find_measuring_time_s(profile: Profile, family: str) -> float | None:
    """Return the median time to measure a whole net of the family in the profile."""
    costs = [
        one.cost_s
        for one in profile.observations
        if one.trial.network.name.partition(":")[0] == family and one.energy_j and one.cost_s
    ]
    return statistics.median(costs) if len(costs) >= MIN_MEASURED else None


# ---------------------------------------------------------------------------------------------
# Output


def describe_machine() -> Json:
    """Describe this machine."""
    import numpy as np

    return {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
    }


def make_table(report: Json) -> str:
    """Return a table of candidates per second, one row per family."""
    names = {f"many_{count}": f"{count:,}" for count in MANY}
    names |= {f"batch_{size}": f"{size} exact" for size in BATCHES}
    heads = [*names.values(), "one by one", "run here", "measured", "rms error", "decisions"]
    lines = [
        f"{report['processor']}, {report['cores']} cores, load {report['load'][0]:.1f} to "
        f"{report['load'][1]:.1f}; candidates per CPU second, the maximum of {report['repeats']}",
        f"{'':12s}" + "".join(f"{head:>12s}" for head in heads),
    ]
    for family, row in report["families"].items():
        lines.append(f"{family:12s}" + "".join(f"{cell:>12s}" for cell in show_family(row, names)))
    return "\n".join(lines)


def show_family(row: Json, names: Sequence[str] | Json) -> list[str]:
    """Return the cells of a row."""
    spent, measured_s = row["per_candidate_s"], row["measured_on_device_s"]
    cells = [f"{1 / spent[name]:,.0f}" for name in names]
    cells += [f"{1 / spent[name]:,.1f}" for name in ("afresh", "run_here")]
    cells.append(f"{1 / measured_s:.2f}" if measured_s else "-")
    error = row["interpolation"]
    if not error["share"]:
        return [*cells, "-", "-"]
    return [*cells, f"{error['rms_error']:.1%}", f"{error['same_decision_share']:.1%}"]


if __name__ == "__main__":
    main()
