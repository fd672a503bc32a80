"""Give the paper's method blocks as layers, and the device time that the paper gave it.

    python benchmarks/accuracy/rivals.py measure STORE --settings transformer-bf16   on cuda:0
    python benchmarks/accuracy/rivals.py score STORE ...              results/rivals.json, a table
    python benchmarks/accuracy/rivals.py simulate --seeds 1510-1512   results/rivals-simulated.json

The reference is the setting's test nets, measured before and after the campaigns. Each method has
one campaign; its first seconds are the campaign of a smaller budget. Every observation is stored at
once, and the same command resumes an interrupted run. ``score`` also reads packed observations.
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from cost import find_setting, parse_seeds
from observation_files import read_profiles, write_packed
from report import RESULTS, count_tests, list_used, open_log
from settings import BASELINE_SECONDS, OWN_SECONDS, Setting

from joulecast.campaign import find_profile_key
from joulecast.cli.terminal import make_console, print_table
from joulecast.errors import JoulecastError, MissingError
from joulecast.features.evaluation import EvaluationPlan, evaluate_stored, name_campaign
from joulecast.features.evaluation_run import measure_and_evaluate
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.records import Profile, weakest_provenance
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

# Table 1 of the paper: a server profiled and fitted for 235 to 562 s per family.
PAPER_SECONDS = 268.0
BUDGETS_S = (20.0, BASELINE_SECONDS, 100.0, PAPER_SECONDS)
RIVALS = (
    "subtractive",
    "subtractive-blocks",
    "work-linear",
    "flops-linear",
    "flops",
    "constant",
)
OWN = ("additive", "additive-noprobe")
SETTING_NAMES = "transformer-bf16,resnet-bf16"


def main() -> None:
    """Measure, score or simulate."""
    args = parse_arguments()
    try:
        args.work(args)
    except JoulecastError as error:
        sys.exit(str(error))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    measure = parts.add_parser("measure", help="measure test nets and run the campaigns")
    measure.add_argument("--on", default="cuda:0")
    measure.set_defaults(work=measure_store)
    score = parts.add_parser("score", help="write scores from a store")
    score.set_defaults(work=score_store)
    measure.add_argument("store", type=Path)
    score.add_argument("stores", type=Path, nargs="+", help="stores, or packed observations")
    simulate = parts.add_parser("simulate", help="do the same on simulated devices")
    simulate.add_argument("--seeds", default="1510-1512", type=parse_seeds)
    simulate.set_defaults(work=simulate_devices)
    for part in (measure, simulate):
        part.add_argument("--estimators", default=",".join((*OWN, *RIVALS)))
        part.add_argument("--seconds", type=float, default=PAPER_SECONDS)
    for part in (measure, score, simulate):
        part.add_argument("--settings", default=SETTING_NAMES, help="names, comma-separated")
        part.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def list_settings(args: argparse.Namespace) -> list[Setting]:
    """Return the settings that the command line names."""
    return [find_setting(name) for name in args.settings.split(",")]


def make_plan(setting: Setting, estimators: Sequence[str], seconds: float) -> EvaluationPlan:
    """Return the plan of a setting; additive learns no longer than in the other tables."""
    plan = setting.plan(tuple(estimators), seconds)
    return replace(plan, budgets=(("additive", min(seconds, OWN_SECONDS)),))


def measure_store(args: argparse.Namespace) -> None:
    """Measure what a store lacks."""
    with (
        open_measurer(MeasureOptions(args.on, rounds=1)) as measurer,
        open_store(args.store) as store,
    ):
        for setting in list_settings(args):
            measure_and_evaluate(
                measurer, store, make_plan(setting, args.estimators.split(","), args.seconds)
            )
            print(f"{setting.name} done", file=sys.stderr, flush=True)


def score_store(args: argparse.Namespace) -> None:
    """Score a store or packed observations and write the results."""
    sources = [(file, one) for file in args.stores for one in read_profiles(file)]
    args.out.mkdir(parents=True, exist_ok=True)
    settings: Json = {}
    used: list[Profile] = []
    for setting in list_settings(args):
        measured = [one for one in sources if count_tests(one[1], setting)]
        if not measured:
            print(f"{setting.name} is left out: it was not measured", file=sys.stderr)
            continue
        file, profile = max(measured, key=lambda one: count_tests(one[1], setting))
        settings[setting.name] = score_budgets(profile, setting)
        kept = args.out / f"observations-rivals-{setting.name}.json.gz"
        if kept.resolve() != file.resolve():
            own = list_used(open_log(profile, setting))
            write_packed(replace(profile, observations=own, fits={}), kept)
        used.append(profile)
    if not settings:
        raise MissingError("no setting was measured: run rivals.py measure first")
    provenance = weakest_provenance(one.provenance for one in used)
    write_result(args.out / "rivals.json", settings, provenance)


def score_budgets(profile: Profile, setting: Setting) -> list[Json]:
    """Return a row for each method and budget."""
    log = open_log(profile, setting)
    names = [name for name in (*OWN, *RIVALS) if log.list_for(name_campaign(name))]
    rows = []
    for budget_s in BUDGETS_S:
        found = evaluate_stored(profile, make_plan(setting, names, budget_s))
        rows += [
            {
                "estimator": score.estimator,
                "budget_s": budget_s,
                "device_seconds": round(score.device_seconds, 1),
                "mape_percent": round(score.mape_percent, 2),
                "noise_percent": round(score.noise_percent or 0.0, 2),
                "nets": score.nets,
            }
            for score in found.scores
        ]
    return rows


def simulate_devices(args: argparse.Namespace) -> None:
    """Score the methods on simulated devices with other test nets."""
    settings: Json = {}
    for setting in list_settings(args):
        devices = []
        for seed in args.seeds:
            print(f"{setting.name} on simulated:{seed}", file=sys.stderr, flush=True)
            devices.append(simulate_device(setting, seed, args))
        settings[setting.name] = average_devices(devices)
    args.out.mkdir(parents=True, exist_ok=True)
    write_result(args.out / "rivals-simulated.json", settings, "simulated")


def simulate_device(setting: Setting, seed: int, args: argparse.Namespace) -> list[Json]:
    """Return the rows of one simulated device."""
    own = replace(setting, seed=seed)
    plan = make_plan(own, args.estimators.split(","), args.seconds)
    with (
        open_measurer(MeasureOptions(f"simulated:{seed}", rounds=1)) as measurer,
        open_store(":memory:") as store,
    ):
        measure_and_evaluate(measurer, store, plan)
        return score_budgets(store.load_profile(find_profile_key(measurer)), own)


def average_devices(devices: Sequence[Sequence[Json]]) -> list[Json]:
    """Return means over devices."""
    groups: dict[tuple[str, float], list[Json]] = {}
    for rows in devices:
        for row in rows:
            groups.setdefault((row["estimator"], row["budget_s"]), []).append(row)
    fields = ("device_seconds", "mape_percent", "noise_percent")
    return [
        {
            "estimator": name,
            "budget_s": budget_s,
            **{field: round(fmean(row[field] for row in rows), 2) for field in fields},
            "nets": sum(row["nets"] for row in rows),
            "devices": len(rows),
        }
        for (name, budget_s), rows in groups.items()
    ]


def write_result(file: Path, settings: Json, provenance: str) -> None:
    """Write all rows and print a table for each setting."""
    result = {
        "provenance": provenance,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "settings": settings,
    }
    file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    for name, rows in settings.items():
        title = f"{name} ({provenance}): MAPE in percent (device seconds)"
        heads = ["estimator", *(f">{budget_s:.0f} s" for budget_s in BUDGETS_S)]
        print_table(make_console(), heads, make_cells(rows), title=title)


def make_cells(rows: Sequence[Json]) -> list[list[str]]:
    """Return a line for each method with its error and device time at every budget."""
    found = {(row["estimator"], row["budget_s"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["estimator"] for row in rows):
        cells = [found.get((name, budget_s)) for budget_s in BUDGETS_S]
        lines.append(
            [
                name,
                *(
                    f"{one['mape_percent']:.1f} ({one['device_seconds']:.0f})" if one else "-"
                    for one in cells
                ),
            ]
        )
    return lines


if __name__ == "__main__":
    main()
