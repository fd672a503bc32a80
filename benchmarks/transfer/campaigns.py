"""Profile simulated devices with few points, with and without another device to start from.

Each source is profiled with 60 points; each target with a few, cold and from the source. Random
networks of the family are then estimated and compared with what they measure on the target.

    python benchmarks/transfer/campaigns.py                 # the table, and results/campaigns.json
    python benchmarks/transfer/campaigns.py --targets 21    # one device
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.features.nets import resolve_name
from joulecast.campaign import run_campaign
from joulecast.estimators import fit_profile
from joulecast.estimators.additive.encode import SourceDevice
from joulecast.estimators.additive.estimator import AdditiveEstimator, FittedAdditive
from joulecast.estimators.base import Target
from joulecast.families import FAMILIES, draw_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Network, Observation, Profile, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

FAMILY, SOURCE_POINTS, POINTS = "cnn5", 60, (10, 15, 30)
SOURCE_OFFSET, TARGETS = 100, (401, 402, 403, 404, 405, 406)
NETWORKS, SEED = 30, 2026


def main() -> None:
    """Run every target, then print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--targets", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes) as pool:
        rows = [row for found in pool.map(run_target, args.targets) for row in found]
    means = [summarise(rows, points, name) for points in POINTS for name in ("cold", "from")]
    report = {
        "simulated": True,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "family": FAMILY,
        "means": means,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "campaigns.json").write_text(json.dumps(report, indent=1) + "\n")
    for row in means:
        print(row)


def run_target(seed: int) -> list[Json]:
    """Profile a target with every number of points, cold and from its source."""
    source = learn_source(seed + SOURCE_OFFSET)
    found = []
    for points in POINTS:
        for name, sources in (("cold", ()), ("from", (source,))):
            profile, tests = profile_device(seed, points, AdditiveEstimator(sources))
            scores = score_estimates(profile, tests)
            found.append({"target": seed, "points": points, "start": name, **scores})
    return found


def learn_source(seed: int) -> SourceDevice:
    """Return what a simulated device has learnt from a campaign."""
    profile, _ = profile_device(seed, SOURCE_POINTS, AdditiveEstimator())
    fitted = fit_profile(profile).fitted
    assert isinstance(fitted, FittedAdditive)
    return fitted.as_source(profile.device.name, profile.key)


def profile_device(
    seed: int, points: int, estimator: AdditiveEstimator
) -> tuple[Profile, list[Observation]]:
    """Return the profile of a device after a campaign, and measurements of random networks."""
    device, setup = make_simulated_device(seed), Setup(batch=FAMILIES[FAMILY].batch)
    clock = MeasureClock(device.now, device.sleep, device.now)
    meter, runtime = SimulatedMeter(device), SimulatedRuntime(device)
    with (
        make_measurer(runtime, meter, run=f"transfer {seed}", clock=clock) as measurer,
        open_store(":memory:") as store,
    ):
        net = resolve_name(FAMILY)
        target = Target(net.network, setup, networks=net.draw_members())
        done = run_campaign(measurer, store, estimator, target, points=points)
        tests = [measurer.measure(Trial(one, setup)) for one in draw_networks()]
        return store.load_profile(done.profile_key), tests


@cache
def draw_networks() -> tuple[Network, ...]:
    """Draw the random networks of the family that are estimated."""
    draw = partial(draw_family, FAMILY, random.Random(SEED).randint)
    return tuple(draw() for _ in range(NETWORKS))


def score_estimates(profile: Profile, tests: Sequence[Observation]) -> Json:
    """Return error, coverage and width of the estimates of measured networks, in percent."""
    networks, setups = [one.trial.network for one in tests], [one.trial.setup for one in tests]
    estimates = fit_profile(profile).estimate(networks, setups, details=False)
    measured_j = np.array([one.energy_j for one in tests])
    energy_j = np.array([one.energy_j for one in estimates])
    low_j, high_j = np.array([one.interval_j for one in estimates]).T
    return {
        "mape": round(float(100 * np.mean(np.abs(energy_j / measured_j - 1))), 2),
        "inside": round(float(100 * np.mean((low_j <= measured_j) & (measured_j <= high_j))), 1),
        "width": round(float(100 * np.median((high_j - low_j) / energy_j)), 1),
    }


def summarise(rows: Sequence[Json], points: int, start: str) -> Json:
    """Return means over the targets."""
    own = [row for row in rows if row["points"] == points and row["start"] == start]
    names = ("mape", "inside", "width")
    means = {name: round(float(np.mean([row[name] for row in own])), 2) for name in names}
    return {"points": points, "start": start, **means}


if __name__ == "__main__":
    main()
