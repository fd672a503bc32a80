"""Estimate networks on an H200 as if it had never been measured, then with a little measured.

python benchmarks/devices/run_h200.py --data FOLDER                    # FOLDER: NeuSight's tables
python benchmarks/devices/run_h200.py --data FOLDER --shared FILE      # keep the shared model there
python benchmarks/devices/run_h200.py --data FOLDER --fresh            # networks of the fourth test
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from h200_networks import (
    MeasuredStep,
    read_anchors,
    read_atlas,
    read_fresh_steps,
    read_steps,
)
from kernel_choice import AnyStep
from neusight_data import read_kernels
from neusight_data import read_steps as read_neusight_steps
from published_steps import read_published_steps
from shared_devices import H200, collect_devices

from joulecast.catalogue import find_data_sheet
from joulecast.estimators import fit_profile
from joulecast.estimators.additive.data_sheets import (
    SharedModel,
    fit_shared_model,
)
from joulecast.estimators.additive.estimator import FittedAdditive, start_from_sheet
from joulecast.estimators.additive.host_time import fit_host_time
from joulecast.estimators.additive.predict import AdditiveModel
from joulecast.estimators.additive.roofline import find_power_priors
from joulecast.files import read_profile
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import network_work
from joulecast.records import DataSheet, Observation
from joulecast.store.shipped import SHIPPED
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

LEVEL, ATLAS_S = 0.95, 60.0
ANCHORS, FRESH_ANCHORS = "h200-anchors.jsonl", "h200-anchors-fourth.jsonl"
"""Anchors of one card, and of the card that the fourth test's networks were measured on."""
TOGETHER = 20
SHEET = find_data_sheet(H200)


def main() -> None:
    """Estimate every network at every stage; write and print the results."""
    args = parse_arguments()
    steps = read_fresh_steps() if args.fresh else read_steps()
    known = list_stages(read_anchors(FRESH_ANCHORS if args.fresh else ANCHORS))
    shared = load_shared(args.data, args.shared)
    stages: Json = {}
    for name, observations in known.items():
        fitted = start_from_sheet(SHEET, observations, shared)
        stages[name] = estimate_steps(fitted, steps)
        print(describe(name, stages[name]), flush=True)
    shipped = fit_profile(read_profile(SHIPPED / f"{H200}.json")).fitted
    assert isinstance(shipped, FittedAdditive)
    stages["shipped profile"] = estimate_steps(shipped, steps)
    stages.update(estimate_rivals(steps))
    report = {
        "measured": "on H200s, by Joulecast",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "observations": {name: len(found) for name, found in known.items()},
        "scores": {name: score_groups(rows) for name, rows in stages.items()},
        "estimates": stages,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    name = "h200-fresh.json" if args.fresh else "h200.json"
    (args.out / name).write_text(format_json(report))
    for name, rows in stages.items():
        print(describe(name, rows))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="folder of NeuSight's tables")
    parser.add_argument("--shared", type=Path, help="file to keep the shared model in")
    parser.add_argument("--fresh", action="store_true", help="estimate the fourth test's networks")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# What is known


def list_stages(anchors: Sequence[Observation]) -> dict[str, Sequence[Observation]]:
    """Return what was observed on the H200 at each stage."""
    left_s = ATLAS_S - sum(one.cost_s for one in anchors)
    return {
        "data sheet": [],
        "anchors": [replace(one, energy_j=None) for one in anchors if one.trial.network.layers],
        "anchors with energy": anchors,
        "60 s of atlas": read_atlas(ATLAS_S),
        "60 s, of which anchors": [*anchors, *read_atlas(left_s)],
        "anchors and 60 s of atlas": [*anchors, *read_atlas(ATLAS_S)],
    }


@dataclass(frozen=True)
class BlindModel(SharedModel):
    """A shared model to which neither powers nor durations of an H200 are known."""

    def start_model(self, sheet: DataSheet) -> AdditiveModel:
        """Return the model of a device that was never measured."""
        model, priors = super().start_model(sheet), find_power_priors(sheet, [H200])
        assert model.encoder.hardware is not None
        powers_w = tuple(median_w for median_w, _ in priors.coefficients)
        hardware = replace(model.encoder.hardware, powers_w=powers_w)
        encoder = replace(model.encoder, hardware=hardware)
        return replace(model, encoder=encoder, idle_w=priors.idle_w[0])


def load_shared(data: Path, path: Path | None) -> BlindModel:
    """Return the shared model of all GPUs but the H200, fitted unless a file has it."""
    if path is not None and path.exists():
        found = SharedModel.from_dict(json.loads(path.read_text()))
    else:
        known: list[AnyStep] = [*read_neusight_steps(data), *read_published_steps()]
        devices = collect_devices(read_kernels(data), known)
        nothing = np.zeros(0)
        host_time = fit_host_time([], nothing, nothing)
        found = fit_shared_model(devices, devices, host_time, "NeuSight, MIT licence")
        if path is not None:
            path.write_text(json.dumps(found.to_dict()))
    return BlindModel(**vars(found))


# ---------------------------------------------------------------------------------------------
# Estimates


def estimate_steps(fitted: FittedAdditive, steps: Sequence[MeasuredStep]) -> list[Json]:
    """Return the estimate of every network beside its measurement."""
    rows = []
    for start in range(0, len(steps), TOGETHER):
        some = steps[start : start + TOGETHER]
        found = fitted.predict([one.network for one in some], [one.setup for one in some])
        for at, one in enumerate(some):
            mean_j, sd_j = float(found.energy_j[at]), float(found.energy_sd_j[at])
            interval_j = lognormal_interval(mean_j, sd_j**2, LEVEL)
            rows.append(make_row(one, mean_j, float(found.duration_s[at]), interval_j))
    return rows


def estimate_rivals(steps: Sequence[MeasuredStep]) -> dict[str, list[Json]]:
    """Return what FLOPs, peaks and the power limit alone suggest."""
    found: dict[str, list[Json]] = {}
    for share in (1.0, 0.5):
        name = f"FLOPs over {share:g} of the peak x power limit"
        found[name] = []
        for one in steps:
            peak = share * SHEET.find_peak(one.setup.precision)
            seconds = network_work(one.network, one.setup).total.flops / peak
            found[name].append(make_row(one, seconds * SHEET.power_limit_w, seconds))
    return found


def make_row(
    step: MeasuredStep, energy_j: float, duration_s: float, interval_j: Sequence[float] = ()
) -> Json:
    """Return an estimate as JSON, rounded."""
    values = {
        "measured_j": step.energy_j,
        "energy_j": energy_j,
        "measured_s": step.duration_s,
        "duration_s": duration_s,
    }
    rounded: Json = {name: float(f"{value:.5g}") for name, value in values.items()}
    if interval_j:
        rounded["interval_j"] = [float(f"{bound:.5g}") for bound in interval_j]
    return {"test": step.test, "name": step.name, "fills": step.fills_card, **rounded}


# ---------------------------------------------------------------------------------------------
# Scores


def score_groups(rows: Sequence[Json]) -> Json:
    """Return scores of all networks and of groups of them."""
    groups = {
        "all": rows,
        "fill the card": [row for row in rows if row["fills"]],
        "wait for the host": [row for row in rows if not row["fills"]],
        "anywhere": [row for row in rows if row["test"] == "anywhere"],
        "families": [row for row in rows if row["test"] != "anywhere"],
    }
    return {name: score_rows(own) for name, own in groups.items() if own}


def score_rows(rows: Sequence[Json]) -> Json:
    """Return errors of joules and seconds in percent, coverage and width."""

    def take(name: str) -> Any:
        return np.array([row[name] for row in rows])

    errors = 100 * (take("energy_j") / take("measured_j") - 1)
    seconds = 100 * (take("duration_s") / take("measured_s") - 1)
    score = {
        "n": len(rows),
        "mape": float(np.mean(np.abs(errors))),
        "median": float(np.median(np.abs(errors))),
        "bias": float(np.mean(errors)),
        "seconds_mape": float(np.mean(np.abs(seconds))),
        "seconds_bias": float(np.mean(seconds)),
    }
    if "interval_j" in rows[0]:
        low_j, high_j = take("interval_j").T
        measured_j = take("measured_j")
        score["inside"] = float(100 * np.mean((low_j <= measured_j) & (measured_j <= high_j)))
        score["width"] = float(np.median(100 * (high_j - low_j) / take("energy_j")))
    return {name: round(value, 1) for name, value in score.items()}


def describe(name: str, rows: Sequence[Json]) -> str:
    """Return the scores of a stage in a few lines."""
    scores = score_groups(rows)
    return "\n".join([name, *(f"   {group}: {own}" for group, own in scores.items())])


def format_json(report: Json) -> str:
    """Return JSON with one line for each estimate and score."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda found: " ".join(found.group().split()), text) + "\n"


if __name__ == "__main__":
    main()
