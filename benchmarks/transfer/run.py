"""Predict runs on a new device from ten of them, with what other devices have learnt.

python benchmarks/transfer/run.py --data DIR                     # what results/draws.json lacks
python benchmarks/transfer/run.py --data DIR --draws 2 --out DIR2   # a quick run
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import random
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "ecnas"))

from cells import SETUP, SOURCE, STEPS, read_runs
from methods import Names, RunData, group_runs

from joulecast.estimators.additive.encode import SourceDevice
from joulecast.estimators.additive.estimator import AdditiveEstimator, predict_runs
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Execution, Trial
from joulecast.simulation.chip import draw_chip
from joulecast.simulation.step_cost import compute_step_cost
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

RUNS, TWO_GPUS = "rtx6000.csv", "two_gpus.csv"
DRAWS, NETWORKS, LEVEL = 50, 10, 0.95
GPUS = {"rtx6000": "6000", "rtx3060": "3060"}
SIMULATED = (311, 312, 313)
# Standard deviations of the logarithms of simulated energies and durations, and their overhead.
ENERGY_LOG_SD, DURATION_LOG_SD, OVERHEAD_S = 0.05, 0.005, 30.0


def list_transfers() -> list[tuple[tuple[str, ...], str]]:
    """Return the sources and the target of every transfer."""
    simulated = [f"simulated-{seed}" for seed in SIMULATED]
    found: list[tuple[tuple[str, ...], str]] = [
        (("rtx6000",), "rtx3060"),
        (("rtx3060",), "rtx6000"),
        (("rtx6000, 1431 runs",), "rtx3060"),
        (("rtx6000", simulated[0]), "rtx3060"),
        (("rtx3060", simulated[0]), "rtx6000"),
    ]
    for gpu in GPUS:
        found += [((one,), gpu) for one in simulated]
        found += [((gpu,), one) for one in simulated]
    pairs = zip(simulated, simulated[1:] + simulated[:1], strict=True)
    return found + [((one,), other) for one, other in pairs]


def main() -> None:
    """Run what is missing, then print and write the results."""
    args = parse_arguments()
    if not args.data.is_dir():
        sys.exit(f"no folder {args.data}: give the one that contains {TWO_GPUS}")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "draws.json"
    kept: Json = json.loads(file.read_text()) if file.exists() else {}
    for sources, target in list_transfers():
        name = f"{' and '.join(sources)} to {target}"
        have = kept.setdefault(name, [])
        cold = find_cold(kept, target)
        with ProcessPoolExecutor(args.processes) as pool:
            missing = range(len(have), args.draws)
            score = partial(score_draw, args.data, sources, target)
            have += pool.map(score, missing, [cold.get(draw) for draw in missing])
        file.write_text(format_json(kept))
        print(describe(name, summarise(have[: args.draws])), flush=True)
    report = {
        "measured": "by EC-NAS-Bench (imported), and simulated",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "draws": args.draws,
        "transfers": {name: summarise(rows[: args.draws]) for name, rows in kept.items()},
    }
    (args.out / "report.json").write_text(format_json(report))


def find_cold(kept: Json, target: str) -> dict[int, Json]:
    """Return the scores of cold starts on a target by draw: they depend on no source."""
    rows = [row for name, rows in kept.items() if name.endswith(f" to {target}") for row in rows]
    return {row["draw"]: row["cold"] for row in rows}


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}, {TWO_GPUS}")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Devices


@cache
def load_runs(path: Path) -> RunData:
    """Return the runs of a file by network."""
    return group_runs(read_runs(path))


@cache
def load_device(data: Path, name: str) -> RunData:
    """Return the runs of a device; of both GPUs, those of the networks that ran on both."""
    if name.endswith("runs"):
        return load_runs(data / RUNS)
    both = load_runs(data / TWO_GPUS)
    if name not in GPUS:
        return simulate_runs(load_device(data, "rtx6000"), int(name.rpartition("-")[2]))
    runs = {
        net: [run for run in runs if GPUS[name] in run.device]
        for net, runs in both.runs.items()
        if all(any(mark in run.device for run in runs) for mark in GPUS.values())
    }
    return RunData(both.nets, runs, both.features)


def simulate_runs(like: RunData, seed: int) -> RunData:
    """Return one run of every network on a simulated device, start-up included."""
    chip, rng = draw_chip(seed), np.random.default_rng(seed)
    runs = {}
    for net, (run, *_) in sorted(like.runs.items()):
        cost = compute_step_cost(chip, Trial(like.nets[net], SETUP, Execution()))
        train_s = STEPS * cost.duration_s * float(np.exp(DURATION_LOG_SD * rng.normal()))
        energy_j = STEPS * cost.energy_j + OVERHEAD_S * chip.idle_w
        energy_j *= float(np.exp(ENERGY_LOG_SD * rng.normal()))
        total_s, name = train_s + OVERHEAD_S, f"simulated-{seed}"
        own = replace(run, device=name, energy_j=energy_j, train_s=train_s, total_s=total_s)
        runs[net] = [own]
    return RunData(like.nets, runs, like.features)


@cache
def learn_source(data: Path, name: str) -> SourceDevice:
    """Return what a device learns from all of its runs."""
    runs = load_device(data, name)
    return AdditiveEstimator().fit(runs.observe(sorted(runs.runs))).as_source(name, name)


# ---------------------------------------------------------------------------------------------
# Scores


def score_draw(
    data: Path, sources: tuple[str, ...], target: str, draw: int, cold: Json | None = None
) -> Json:
    """Score the three methods on one draw of networks that ran on the target.

    Args:
        data: Folder of the files.
        sources: Names of the devices to start from.
        target: Name of the device that starts from them.
        draw: Number of the draw.
        cold: Score of the cold start, if it is known.
    """
    there, first = load_device(data, target), load_device(data, sources[0])
    names = sorted(there.runs)
    random.Random(f"transfer report {draw}").shuffle(names)
    learn, test = names[:NETWORKS], names[NETWORKS:]
    learnt = tuple(learn_source(data, one) for one in sources)
    return {
        "draw": draw,
        "scale": round(score_factor(first, there, learn, test), 3),
        "cold": cold or score_additive(there, learn, test, ()),
        "transfer": score_additive(there, learn, test, learnt),
    }


def score_factor(first: RunData, there: RunData, learn: Names, test: Names) -> float:
    """Return the MAPE of one factor on the runs of the first device."""
    known, other = (find_energies(one, [*learn, *test]) for one in (first, there))
    ratio = np.log(other / known)[: len(learn)]
    return find_mape(np.exp(ratio.mean()) * known[len(learn) :], other[len(learn) :])


def score_additive(
    there: RunData, learn: Names, test: Names, sources: tuple[SourceDevice, ...]
) -> Json:
    """Return errors in percent, coverage and the fitted share of the first source."""
    fitted = AdditiveEstimator(sources).fit(there.observe(learn))
    totals = predict_runs(fitted, [there.nets[net] for net in test], SETUP, STEPS, SOURCE)
    measured_j = find_energies(there, test)
    measured_s = np.array([there.runs[net][0].train_s for net in test])
    pairs = zip(totals.energy_j, totals.variance(), strict=True)
    low_j, high_j = np.array([lognormal_interval(*one, LEVEL) for one in pairs]).T
    inside = (low_j <= measured_j) & (measured_j <= high_j)
    score = {
        "mape": find_mape(totals.energy_j, measured_j),
        "seconds_mape": find_mape(totals.duration_s, measured_s),
        "inside": 100 * float(inside.mean()),
        "width": 100 * float(np.median((high_j - low_j) / totals.energy_j)),
    }
    if sources:
        shares = fitted.duration.hyper.coefficients[-len(sources) :]
        score["share"] = float(shares[0])
    return {name: round(value, 3) for name, value in score.items()}


def find_energies(runs: RunData, names: Names) -> Any:
    """Return the mean energy of each network's runs."""
    return np.array([runs.mean_energy_j(name) for name in names])


def find_mape(predicted: Any, measured: Any) -> float:
    """Return the mean absolute percentage error."""
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


def summarise(rows: Sequence[Json]) -> Json:
    """Return means over draws; ``worse`` is the difference to the better of the other two."""
    mean = {
        method: {
            name: round(float(np.mean([row[method][name] for row in rows])), 2) for name in own
        }
        for method, own in rows[0].items()
        if isinstance(own, dict)
    }
    scale = round(float(np.mean([row["scale"] for row in rows])), 2)
    worse = mean["transfer"]["mape"] - min(scale, mean["cold"]["mape"])
    spread = float(np.std([row["transfer"]["mape"] for row in rows]))
    return {"scale": scale, **mean, "sd": round(spread, 2), "worse": round(worse, 2)}


def format_json(report: Json) -> str:
    """Return JSON with one line for each score."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


def describe(name: str, summary: Json) -> str:
    """Return one line of the table."""
    cold, own = summary["cold"], summary["transfer"]
    return (
        f"{name:45s} scale {summary['scale']:5.2f}  cold {cold['mape']:5.2f}  transfer "
        f"{own['mape']:5.2f} ± {summary['sd']:.2f} ({summary['worse']:+.2f})  seconds "
        f"{cold['seconds_mape']:.2f} {own['seconds_mape']:.2f}  inside {cold['inside']:.0f} "
        f"{own['inside']:.0f}  width {cold['width']:.0f} {own['width']:.0f}  share "
        f"{own['share']:.2f}"
    )


if __name__ == "__main__":
    main()
