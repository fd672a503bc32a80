"""Switch one deviation from the paper at a time, and see what it does to error and device time.

    python benchmarks/faithful/run.py simulated       campaigns on simulated devices
    python benchmarks/faithful/run.py kept            fits to kept measurements of an H200
    python benchmarks/faithful/run.py tables          tables of results/*.json

``simulated`` runs a whole campaign for every arm: ``subtractive``, ``subtractive`` with one
deviation as in the paper, ``ampere``, and ``ampere`` with one deviation as ours. Each run is
written at once, and the same command resumes. ``kept`` refits observations of earlier campaigns,
which shows the deviations of fitting and adding up, but not those of choosing points.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from joulecast.campaign import run_campaign
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Target
from joulecast.estimators.subtractive.options import DEVIATIONS, PAPER_BATCHES
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.measurer import MeasureClock, Measurer, make_measurer
from joulecast.measurer.windows import MeasureLimits
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Observation, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import make_simulated_device
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ACCURACY = HERE.parent / "accuracy"
OURS, PAPER = "subtractive", "ampere"
# Settings of subtractive were chosen on devices 100 to 115, none of these.
DEVICE_SEEDS = (1, 2, 3, 4)
SIMULATED_FAMILIES = ("cnn5", "transformer")
TEST_SEED, TEST_NETS = 2026, 30
# A campaign ends here at the latest, whatever its own rule says. The paper's method measures one
# curve after the other: ended early, it would leave whole curves without a point.
MOST_POINTS = {OURS: 80, PAPER: 200}
# 500 batches are a choice of the measurement, and the last deviation.
BATCHES = "batches"
ROUNDS = 3
# Deviations that a refit of kept observations shows.
FIT_DEVIATIONS = (
    "roots",
    "lengths",
    "priors",
    "signal",
    "noise",
    "carried",
    "blend",
    "extrapolation",
    "updates",
)
STOP_RULES = {"sd": OURS, "variance": f"{OURS}:stop"}


def main() -> None:
    """Run what was asked for."""
    args = parse_arguments()
    if args.what == "simulated":
        run_simulated(args.seeds, args.families, args.out)
    elif args.what == "kept":
        run_kept(args.out)
    print(make_tables(args.out))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("simulated", "kept", "tables"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(DEVICE_SEEDS))
    parser.add_argument("--families", nargs="+", default=list(SIMULATED_FAMILIES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# Whole campaigns on simulated devices


def list_arms() -> list[tuple[str, str]]:
    """Return pairs of a method and the deviation that is switched in it, or an empty text."""
    names = ("", *DEVIATIONS, BATCHES)
    return [(base, name) for base in (OURS, PAPER) for name in names]


def make_arm(base: str, changed: str) -> tuple[Estimator, bool]:
    """Return the estimator of an arm, and whether a measurement spans 500 batches."""
    has_batches = (base == PAPER) != (changed == BATCHES)
    name = base if changed in ("", BATCHES) else f"{base}:{changed}"
    return find_estimator(name), has_batches


def run_simulated(seeds: Sequence[int], families: Sequence[str], out: Path) -> None:
    """Run every arm on every device that is not in the file yet."""
    path = out / "simulated.json"
    runs: list[Json] = json.loads(path.read_text())["runs"] if path.exists() else []
    done = {(run["family"], run["device"], run["base"], run["changed"]) for run in runs}
    out.mkdir(parents=True, exist_ok=True)
    for family, seed in itertools.product(families, seeds):
        for base, changed in list_arms():
            if (family, seed, base, changed) not in done:
                runs.append(run_arm(family, seed, base, changed))
                write_json(path, {"simulated": True, "runs": runs})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)


def run_arm(family: str, seed: int, base: str, changed: str) -> Json:
    """Run one campaign and score its fit on random networks."""
    estimator, has_batches = make_arm(base, changed)
    setup = Setup(batch=FAMILIES[family].batch)
    target = Target(make_family(family), setup, acquisition="energy")
    started_s = time.process_time()
    with make_simulated_measurer(seed, has_batches) as measurer, open_store(":memory:") as store:
        done = run_campaign(measurer, store, estimator, target, points=MOST_POINTS[base])
        observations = store.load_observations(done.profile_key)
    errors = score(estimator, observations, measure_test_nets(family, seed))
    return {
        "family": family,
        "device": seed,
        "base": base,
        "changed": changed,
        "mape_percent": round(statistics.fmean(map(abs, errors)), 3),
        "bias_percent": round(statistics.fmean(errors), 3),
        "points": done.points,
        "device_seconds": round(sum(one.cost_s for one in observations), 1),
        "stopped": done.stopped,
        "fitting_seconds": round(time.process_time() - started_s, 1),
    }


def make_simulated_measurer(seed: int, has_batches: bool) -> Measurer:
    """Return a measurer of a new simulated device."""
    device = make_simulated_device(seed)
    return make_measurer(
        SimulatedRuntime(device),
        SimulatedMeter(device),
        rounds=1 if has_batches else ROUNDS,
        run=f"device {seed}",
        clock=MeasureClock(device.now, device.sleep, device.now),
        limits=MeasureLimits(window_steps=PAPER_BATCHES if has_batches else 0),
    )


@cache
def measure_test_nets(family: str, seed: int) -> tuple[Observation, ...]:
    """Measure random networks of a family on a fresh copy of a device."""
    rng, setup = random.Random(TEST_SEED), Setup(batch=FAMILIES[family].batch)
    with make_simulated_measurer(seed, has_batches=False) as measurer:
        return tuple(
            measurer.measure(Trial(draw_family(family, rng.randint), setup))
            for _ in range(TEST_NETS)
        )


def score(
    estimator: Estimator, known: Sequence[Observation], test: Sequence[Observation]
) -> list[float]:
    """Return the relative error of every test network, in percent."""
    networks = [one.trial.network for one in test]
    found = estimator.fit(known).predict(networks, [one.trial.setup for one in test])
    measured_j = [one.energy_j or 0.0 for one in test]
    return [
        100 * (float(estimated) / measured - 1)
        for estimated, measured in zip(found.energy_j, measured_j, strict=True)
    ]


# ---------------------------------------------------------------------------------------------
# Refits of kept measurements


def run_kept(out: Path) -> None:
    """Refit the campaigns of ``benchmarks/accuracy`` with each deviation of fitting switched."""
    sys.path.insert(0, str(ACCURACY))
    from observation_files import read_profiles

    settings: dict[str, Json] = {}
    for file in sorted((ACCURACY / "results").glob("observations-*.json.gz")):
        (profile,) = read_profiles(file)
        roles = {"subtractive": "subtractive", "cost": "cost.subtractive-energy"}
        name = file.name.removeprefix("observations-").removesuffix(".json.gz")
        campaign = find_role(profile.observations, roles.get(name, "subtractive"))
        test = average_passes(profile.observations)
        if campaign and test:
            settings[name] = refit(campaign, test)
            print(name, json.dumps(settings[name]["arms"]), file=sys.stderr, flush=True)
            if name == "cost":
                settings[name]["stops"] = replay_stops(campaign, test)
    found = {"measured": True, "device": "NVIDIA H200", "settings": settings}
    write_json(out / "h200.json", found)


def find_role(observations: Iterable[Observation], role: str) -> list[Observation]:
    """Return the observations of one role of an evaluation."""
    return [one for one in observations if one.run.partition(".")[2] == role]


def average_passes(observations: Sequence[Observation]) -> list[Observation]:
    """Return each test network once, with the mean energy of both passes."""
    passes: dict[str, list[Observation]] = {}
    for one in (*find_role(observations, "test1"), *find_role(observations, "test2")):
        passes.setdefault(one.trial.key, []).append(one)
    return [
        replace(found[0], energy_j=statistics.fmean(one.energy_j or 0.0 for one in found))
        for found in passes.values()
    ]


def refit(campaign: Sequence[Observation], test: Sequence[Observation]) -> Json:
    """Return the error of every arm on one setting."""
    arms = {"": OURS, **{name: f"{OURS}:{name}" for name in FIT_DEVIATIONS}}
    arms["all of these"] = ":".join((OURS, *FIT_DEVIATIONS))
    rows = {}
    for name, arm in arms.items():
        errors = score(find_estimator(arm), campaign, test)
        rows[name] = {
            "mape_percent": round(statistics.fmean(map(abs, errors)), 3),
            "bias_percent": round(statistics.fmean(errors), 3),
        }
    seconds = round(sum(one.cost_s for one in campaign), 1)
    return {"points": len(campaign), "device_seconds": seconds, "nets": len(test), "arms": rows}


def replay_stops(campaign: Sequence[Observation], test: Sequence[Observation]) -> Json:
    """Return after how many points of a long campaign each rule would have stopped."""
    setup = campaign[0].trial.setup
    target = Target(make_family("cnn5", (3, 96, 96)), setup, acquisition="energy")
    arms = {**STOP_RULES, "limit": f"{OURS}:limit"}
    rows: Json = {}
    for name, arm in arms.items():
        estimator = find_estimator(arm)
        count = find_stop(estimator, target, campaign)
        known = campaign[:count] if count else campaign
        errors = score(estimator, known, test)
        rows[name] = {
            "points": count,
            "most": len(campaign),
            "mape_percent": round(statistics.fmean(map(abs, errors)), 3),
        }
    return rows


def find_stop(estimator: Estimator, target: Target, campaign: Sequence[Observation]) -> int | None:
    """Return the first number of observations, of every tenth, after which nothing is proposed."""
    for count in range(30, len(campaign) + 1, 10):
        if estimator.propose(target, campaign[:count]).trial is None:
            return count
    return None


# ---------------------------------------------------------------------------------------------
# Tables


def write_json(path: Path, report: Json) -> None:
    """Write a report with date and commit, one run a line."""
    dated = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        **report,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dated, indent=1)
    if "runs" in dated:
        runs = ",\n  ".join(json.dumps(run) for run in dated.pop("runs"))
        head = json.dumps(dated, indent=1).removesuffix("\n}")
        text = f'{head},\n "runs": [\n  {runs}\n ]\n}}'
    path.write_text(text + "\n")


def make_tables(out: Path) -> str:
    """Return Markdown tables of all results."""
    parts = []
    if (out / "simulated.json").exists():
        parts.append(make_simulated_table(json.loads((out / "simulated.json").read_text())))
    if (out / "h200.json").exists():
        parts.append(make_kept_table(json.loads((out / "h200.json").read_text())))
    return "\n\n".join(parts)


def make_simulated_table(report: Json) -> str:
    """Return means over devices: MAPE, points and device time of every arm."""
    lines = []
    for family in dict.fromkeys(run["family"] for run in report["runs"]):
        lines += [
            "",
            f"| simulated, {family} | `{OURS}`, switched to the paper: MAPE % (range) | points | "
            f"device s | `{PAPER}`, switched to ours: MAPE % (range) | points | device s |",
            "|---|---|---|---|---|---|---|",
        ]
        for changed in ("", *DEVIATIONS, BATCHES):
            cells = [describe_arm(report["runs"], family, base, changed) for base in (OURS, PAPER)]
            lines.append(f"| {f'`{changed}`' if changed else 'nothing'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_arm(runs: Sequence[Json], family: str, base: str, changed: str) -> str:
    """Return three cells of a table."""
    found = [
        run
        for run in runs
        if (run["family"], run["base"], run["changed"]) == (family, base, changed)
    ]
    if not found:
        return "– | – | –"
    errors = [run["mape_percent"] for run in found]
    points, seconds = (
        statistics.fmean(run[name] for run in found) for name in ("points", "device_seconds")
    )
    shown = f"{statistics.fmean(errors):.1f} ({min(errors):.1f}–{max(errors):.1f})"
    return f"{shown} | {points:.0f} | {seconds:.0f}"


def make_kept_table(report: Json) -> str:
    """Return the MAPE of every refit, by setting."""
    settings = report["settings"]
    names = list(settings)
    lines = [
        f"| measured, MAPE % | {' | '.join(names)} | mean |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for arm in settings[names[0]]["arms"]:
        errors = [settings[name]["arms"][arm]["mape_percent"] for name in names]
        cells = " | ".join(f"{error:.1f}" for error in errors)
        label = arm if arm == "all of these" else f"`{arm}`" if arm else "nothing"
        lines.append(f"| {label} | {cells} | {statistics.fmean(errors):.1f} |")
    stops = settings.get("cost", {}).get("stops", {})
    for name, row in stops.items():
        after = f"after {row['points']} points" if row["points"] else f"not in {row['most']} points"
        lines.append(
            f"\nRule `{name}` on the long campaign: {after}, MAPE {row['mape_percent']:.1f} %"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
