"""Energy of training runs that somebody else measured: EC-NAS-Bench, 1,431 runs of NAS-101 cells.

The files are not part of the project; their folder is an argument. Methods learn from the runs of
some nets and predict whole runs of all others, of which they see nothing that was measured.

    python benchmarks/ecnas/run.py --data DIR                  all; what is done stays
    python benchmarks/ecnas/run.py --data DIR --draws 2 --out DIR2   a look
"""

from __future__ import annotations

import os

# Before numpy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import hashlib
import json
import random
import re
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import read_runs
from methods import METHODS, Answer, Floats, Names, Shelf, make_shelf

from joulecast.figures import Axis, Caption, plot_error_by_budget, save_svg
from joulecast.gp.lognormal import lognormal_interval
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

RUNS, TWO_GPUS = "rtx6000.csv", "two_gpus.csv"
# Settings were chosen on these nets, with other draws; no reported draw learns from or judges them.
DEVELOPMENT, DEVELOPMENT_SEED = 400, "development"
SIZES = (10, 30, 100, 300)
DRAWS = 20
CARRIED = (3, 5, 10)
# Nets that the first device is learnt from before it is carried to the second.
LEARNT_BEFORE = 300
LEVEL = 0.95
DRAWN = ("additive", "gp, seconds first", "physics-linear")


def main() -> None:
    """Run what is missing, then print and keep what was found."""
    args = parse_arguments()
    if not args.data.is_dir():
        sys.exit(f"there is no folder {args.data}: give the one that holds rtx6000.csv")
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "draws.json"
    done: list[Json] = json.loads(kept.read_text())["draws"] if kept.exists() else []
    have = {found["draw"] for found in done}
    todo = [draw for draw in range(args.draws) if draw not in have]
    with ProcessPoolExecutor(args.processes) as pool:
        for found in pool.map(partial(run_draw, args.data), todo):
            done = sorted([*done, found], key=lambda one: int(one["draw"]))
            kept.write_text(format_json({"draws": done}))
    report = sum_up(args.data, done)
    (args.out / "report.json").write_text(format_json(report))
    draw_picture(done, args.out / "nets-learnt.svg")
    print(make_tables(report))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}, {TWO_GPUS}")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


@cache
def read_shelf(path: Path) -> Shelf:
    """A file's runs by net; once in each process."""
    return make_shelf(read_runs(path))


# ---------------------------------------------------------------------------------------------
# One device


def split_nets(names: Names) -> tuple[list[str], list[str]]:
    """Nets for development, and those that are reported."""
    develop = set(random.Random(DEVELOPMENT_SEED).sample(sorted(names), DEVELOPMENT))
    return sorted(develop), [name for name in sorted(names) if name not in develop]


def draw_nets(names: Names, draw: int, size: int) -> tuple[list[str], list[str]]:
    """Nets to learn from, more of the same for a larger size, and all others."""
    shuffled = sorted(names)
    random.Random(f"ec-nas {draw}").shuffle(shuffled)
    return shuffled[:size], shuffled[size:]


def run_draw(data: Path, draw: int) -> Json:
    """Every method at every size, and the second device."""
    shelf = read_shelf(data / RUNS)
    _, names = split_nets(list(shelf.nets))
    sizes: Json = {}
    for size in SIZES:
        learn, test = draw_nets(names, draw, size)
        sizes[str(size)] = {
            method: judge(shelf, test, ask(shelf, learn, test)) for method, ask in METHODS.items()
        }
    return {"draw": draw, "sizes": sizes, "carried": carry(data, draw)}


def judge(shelf: Shelf, test: Names, answer: Answer) -> Json:
    """How far an answer is off, in percent: of the mean over repeats, and of single runs."""
    said = np.asarray(answer.energy_j, float)
    repeats = np.array([len(shelf.runs[name]) for name in test], float)
    truth = np.array([shelf.mean_j(name) for name in test])
    off = 100 * (said / truth - 1)
    single = [
        abs(float(said[at]) / run.energy_j - 1)
        for at, name in enumerate(test)
        for run in shelf.runs[name]
    ]
    score = {
        "nets": len(test),
        "mape": _mean(np.abs(off)),
        "single_mape": _mean(100 * np.array(single)),
        "bias": _mean(off),
        "p90": float(np.quantile(np.abs(off), 0.9)),
    }
    if answer.variance is not None:
        score |= _judge_intervals(said, truth, np.asarray(answer.variance(repeats), float))
    if answer.train_s is not None:
        seconds = [statistics.median(run.train_s for run in shelf.runs[name]) for name in test]
        score["seconds_mape"] = _mean(100 * np.abs(answer.train_s / np.array(seconds) - 1))
    return {name: round(value, 3) for name, value in score.items()}


def _judge_intervals(said: Floats, truth: Floats, variance: Floats) -> dict[str, float]:
    ends = np.array([lognormal_interval(*one, LEVEL) for one in zip(said, variance, strict=True)])
    inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    widths = (ends[:, 1] - ends[:, 0]) / said
    return {"inside": 100 * _mean(inside.astype(float)), "width": 100 * float(np.median(widths))}


def _mean(values: Floats) -> float:
    return float(np.mean(values))


# ---------------------------------------------------------------------------------------------
# From one device to another


@cache
def learn_first(data: Path) -> dict[str, float]:
    """Joules of each net of the second file on the first device, learnt from other nets' runs."""
    shelf = read_shelf(data / RUNS)
    asked = sorted(read_shelf(data / TWO_GPUS).nets)
    others = [name for name in sorted(shelf.nets) if name not in set(asked)]
    learn = random.Random("ec-nas carried").sample(others, LEARNT_BEFORE)
    said = METHODS["additive"](shelf, learn, asked).energy_j
    return dict(zip(asked, said.tolist(), strict=True))


def carry(data: Path, draw: int) -> Json:
    """A few nets run on the second device: what each way says of all others there."""
    shelf = read_shelf(data / TWO_GPUS)
    first = {name: [r for r in runs if "6000" in r.device] for name, runs in shelf.runs.items()}
    second = {name: [r for r in runs if "3060" in r.device] for name, runs in shelf.runs.items()}
    names = sorted(name for name, runs in second.items() if runs and first[name])
    there = Shelf(shelf.nets, second, shelf.features)
    measured = {name: first[name][0].energy_j for name in names}
    before = read_shelf(data / RUNS).runs
    averaged = {name: statistics.fmean(run.energy_j for run in before[name]) for name in names}
    found: Json = {}
    for size in CARRIED:
        learn, test = draw_nets(names, draw, size)
        ways = {
            "additive learnt on the RTX 6000, scaled": scale(there, learn, test, learn_first(data)),
            "one measured run on the RTX 6000, scaled": scale(there, learn, test, measured),
            "mean of four measured runs there, scaled": scale(there, learn, test, averaged),
            "additive learnt on the RTX 3060 alone": METHODS["additive"](there, learn, test),
            "physics-linear on the RTX 3060 alone": METHODS["physics-linear"](there, learn, test),
            "flops on the RTX 3060 alone": METHODS["flops"](there, learn, test),
        }
        found[str(size)] = {way: judge(there, test, answer) for way, answer in ways.items()}
    return found


def scale(shelf: Shelf, learn: Names, test: Names, known: dict[str, float]) -> Answer:
    """One factor between two devices, from nets that ran on the second."""
    ratios = [np.log(shelf.mean_j(name) / known[name]) for name in learn]
    factor = float(np.exp(np.mean(ratios)))
    return Answer(factor * np.array([known[name] for name in test]))


# ---------------------------------------------------------------------------------------------
# What was found


def sum_up(data: Path, done: Sequence[Json]) -> Json:
    """Means over draws with their deviations, and how far repeats of a net differ."""
    shelf = read_shelf(data / RUNS)
    develop, names = split_nets(list(shelf.nets))
    return {
        "measured": "by EC-NAS-Bench (imported)",
        "device": "Quadro RTX 6000; carried to GeForce RTX 3060",
        "data_sha256": {name: _hash(data / name) for name in (RUNS, TWO_GPUS)},
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "nets": {"all": len(shelf.nets), "development": len(develop), "reported": len(names)},
        "repeats": describe_repeats(shelf),
        "draws": len(done),
        "sizes": _average([found["sizes"] for found in done]),
        "carried": _average([found["carried"] for found in done]),
    }


def _average(draws: Sequence[Json]) -> Json:
    """For each size and method the mean over draws of every score, with the deviation."""
    return {
        size: {
            method: {
                name: [
                    round(statistics.fmean(values), 2),
                    round(statistics.stdev(values), 2) if len(values) > 1 else 0.0,
                ]
                for name in scores
                for values in [[draw[size][method][name] for draw in draws]]
            }
            for method, scores in methods.items()
        }
        for size, methods in draws[0].items()
    }


def describe_repeats(shelf: Shelf) -> Json:
    """Coefficients of variation of nets that ran several times, in percent."""
    groups = [runs for runs in shelf.runs.values() if len(runs) > 1]
    found: Json = {"nets": len(groups)}
    for name in ("energy_j", "total_s", "train_s"):
        values = [[getattr(run, name) for run in runs] for runs in groups]
        shares = [100 * statistics.stdev(row) / statistics.fmean(row) for row in values]
        mean_square = statistics.fmean(share**2 for share in shares)
        found[name] = {
            "median_cv": round(statistics.median(shares), 2),
            "root_mean_square_cv": round(mean_square**0.5, 2),
        }
    return found


def draw_picture(done: Sequence[Json], path: Path) -> None:
    """Error against nets learnt from."""
    lines = {
        method: [
            [(float(size), found["sizes"][str(size)][method]["mape"]) for size in SIZES]
            for found in done
        ]
        for method in DRAWN
    }
    caption = Caption(
        "Energy of whole training runs (EC-NAS-Bench, RTX 6000)",
        f"line: mean of {len(done)} draws; band: best to worst",
        "imported",
    )
    plot = plot_error_by_budget(lines, Axis("Training networks"), caption)
    save_svg(plot, path)


def make_tables(report: Json) -> str:
    """Everything at a glance."""
    lines = [f"{report['nets']}, repeats {report['repeats']}, {report['draws']} draws"]
    heads = ("mape", "single_mape", "bias", "p90", "inside", "width", "seconds_mape")
    for part in ("sizes", "carried"):
        for size, methods in report[part].items():
            lines.append(f"\n{size + ' nets':42s}" + "".join(f"{head:>15s}" for head in heads))
            for method, scores in methods.items():
                cells = [scores.get(head) for head in heads]
                words = [f"{cell[0]:.1f} ± {cell[1]:.1f}" if cell else "" for cell in cells]
                lines.append(f"{method:42s}" + "".join(f"{word:>15s}" for word in words))
    return "\n".join(lines)


def format_json(report: Json) -> str:
    """JSON with a line for each score."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
