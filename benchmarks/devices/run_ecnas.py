"""Predict runs on an RTX 3060 from those on an RTX 6000 and the data sheets of both.

python benchmarks/devices/run_ecnas.py --data DIR                       # as published
python benchmarks/devices/run_ecnas.py --data DIR --draws 2 --out DIR2  # a quick run
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parents[1] / "ecnas"))

from carried_device import CarriedDevice
from cells import SETUP, SOURCE, STEPS, Run, read_runs
from methods import Names, RunData, group_runs

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.estimator import (
    AdditiveEstimator,
    FittedAdditive,
    RunTotals,
    predict_runs,
)
from joulecast.estimators.additive.roofline import find_power_priors
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Execution, Observation
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

RUNS, TWO_GPUS = "rtx6000.csv", "two_gpus.csv"
KNOWN, UNKNOWN = find_data_sheet("nvidia-quadro-rtx-6000"), find_data_sheet("nvidia-rtx-3060")
DRAWS, NETWORKS, LEVEL = 50, 10, 0.95
# NAS-Bench-101 evaluates three times on 30,000 images each; a forward pass is a third of a step.
STEP_EQUIVALENTS = STEPS + round(3 * 30_000 / SETUP.batch / 3)
# Relative standard deviation of the energy of waiting for a host that is not known.
WAITING_SD_SHARE = 0.5


def main() -> None:
    """Predict with nothing and with ten runs measured there; write and print the results."""
    args = parse_arguments()
    if not args.data.is_dir():
        sys.exit(f"no folder {args.data}: give the one that contains {TWO_GPUS}")
    there = load_target(args.data)
    names, script = sorted(there.runs), learn_known_script(args.data)
    sources = {
        "other networks": fit_source(args.data, tuple(names)),
        "all runs": fit_source(args.data, ()),
    }
    report: Json = {
        "measured": "by EC-NAS-Bench (imported)",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "waiting on the RTX 6000": {
            "s": round(script.waiting_s, 1),
            "w": round(script.waiting_w, 1),
        },
        "nothing measured there": {
            name: score_runs(
                CarriedDevice(fitted, KNOWN, UNKNOWN).fit(), there, names, script.carry()
            )
            for name, fitted in sources.items()
        },
        "rivals": score_rivals(args.data, there, names),
        "ten runs there": [
            {"draw": draw, **score_draw(sources, args.data, there, draw)}
            for draw in range(args.draws)
        ],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ecnas.json").write_text(format_json(report))
    print_report(report)


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}, {TWO_GPUS}")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Devices


@cache
def load_runs(path: Path) -> RunData:
    """Return the runs of a file by network."""
    return group_runs(read_runs(path))


def load_target(data: Path) -> RunData:
    """Return the runs on the RTX 3060."""
    return select_device(load_runs(data / TWO_GPUS), "3060")


def select_device(runs: RunData, mark: str) -> RunData:
    """Return the runs on the device whose name contains a mark."""
    own = {net: [one for one in found if mark in one.device] for net, found in runs.runs.items()}
    return RunData(runs.nets, {net: found for net, found in own.items() if found}, runs.features)


@dataclass(frozen=True)
class Script:
    """What a run of EC-NAS-Bench is besides steps: waiting for the host.

    Attributes:
        waiting_s: How long the card waits.
        waiting_w: What it draws meanwhile.
    """

    waiting_s: float
    waiting_w: float

    @property
    def energy_j(self) -> float:
        """Energy of waiting."""
        return self.waiting_s * self.waiting_w

    def carry(self) -> Script:
        """Return the script on the RTX 3060: idle power scales, hosts are taken to be alike."""
        idle_w = [find_power_priors(sheet).idle_w[0] for sheet in (KNOWN, UNKNOWN)]
        return replace(self, waiting_w=self.waiting_w * idle_w[1] / idle_w[0])


def find_waiting(run: Run) -> float:
    """Return for how long the card neither trained nor evaluated."""
    return run.total_s - STEP_EQUIVALENTS / STEPS * run.train_s


def learn_script(runs: Sequence[Run]) -> Script:
    """Fit the energies of runs to their training time and to the rest of their time."""
    train_s, waiting_s, energy_j = np.array(
        [(run.train_s, find_waiting(run), run.energy_j) for run in runs]
    ).T
    found = least_squares(
        lambda watts: (watts[0] * train_s + watts[1] * waiting_s) / energy_j - 1.0,
        (200.0, 50.0),
        loss="soft_l1",
        f_scale=0.05,
    )
    return Script(float(np.median(waiting_s)), float(found.x[1]))


@cache
def learn_known_script(data: Path) -> Script:
    """Return the script on the RTX 6000."""
    return learn_script([run for found in load_runs(data / RUNS).runs.values() for run in found])


def fit_source(data: Path, without: Names) -> FittedAdditive:
    """Return `additive` fitted to the RTX 6000, without the runs of some networks."""
    runs = load_runs(data / RUNS)
    cells = {one.cell for net in without for one in load_runs(data / TWO_GPUS).runs[net]}
    names = [net for net in sorted(runs.runs) if runs.runs[net][0].cell not in cells]
    script = learn_known_script(data)
    return AdditiveEstimator().fit(observe_runs(runs, names, KNOWN.power_limit_w, script))


def observe_runs(runs: RunData, names: Names, limit_w: float, script: Script) -> list[Observation]:
    """Return what the card did in runs, without waiting for the host."""
    own = [run for name in names for run in runs.runs[name]]
    return [
        replace(
            one,
            trial=replace(one.trial, execution=Execution(steps=STEP_EQUIVALENTS)),
            energy_j=run.energy_j - script.waiting_w * find_waiting(run),
            duration_s=STEP_EQUIVALENTS / STEPS * run.train_s,
            device=replace(one.device, power_mode=f"limit {limit_w:g}W"),
        )
        for one, run in zip(runs.observe(names), own, strict=True)
    ]


# ---------------------------------------------------------------------------------------------
# Scores


def score_runs(fitted: FittedAdditive, there: RunData, names: Names, script: Script) -> Json:
    """Return scores of predicted runs, and every prediction."""
    nets = [there.nets[net] for net in names]
    totals = predict_runs(fitted, nets, SETUP, STEP_EQUIVALENTS, SOURCE)
    sd_j = np.hypot(totals.energy_sd_j, WAITING_SD_SHARE * script.energy_j)
    energy_j = totals.energy_j + script.energy_j
    return score_totals(replace(totals, energy_j=energy_j, energy_sd_j=sd_j), there, names)


def score_totals(totals: RunTotals, there: RunData, names: Names) -> Json:
    """Return errors in percent, coverage and width, and every prediction."""
    measured_j = np.array([there.mean_energy_j(net) for net in names])
    busy = STEP_EQUIVALENTS / STEPS
    measured_s = np.array([busy * there.runs[net][0].train_s for net in names])
    pairs = zip(totals.energy_j, totals.variance(), strict=True)
    low_j, high_j = np.array([lognormal_interval(*one, LEVEL) for one in pairs]).T
    inside = (low_j <= measured_j) & (measured_j <= high_j)
    return {
        **score_energies(totals.energy_j, measured_j),
        "seconds_mape": round(100 * float(np.mean(np.abs(totals.duration_s / measured_s - 1))), 2),
        "seconds_bias": round(100 * float(np.mean(totals.duration_s / measured_s - 1)), 2),
        "inside": round(100 * float(inside.mean()), 1),
        "width": round(100 * float(np.median((high_j - low_j) / totals.energy_j)), 1),
        "runs": [
            {
                "net": net[:8],
                "measured_j": round(float(truth)),
                "energy_j": round(float(mean)),
                "interval_j": [round(float(low)), round(float(high))],
            }
            for net, truth, mean, low, high in zip(
                names, measured_j, totals.energy_j, low_j, high_j, strict=True
            )
        ],
    }


def score_energies(energy_j: Any, measured_j: Any) -> Json:
    """Return the errors of energies in percent."""
    errors = 100 * (energy_j / measured_j - 1)
    return {
        "mape": round(float(np.mean(np.abs(errors))), 2),
        "median": round(float(np.median(np.abs(errors))), 2),
        "bias": round(float(np.mean(errors)), 2),
    }


def score_rivals(data: Path, there: RunData, names: Names) -> Json:
    """Score what a user can do with the network's own runs on the RTX 6000 and two data sheets."""
    here = load_runs(data / TWO_GPUS)
    known = select_device(here, "6000")
    energy_j = np.array([known.mean_energy_j(net) for net in names])
    total_s = np.array([np.mean([run.total_s for run in known.runs[net]]) for net in names])
    measured_j = np.array([there.mean_energy_j(net) for net in names])
    peaks = KNOWN.find_peak("fp32") / UNKNOWN.find_peak("tf32")
    bandwidths = KNOWN.bytes_per_s / UNKNOWN.bytes_per_s
    limits = UNKNOWN.power_limit_w / KNOWN.power_limit_w
    rivals = {
        "equal energy": energy_j,
        "ratio of peaks": peaks * energy_j,
        "ratio of bandwidths": bandwidths * energy_j,
        "ratio of power limits": limits * energy_j,
        "ratio of peaks and power limits": peaks * limits * energy_j,
        "ratio of bandwidths and power limits": bandwidths * limits * energy_j,
        "time x ratio of peaks x TDP": peaks * total_s * UNKNOWN.power_limit_w,
        "time x ratio of bandwidths x TDP": bandwidths * total_s * UNKNOWN.power_limit_w,
    }
    return {name: score_energies(found, measured_j) for name, found in rivals.items()}


def score_draw(
    sources: dict[str, FittedAdditive], data: Path, there: RunData, draw: int
) -> dict[str, Any]:
    """Score all methods on one draw of ten networks that ran there."""
    names = sorted(there.runs)
    # The draws of benchmarks/transfer.
    random.Random(f"transfer report {draw}").shuffle(names)
    learn, test = names[:NETWORKS], names[NETWORKS:]
    waiting = [find_waiting(run) for net in learn for run in there.runs[net]]
    script = replace(learn_known_script(data).carry(), waiting_s=float(np.median(waiting)))
    observations = observe_runs(there, learn, UNKNOWN.power_limit_w, script)
    found: Json = {"one factor": score_factor(data, there, learn, test)}
    fits = {"ten runs alone": AdditiveEstimator().fit(observations)}
    for name, fitted in sources.items():
        fits[name] = CarriedDevice(fitted, KNOWN, UNKNOWN).fit(observations)
    for name, fitted in fits.items():
        scores = score_runs(fitted, there, test, script)
        del scores["runs"]
        found[name] = scores
    return found


def score_factor(data: Path, there: RunData, learn: Names, test: Names) -> Json:
    """Score one factor on the networks' own runs on the RTX 6000."""
    known = select_device(load_runs(data / TWO_GPUS), "6000")
    before, after = (
        np.array([one.mean_energy_j(net) for net in [*learn, *test]]) for one in (known, there)
    )
    factor = np.exp(np.log(after / before)[: len(learn)].mean())
    return score_energies(factor * before[len(learn) :], after[len(learn) :])


# ---------------------------------------------------------------------------------------------
# Report


def print_report(report: Json) -> None:
    """Print the tables of the page."""
    for name, scores in report["nothing measured there"].items():
        shown = {key: value for key, value in scores.items() if key != "runs"}
        print(f"nothing measured there, source: {name}: {shown}")
    for name, scores in report["rivals"].items():
        print(f"{name}: {scores}")
    for name, scores in summarise_draws(report["ten runs there"]).items():
        print(f"ten runs there: {name}: {scores}")


def summarise_draws(rows: Sequence[Json]) -> Json:
    """Return means over draws, with the standard deviation of the MAPE."""
    found = {}
    for name in [key for key in rows[0] if key != "draw"]:
        own = [row[name] for row in rows]
        means = {key: round(float(np.mean([row[key] for row in own])), 2) for key in own[0]}
        found[name] = {**means, "sd": round(float(np.std([row["mape"] for row in own])), 2)}
    return found


def format_json(report: Json) -> str:
    """Return JSON with one line for each prediction and score."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


if __name__ == "__main__":
    main()
