"""Compare estimates with the measured networks of the test.

python predict.py results/truth.jsonl.gz [--profile FILE] [--out results.json]
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence

from baselines import RIVALS, LayerRegressions
from error_table import Row, parse_arguments, write_tables

from joulecast.features.profiles import load_profile
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
    write_tables(rows, "setup", options.out)


def make_rows(method: str, fitted: FittedProfile, truth: Sequence[Observation]) -> list[Row]:
    """Return one row for each measured network."""
    rows = []
    for one in truth:
        (estimate,) = fitted.estimate([one.trial.network], one.trial.setup, details=False)
        low_j, high_j = estimate.interval_j
        is_inside = low_j <= (one.energy_j or 0.0) <= high_j
        row = make_row(method, one, estimate.energy_j)
        rows.append({**row, "duration_s": estimate.duration_s, "is_inside": is_inside})
    return rows


def make_row(method: str, one: Observation, energy_j: float) -> Row:
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


if __name__ == "__main__":
    main()
