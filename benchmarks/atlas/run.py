"""Measure an atlas: isolated layers and blocks of a population of networks, in order of usefulness.

    python benchmarks/atlas/run.py --on cuda:0 --seconds 550 --store DIR/atlas.sqlite
    python benchmarks/atlas/run.py --store DIR/atlas.sqlite --pack results/observations.json.gz

Every observation is stored as soon as it is made; the same command resumes. A trial that the device
refuses is noted beside the store and not tried again. After a CUDA error nothing more can be
measured in the process: it ends with exit code 3, to be started again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.atlas.device_scale import assume_scale
from joulecast.atlas.population import draw_population
from joulecast.atlas.trials import AtlasTrial, list_trials
from joulecast.campaign import find_profile_key
from joulecast.errors import MeasurementError, NetError
from joulecast.measurer import Measurer
from joulecast.records import Observation
from joulecast.store import Store, open_store

SEED, NETWORKS = 20261116, 300
CUDA_ERROR_CODE = 3


def main() -> None:
    """Measure, or pack what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--on", default="cuda:0", help="device to measure on")
    parser.add_argument("--seconds", type=float, default=550.0, help="stop after this time")
    parser.add_argument("--store", required=True, help="store of the observations")
    parser.add_argument("--pack", help="write all observations of the store to this .json.gz")
    args = parser.parse_args()
    # Without the shipped profile: an atlas stands alone.
    with (
        tempfile.TemporaryDirectory() as nothing,
        open_store(args.store, shipped=Path(nothing)) as store,
    ):
        if args.pack:
            pack(store, Path(args.pack))
        else:
            measure(store, args.on, args.seconds, Path(f"{args.store}.refused"))


def measure(store: Store, on: str, seconds: float, refused: Path) -> None:
    """Measure trials in their order until the time is spent, then print a table."""
    started_s = time.monotonic()
    with open_measurer(MeasureOptions(on=on, rounds=1)) as measurer:
        key, device = find_profile_key(measurer), measurer.runtime.device
        seen = store.load_observations(key)
        scale = assume_scale(on.startswith("cuda"), device.memory_bytes)
        population = draw_population(SEED, NETWORKS, scale)
        skipped = set(refused.read_text().split()) if refused.exists() else set()
        trials = [
            one
            for one in list_trials(population, scale, measurer.runtime.modes, seen)
            if one.trial.key not in skipped
        ]
        print(f"{len(seen)} observations, {len(trials)} trials left, {device.name} {device.unit}")
        counts: Counter[tuple[str, str]] = Counter()
        for number, one in enumerate(trials):
            if time.monotonic() - started_s > seconds:
                break
            counts[one.label, measure_one(store, measurer, one, refused)] += 1
            if number % 100 == 99:
                store.add_observation(measurer.measure_idle())
                left_s = seconds - (time.monotonic() - started_s)
                print(f"{number + 1} trials, {left_s:.0f} s left", flush=True)
        store.add_observation(measurer.measure_idle())
    print(f"{sum(counts.values())} trials in {time.monotonic() - started_s:.0f} s")
    for (label, outcome), count in sorted(counts.items()):
        print(f"{count:5}  {outcome:8}  {label}")


def measure_one(store: Store, measurer: Measurer, one: AtlasTrial, refused: Path) -> str:
    """Measure and store a trial; return ``energy``, ``time`` or ``refused``."""
    try:
        observation = (measurer.measure if one.with_energy else measurer.time)(one.trial)
    except (MeasurementError, NetError, RuntimeError) as error:
        with refused.open("a") as file:
            print(one.trial.key, file=file)
        print(f"refused: {one.label}: {str(error)[:160]}", flush=True)
        if "CUDA error" in str(error):
            os._exit(CUDA_ERROR_CODE)
        return "refused"
    store.add_observation(observation)
    return "energy" if one.with_energy else "time"


def pack(store: Store, path: Path) -> None:
    """Write every observation of the store to one compressed file."""
    observations: list[Observation] = [
        one for profile in store.list_profiles() for one in store.load_observations(profile.key)
    ]
    text = json.dumps([one.to_dict() for one in observations], separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(observations)} observations, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
