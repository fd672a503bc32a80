"""The paper's method, end to end, on simulated devices: nothing here was measured on hardware.

In each world a campaign profiles ``cnn5`` with a fixed number of points, then estimates random nets
that it never saw; the same nets are then run in the world and compared. The same seeds give the
same figures on every machine.

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
# Settings of the estimator were chosen in worlds 100 to 115: none of these.
WORLDS = (1, 2, 3)
TEST_SEED = 2026
FIT_SEED = 7
FIT_NETS = 20
METHODS = {
    "subtractive": "the paper's method, from variants",
    "flops": "FLOPs-proportional, factor from 20 other whole nets",
    "flops_on_variants": "FLOPs-proportional, factor from the same variants",
}

Json = dict[str, Any]


def main() -> None:
    """Run every world, then print and keep what was found."""
    args = parse_arguments()
    worlds = [run_world(seed, args.points, args.nets) for seed in args.worlds]
    report = sum_up(worlds, args)
    if args.out:
        kept = {
            **report,
            "date": datetime.now(UTC).date().isoformat(),
            "commit": find_commit(__file__),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else make_table(report))


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--worlds", type=int, nargs="+", default=list(WORLDS))
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--nets", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser.parse_args()


def run_world(seed: int, points: int, nets: int) -> Json:
    """Profile a simulated device, then compare estimates of unseen nets with what they take."""
    world = make_simulated_device(seed)
    setup = Setup(batch=FAMILIES[FAMILY].batch)
    meter = SimulatedMeter(world)
    clock = MeasureClock(world.now, world.sleep, world.now)
    with (
        make_measurer(SimulatedRuntime(world), meter, run=f"world {seed}", clock=clock) as rig,
        open_store(":memory:") as store,
    ):
        target = Target(make_family(FAMILY), setup)
        done = run_campaign(rig, store, find_estimator("subtractive"), target, points=points)
        profile = store.profile(done.profile_key)
        others = [rig.measure(trial) for trial in draw_trials(FIT_SEED, FIT_NETS, setup)]
        truths = [rig.measure(trial) for trial in draw_trials(TEST_SEED, nets, setup)]
    whole = replace(profile, observations=tuple(others), fits={})
    return {
        "world": seed,
        "points": done.points,
        "device_seconds": done.elapsed_s,
        "nets": [compare(seen, profile, whole) for seen in truths],
    }


def draw_trials(seed: int, count: int, setup: Setup) -> list[Trial]:
    """Random members of the family: every channel count uniform in 1..original."""
    rng = random.Random(seed)
    return [Trial(draw_family(FAMILY, rng.randint), setup) for _ in range(count)]


def compare(seen: Observation, profile: Profile, whole: Profile) -> Json:
    """What each method says about a net, beside what it took."""
    network, setup = seen.trial.network, seen.trial.setup
    answers = {
        "subtractive": estimate_network(profile, network, setup, "subtractive"),
        "flops": estimate_network(whole, network, setup, "flops"),
        "flops_on_variants": estimate_network(profile, network, setup, "flops"),
    }
    row: Json = {"net": network.name, "simulated_j": seen.energy_j}
    for name, answer in answers.items():
        row[name] = {"energy_j": answer.energy_j, "interval_j": list(answer.interval_j)}
    return row


def sum_up(worlds: Sequence[Json], args: argparse.Namespace) -> Json:
    """Errors and coverage over all worlds, and of each."""
    rows = [row for world in worlds for row in world["nets"]]
    return {
        "simulated": True,
        "family": FAMILY,
        "points": args.points,
        "nets": args.nets,
        "worlds": list(args.worlds),
        "seeds": {"test_nets": TEST_SEED, "fit_nets": FIT_SEED},
        "mape_percent": {name: mape(rows, name) for name in METHODS},
        "bias_percent": {name: statistics.fmean(errors(rows, name)) for name in METHODS},
        "coverage95_percent": {name: coverage(rows, name) for name in METHODS},
        "by_world": [
            {**world, "mape_percent": {name: mape(world["nets"], name) for name in METHODS}}
            for world in worlds
        ],
    }


def errors(rows: Sequence[Json], name: str) -> list[float]:
    """Relative errors in percent."""
    return [100 * (row[name]["energy_j"] / row["simulated_j"] - 1) for row in rows]


def mape(rows: Sequence[Json], name: str) -> float:
    """Mean absolute percentage error."""
    return statistics.fmean(abs(error) for error in errors(rows, name))


def coverage(rows: Sequence[Json], name: str) -> float:
    """Share of nets whose energy lies in the 95 % interval, in percent."""
    ends = [(row[name]["interval_j"], row["simulated_j"]) for row in rows]
    return 100 * statistics.fmean(low <= truth <= high for (low, high), truth in ends)


def make_table(report: Json) -> str:
    """Everything at a glance."""
    lines = [
        f"simulated: {report['family']}, {report['points']} points, {report['nets']} unseen nets "
        f"in each of the worlds {report['worlds']}",
        f"{'':52s} {'MAPE %':>8s} {'bias %':>8s} {'in 95 %':>8s}",
    ]
    for name, about in METHODS.items():
        numbers = (report[key][name] for key in ("mape_percent", "bias_percent"))
        texts = " ".join(f"{number:8.1f}" for number in numbers)
        lines.append(f"{about:52s} {texts} {report['coverage95_percent'][name]:7.0f}%")
    for world in report["by_world"]:
        texts = ", ".join(f"{name} {world['mape_percent'][name]:.1f}" for name in METHODS)
        lines.append(f"world {world['world']}: MAPE % {texts}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
