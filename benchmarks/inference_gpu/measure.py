"""Measure the networks of the test on a GPU; resumes.

python measure.py OUT.jsonl [--until SECONDS]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from test_networks import list_pace_trials, list_trials

from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.records import Observation


def main() -> None:
    """Measure every trial that the file does not contain yet, and the pace of the host between."""
    options = parse_arguments()
    started_s = time.monotonic()
    known = read_keys(options.out)
    with open_measurer(MeasureOptions(on=options.on, meter=options.meter)) as measurer:

        def store(observation: Observation) -> None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(observation.to_dict()) + "\n")

        for number, trial in enumerate(list_trials()):
            if time.monotonic() - started_s > options.until:
                break
            if trial.key in known:
                continue
            if number % 18 == 0:
                for pace in list_pace_trials():
                    store(measurer.time(pace))
            observation = measurer.measure(trial)
            store(observation)
            name = trial.network.name.partition(":")[0]
            print(f"{name} {trial.setup.precision} {trial.mode}: {observation.energy_j:.4g} J, "
                  f"{observation.duration_s:.4g} s", flush=True)  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--until", type=float, default=500.0)
    return parser.parse_args()


def read_keys(path: Path) -> set[str]:
    """Return the keys of the measured trials."""
    if not path.exists():
        return set()
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [Observation.from_dict(json.loads(line)) for line in lines]
    return {one.trial.key for one in found if one.energy_j}


if __name__ == "__main__":
    main()
