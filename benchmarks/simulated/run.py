"""Run the paper's method end to end on simulated devices; nothing is measured on hardware.

On each device a campaign profiles ``cnn5`` with a fixed number of points, then estimates held-out
random nets, which are measured on the same device. Equal seeds give equal figures on every machine.

    python benchmarks/simulated/run.py            a table
    python benchmarks/simulated/run.py --json     JSON on stdout
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.campaign import run_campaign
from joulecast.estimators import estimate_network, find_estimator
from joulecast.estimators.base import Target
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.measurer import MeasureClock, make_measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Observation, Profile, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

FAMILY = "cnn5"
# Settings of the estimator were chosen on devices 100 to 115, none of these.
DEVICE_SEEDS = (1, 2, 3)
TEST_SEED = 2026
FIT_SEED = 7
FIT_NETS = 20
METHODS = {
    "subtractive": "the paper's method, from variants",
    "flops": "proportional to FLOPs, factor from 20 other whole nets",
    "flops_on_variants": "proportional to FLOPs, factor from the same variants",
}

Json = dict[str, Any]


def main() -> None:
    """Run every device, then print and write the results."""
    args = parse_arguments()
    devices = [run_device(seed, args.points, args.nets) for seed in args.seeds]
    report = summarise(devices, args)
    if args.out:
        dated = {
            **report,
            "date": datetime.now(UTC).date().isoformat(),
            "commit": find_commit(__file__),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(dated, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(DEVICE_SEEDS))
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--nets", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser.parse_args()


def run_device(seed: int, points: int, nets: int) -> Json:
    """Profile a simulated device, then compare estimates of held-out nets with measurements."""
    device = make_simulated_device(seed)
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    meter = SimulatedMeter(device)
    clock = MeasureClock(device.now, device.sleep, device.now)
    with (
        make_measurer(
            SimulatedRuntime(device), meter, run=f"world {seed}", clock=clock
        ) as measurer,
        open_store(":memory:") as store,
    ):
        target = Target(make_family(FAMILY), setup)
        done = run_campaign(measurer, store, find_estimator("subtractive"), target, points=points)
        profile = store.load_profile(done.profile_key)
        others = [measurer.measure(trial) for trial in draw_trials(FIT_SEED, FIT_NETS, setup)]
        test_observations = [
            measurer.measure(trial) for trial in draw_trials(TEST_SEED, nets, setup)
        ]
    whole = replace(profile, observations=tuple(others), fits={})
    return {
        "world": seed,
        "points": done.points,
        "device_seconds": done.elapsed_s,
        "nets": [compare(observation, profile, whole) for observation in test_observations],
    }


def draw_trials(seed: int, count: int, setup: Setup) -> list[Trial]:
    """Draw random nets of the family: every channel count is uniform in 1..original."""
    rng = random.Random(seed)
    return [Trial(draw_family(FAMILY, rng.randint), setup) for _ in range(count)]


def compare(observation: Observation, profile: Profile, whole: Profile) -> Json:
    """Return each method's estimate of a net with its measured energy."""
    network, setup = observation.trial.network, observation.trial.setup
    estimates = {
        "subtractive": estimate_network(profile, network, setup, "subtractive"),
        "flops": estimate_network(whole, network, setup, "flops"),
        "flops_on_variants": estimate_network(profile, network, setup, "flops"),
    }
    row: Json = {"net": network.name, "simulated_j": observation.energy_j}
    for name, estimate in estimates.items():
        row[name] = {"energy_j": estimate.energy_j, "interval_j": list(estimate.interval_j)}
    return row


def summarise(devices: Sequence[Json], args: argparse.Namespace) -> Json:
    """Return errors and coverage over all devices, and of each."""
    rows = [row for device in devices for row in device["nets"]]
    return {
        "simulated": True,
        "family": FAMILY,
        "points": args.points,
        "nets": args.nets,
        "worlds": list(args.seeds),
        "seeds": {"test_nets": TEST_SEED, "fit_nets": FIT_SEED},
        "mape_percent": {name: mape(rows, name) for name in METHODS},
        "bias_percent": {name: statistics.fmean(errors(rows, name)) for name in METHODS},
        "coverage95_percent": {name: coverage(rows, name) for name in METHODS},
        "by_world": [
            {**device, "mape_percent": {name: mape(device["nets"], name) for name in METHODS}}
            for device in devices
        ],
    }


def errors(rows: Sequence[Json], name: str) -> list[float]:
    """Return relative errors in percent."""
    return [100 * (row[name]["energy_j"] / row["simulated_j"] - 1) for row in rows]


def mape(rows: Sequence[Json], name: str) -> float:
    """Return the mean absolute percentage error."""
    return statistics.fmean(abs(error) for error in errors(rows, name))


def coverage(rows: Sequence[Json], name: str) -> float:
    """Return the coverage of the 95 % interval in percent."""
    ends = [(row[name]["interval_j"], row["simulated_j"]) for row in rows]
    return 100 * statistics.fmean(low <= energy_j <= high for (low, high), energy_j in ends)


def make_table(report: Json) -> str:
    """Return the results as a table."""
    lines = [
        f"simulated: {report['family']}, {report['points']} points, {report['nets']} held-out nets "
        f"on each of the devices {report['worlds']}",
        f"{'':56s} {'MAPE %':>8s} {'bias %':>8s} {'coverage':>8s}",
    ]
    for name, about in METHODS.items():
        numbers = (report[key][name] for key in ("mape_percent", "bias_percent"))
        texts = " ".join(f"{number:8.1f}" for number in numbers)
        lines.append(f"{about:56s} {texts} {report['coverage95_percent'][name]:7.0f}%")
    for device in report["by_world"]:
        texts = ", ".join(f"{name} {device['mape_percent'][name]:.1f}" for name in METHODS)
        lines.append(f"device {device['world']}: MAPE % {texts}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
