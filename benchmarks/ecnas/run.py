"""Predict the energy of published training runs: EC-NAS-Bench, 1,431 runs of NAS-101 cells.

The files are not part of the project; their folder is an argument. Methods are fitted to the runs
of some nets and predict whole runs of all others.

    python benchmarks/ecnas/run.py --data DIR                        what results/draws.json lacks
    python benchmarks/ecnas/run.py --data DIR --again additive       additive of all draws once more
    python benchmarks/ecnas/run.py --data DIR --draws 2 --out DIR2   a quick run
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import hashlib
import json
import random
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import read_runs
from methods import METHODS, Floats, Names, RunData, RunPrediction, group_runs

from joulecast.figures import Axis, Caption, plot_error_by_budget, save_svg
from joulecast.gp.lognormal import lognormal_interval
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

RUNS, TWO_GPUS = "rtx6000.csv", "two_gpus.csv"
# Settings were chosen on these nets with other draws; no reported draw contains them.
DEVELOPMENT, DEVELOPMENT_SEED = 400, "development"
SIZES = (10, 30, 100, 300)
DRAWS = 20
TRANSFER_SIZES = (3, 5, 10)
# Nets that the model of the first device is fitted to before it is transferred to the second.
FIRST_DEVICE_NETS = 300
SECOND_METHODS = ("additive", "work-linear", "flops-linear", "flops", "constant")
LEVEL = 0.95
PLOTTED = ("additive", "gp, seconds first", "work-linear")


def main() -> None:
    """Run what is missing, then print and write the results."""
    args = parse_arguments()
    if not args.data.is_dir():
        sys.exit(f"no folder {args.data}: give the one that contains rtx6000.csv")
    args.out.mkdir(parents=True, exist_ok=True)
    draws_file = args.out / "draws.json"
    kept = read_draws(draws_file, args.again)
    draws = [kept.get(draw, {"draw": draw}) for draw in range(args.draws)]
    with ProcessPoolExecutor(args.processes) as pool:
        for found in pool.map(partial(complete_draw, args.data), draws):
            kept[found["draw"]] = found
            # A draw that is not completed yet lacks scores; the next run computes them.
            draws_file.write_text(format_json({"draws": [kept[draw] for draw in sorted(kept)]}))
    done = [kept[draw] for draw in range(args.draws)]
    report = summarise(args.data, done)
    (args.out / "report.json").write_text(format_json(report))
    plot_errors(done, args.out / "nets-learnt.svg")
    print(make_tables(report))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}, {TWO_GPUS}")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", choices=["additive", "all"], help="compute these scores anew")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def read_draws(file: Path, again: str | None = None) -> dict[int, Json]:
    """Return the kept draws by number, without scores of methods that are to be computed anew."""
    if again == "all" or not file.exists():
        return {}
    kept = {found["draw"]: found for found in json.loads(file.read_text())["draws"]}
    for found in kept.values():
        for part in ("sizes", "carried"):
            for scores in found.get(part, {}).values():
                for name in [name for name in scores if again and name.startswith(again)]:
                    del scores[name]
    return kept


@cache
def load_runs(path: Path) -> RunData:
    """Return the runs of a file by net, cached in each process."""
    return group_runs(read_runs(path))


# ---------------------------------------------------------------------------------------------
# One device


def split_nets(names: Names) -> tuple[list[str], list[str]]:
    """Return the nets for development, and those that are reported."""
    develop = set(random.Random(DEVELOPMENT_SEED).sample(sorted(names), DEVELOPMENT))
    return sorted(develop), [name for name in sorted(names) if name not in develop]


def draw_nets(names: Names, draw: int, size: int) -> tuple[list[str], list[str]]:
    """Return training nets, which grow with the size, and all others."""
    shuffled = sorted(names)
    random.Random(f"ec-nas {draw}").shuffle(shuffled)
    return shuffled[:size], shuffled[size:]


def complete_draw(data: Path, kept: Json) -> Json:
    """Score the methods that a draw lacks at every size, and the transfer to the second device."""
    run_data, draw = load_runs(data / RUNS), kept["draw"]
    _, names = split_nets(list(run_data.nets))
    sizes: Json = {}
    for size in SIZES:
        learn, test = draw_nets(names, draw, size)
        known = kept.get("sizes", {}).get(str(size), {})
        sizes[str(size)] = {
            method: known.get(method)
            or score_prediction(run_data, test, predict(run_data, learn, test))
            for method, predict in METHODS.items()
        }
    return {"draw": draw, "sizes": sizes, "carried": transfer(data, draw, kept.get("carried", {}))}


def score_prediction(run_data: RunData, test: Names, answer: RunPrediction) -> Json:
    """Return errors in percent, of the mean over repeats and of single runs."""
    predicted_j = np.asarray(answer.energy_j, float)
    repeats = np.array([len(run_data.runs[name]) for name in test], float)
    measured_j = np.array([run_data.mean_energy_j(name) for name in test])
    errors = 100 * (predicted_j / measured_j - 1)
    single = [
        abs(float(predicted_j[at]) / run.energy_j - 1)
        for at, name in enumerate(test)
        for run in run_data.runs[name]
    ]
    score = {
        "nets": len(test),
        "mape": _mean(np.abs(errors)),
        "single_mape": _mean(100 * np.array(single)),
        "bias": _mean(errors),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
    }
    if answer.variance is not None:
        score |= _score_intervals(
            predicted_j, measured_j, np.asarray(answer.variance(repeats), float)
        )
    if answer.train_s is not None:
        seconds = [statistics.median(run.train_s for run in run_data.runs[name]) for name in test]
        score["seconds_mape"] = _mean(100 * np.abs(answer.train_s / np.array(seconds) - 1))
    return {name: round(value, 3) for name, value in score.items()}


def _score_intervals(predicted_j: Floats, measured_j: Floats, variance: Floats) -> dict[str, float]:
    ends = np.array(
        [lognormal_interval(*one, LEVEL) for one in zip(predicted_j, variance, strict=True)]
    )
    inside = (ends[:, 0] <= measured_j) & (measured_j <= ends[:, 1])
    widths = (ends[:, 1] - ends[:, 0]) / predicted_j
    return {"inside": 100 * _mean(inside.astype(float)), "width": 100 * float(np.median(widths))}


def _mean(values: Floats) -> float:
    return float(np.mean(values))


# ---------------------------------------------------------------------------------------------
# From one device to another


@cache
def predict_first_device(data: Path) -> dict[str, float]:
    """Predict the energy of each net of the second file on the first device."""
    run_data = load_runs(data / RUNS)
    asked = sorted(load_runs(data / TWO_GPUS).nets)
    others = [name for name in sorted(run_data.nets) if name not in set(asked)]
    learn = random.Random("ec-nas carried").sample(others, FIRST_DEVICE_NETS)
    predicted_j = METHODS["additive"](run_data, learn, asked).energy_j
    return dict(zip(asked, predicted_j.tolist(), strict=True))


def transfer(data: Path, draw: int, kept: Json) -> Json:
    """Score ways to predict the second device from a few nets that ran there, if not kept."""
    run_data = load_runs(data / TWO_GPUS)
    first = {name: [r for r in runs if "6000" in r.device] for name, runs in run_data.runs.items()}
    second = {name: [r for r in runs if "3060" in r.device] for name, runs in run_data.runs.items()}
    names = sorted(name for name, runs in second.items() if runs and first[name])
    there = RunData(run_data.nets, second, run_data.features)
    measured = {name: first[name][0].energy_j for name in names}
    before = load_runs(data / RUNS).runs
    averaged = {name: statistics.fmean(run.energy_j for run in before[name]) for name in names}
    found: Json = {}
    for size in TRANSFER_SIZES:
        learn, test = draw_nets(names, draw, size)
        scaled = partial(scale, there, learn, test)
        ways: dict[str, Callable[[], RunPrediction]] = {
            "additive learnt on the RTX 6000, scaled": partial(scale_first, data, scaled),
            "one measured run on the RTX 6000, scaled": partial(scaled, measured),
            "mean of four measured runs there, scaled": partial(scaled, averaged),
            **{
                name_alone(method): partial(METHODS[method], there, learn, test)
                for method in SECOND_METHODS
            },
        }
        known = kept.get(str(size), {})
        found[str(size)] = {
            way: known.get(way) or score_prediction(there, test, predict())
            for way, predict in ways.items()
        }
    return found


def name_alone(method: str) -> str:
    """Return the name of a method that is fitted to runs on the second device alone."""
    learnt = " learnt" if method == "additive" else ""
    return f"{method}{learnt} on the RTX 3060 alone"


def scale_first(data: Path, scaled: Callable[[dict[str, float]], RunPrediction]) -> RunPrediction:
    """Predict with one factor on what additive predicts for the first device."""
    return scaled(predict_first_device(data))


def scale(run_data: RunData, learn: Names, test: Names, known: dict[str, float]) -> RunPrediction:
    """Predict with one factor between two devices, from nets that ran on the second."""
    ratios = [np.log(run_data.mean_energy_j(name) / known[name]) for name in learn]
    factor = float(np.exp(np.mean(ratios)))
    return RunPrediction(factor * np.array([known[name] for name in test]))


# ---------------------------------------------------------------------------------------------
# Output


def summarise(data: Path, done: Sequence[Json]) -> Json:
    """Return means and standard deviations over draws, and the variation of repeats."""
    run_data = load_runs(data / RUNS)
    develop, names = split_nets(list(run_data.nets))
    return {
        "measured": "by EC-NAS-Bench (imported)",
        "device": "Quadro RTX 6000; carried to GeForce RTX 3060",
        "data_sha256": {name: _hash(data / name) for name in (RUNS, TWO_GPUS)},
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "nets": {"all": len(run_data.nets), "development": len(develop), "reported": len(names)},
        "repeats": describe_repeats(run_data),
        "draws": len(done),
        "sizes": _average([found["sizes"] for found in done]),
        "carried": _average([found["carried"] for found in done]),
    }


def _average(draws: Sequence[Json]) -> Json:
    """Return the mean and standard deviation over draws of every score."""
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


def describe_repeats(run_data: RunData) -> Json:
    """Return the coefficients of variation of repeated runs in percent."""
    groups = [runs for runs in run_data.runs.values() if len(runs) > 1]
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


def plot_errors(done: Sequence[Json], path: Path) -> None:
    """Plot the error against the number of training nets."""
    lines = {
        method: [
            [(float(size), found["sizes"][str(size)][method]["mape"]) for size in SIZES]
            for found in done
        ]
        for method in PLOTTED
    }
    caption = Caption(
        "Energy of whole training runs (EC-NAS-Bench, RTX 6000)",
        f"line: mean of {len(done)} draws; band: best to worst",
        "imported",
    )
    plot = plot_error_by_budget(lines, Axis("Training networks"), caption)
    save_svg(plot, path)


def make_tables(report: Json) -> str:
    """Return all scores as a table."""
    lines = [f"{report['nets']}, repeats {report['repeats']}, {report['draws']} draws"]
    heads = ("mape", "single_mape", "bias", "p90", "inside", "width", "seconds_mape")
    for part in ("sizes", "carried"):
        for size, methods in report[part].items():
            lines.append(f"\n{size + ' nets':42s}" + "".join(f"{head:>15s}" for head in heads))
            for method, scores in methods.items():
                cells = [scores.get(head) for head in heads]
                shown = [f"{cell[0]:.1f} ± {cell[1]:.1f}" if cell else "" for cell in cells]
                lines.append(f"{method:42s}" + "".join(f"{word:>15s}" for word in shown))
    return "\n".join(lines)


def format_json(report: Json) -> str:
    """Return JSON with one line for each score."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
