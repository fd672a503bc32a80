"""Compare estimates with the measured networks of the test.

python predict.py results/truth.jsonl.gz [--profile FILE] [--out results.json]
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from baselines import RIVALS, LayerRegressions

from joulecast.api.profiles import load_profile
from joulecast.estimators import fit_profile
from joulecast.estimators.fitted_profile import FittedProfile
from joulecast.records import Observation


def main() -> None:
    """Print and write the tables."""
    options = parse_arguments()
    opened = gzip.open if options.truth.suffix == ".gz" else open
    with opened(options.truth, "rt", encoding="utf-8") as file:
        lines = file.readlines()
    found = [Observation.from_dict(json.loads(line)) for line in lines]
    truth = [one for one in found if one.energy_j]
    pace = [one for one in found if not one.energy_j]
    profile = load_profile(options.profile)
    shipped = fit_profile(profile)
    estimator = shipped.estimator
    own = estimator.fit([*profile.observations, *pace], shipped.fitted)
    rivals = LayerRegressions(profile.observations)
    rows = make_rows("shipped profile", shipped, truth)
    rows += make_rows("with the host's pace", FittedProfile(profile, estimator, own), truth)
    for name in RIVALS:
        rows += [
            make_row(name, one, rivals.predict(name, one.trial.network, one.trial.setup))
            for one in truth
        ]
    summary = summarise(rows)
    for line in summary:
        print(line)
    if options.out:
        options.out.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("truth", type=Path)
    parser.add_argument("--profile", default="nvidia-h200")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def make_rows(method: str, fitted: FittedProfile, truth: Sequence[Observation]) -> list[dict]:
    """Return one row for each measured network."""
    rows = []
    for one in truth:
        (estimate,) = fitted.estimate([one.trial.network], one.trial.setup, details=False)
        low_j, high_j = estimate.interval_j
        is_inside = low_j <= one.energy_j <= high_j
        row = make_row(method, one, estimate.energy_j)
        rows.append({**row, "duration_s": estimate.duration_s, "is_inside": is_inside})
    return rows


def make_row(method: str, one: Observation, energy_j: float) -> dict:
    """Return an estimate beside what was measured."""
    trial = one.trial
    return {
        "method": method,
        "network": trial.network.name,
        "setup": f"{trial.setup.precision} batch {trial.setup.batch}",
        "mode": trial.mode,
        "energy_j": energy_j,
        "measured_j": one.energy_j,
        "measured_s": one.duration_s,
    }


def summarise(rows: Sequence[dict]) -> list[dict]:
    """Return mean absolute errors by method, mode and setup."""
    found = []
    keys = sorted({(row["method"], row["mode"], setup) for row in rows
                   for setup in ("all", row["setup"])})  # fmt: skip
    for method, mode, setup in keys:
        own = [
            row for row in rows
            if (row["method"], row["mode"]) == (method, mode) and setup in ("all", row["setup"])
        ]  # fmt: skip
        errors = np.array([100.0 * (row["energy_j"] / row["measured_j"] - 1.0) for row in own])
        line = {"method": method, "mode": mode, "setup": setup, "n": len(own)}
        line["mape_percent"] = round(float(np.abs(errors).mean()), 1)
        line["median_percent"] = round(float(np.median(np.abs(errors))), 1)
        line["worst_percent"] = round(float(errors[np.abs(errors).argmax()]), 1)
        if "is_inside" in own[0]:
            inside = np.mean([row["is_inside"] for row in own])
            line["inside_percent"] = round(100.0 * float(inside), 1)
            slow = [row["duration_s"] / row["measured_s"] - 1.0 for row in own]
            line["duration_mape_percent"] = round(100.0 * float(np.abs(slow).mean()), 1)
        found.append(line)
    return found


if __name__ == "__main__":
    main()
