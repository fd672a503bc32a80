"""Write the tables and plots of the accuracy benchmark from stores, without a device.

    python benchmarks/accuracy/report.py                                scores the kept observations
    python benchmarks/accuracy/report.py STORE ... [--outside OUT/test.json]     scores other ones

Without stores, it scores what ``results/`` holds. Each setting uses the source with most of its
test nets. ``results/`` then contains

    summary.json    a row for each setting and estimator, and groups      table.md   a short version
    nets.json       every test net, measured and estimated                accuracy.svg, .png
    observations-SETTING.json.gz   observations of the setting            error-shares.svg
    outside.json    the result of outside.py, unchanged
    summary-first.json   rows of additive when the test nets were first seen, never rewritten
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from observation_files import read_profiles, write_packed
from outside_baselines import add_baselines
from rows import (
    ESTIMATORS,
    OUTSIDE,
    SettingResult,
    list_first_rows,
    list_judged,
    list_nets,
    make_rows,
)
from settings import BASELINE_SECONDS, BASELINES, OWN, OWN_SECONDS, SETTINGS, Setting
from tables import make_markdown, print_summary

from joulecast.errors import JoulecastError, MissingError
from joulecast.features.evaluate import Evaluation
from joulecast.features.evaluation import (
    PASSES,
    EvaluationLog,
    evaluate_stored,
    name_campaign,
    name_evaluation,
)
from joulecast.figures import (
    Caption,
    Plot,
    plot_error_distribution,
    plot_mape_points,
    save_png,
    save_svg,
)
from joulecast.files import read_profile
from joulecast.records import Observation, Profile, weakest_provenance
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
FIRST_SUMMARY = RESULTS / "summary-first.json"
# Prefix of the roles of cost.py's observations.
COST = "cost"


def main() -> None:
    """Score, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", type=Path, nargs="*", help="stores, or files of observations")
    parser.add_argument("--outside", type=Path, help="JSON that outside.py wrote")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    is_kept = not args.stores
    if is_kept:
        names = [*(setting.name for setting in SETTINGS), OUTSIDE]
        args.stores = [RESULTS / f"observations-{name}.json.gz" for name in names]
        args.outside = args.outside or RESULTS / "outside.json"
    try:
        profiles = [one for file in args.stores for one in read_profiles(file)]
        results = evaluate_settings(profiles)
        outside = read_outside(args.outside, profiles) if args.outside else None
        first = list_first_rows(json.loads(FIRST_SUMMARY.read_text())) if is_kept else ()
        args.out.mkdir(parents=True, exist_ok=True)
        summary = write_all(args.out, results, outside, first)
        if not is_kept:
            keep_observations(args.out, results)
            if args.outside:
                copy_outside(args.outside, args.out)
    except (JoulecastError, OSError) as error:
        sys.exit(str(error))
    print_summary(summary)


# ---------------------------------------------------------------------------------------------
# Scores


def evaluate_settings(profiles: Sequence[Profile]) -> list[SettingResult]:
    """Return the results of every setting with test nets.

    Raises:
        MissingError: No setting has any.
    """
    results = []
    for setting in SETTINGS:
        source = max(profiles, key=lambda one: count_tests(one, setting), default=None)
        if source is None or not count_tests(source, setting):
            continue
        print(f"scoring {setting.name}", file=sys.stderr, flush=True)
        try:
            results.append(evaluate_setting(source, setting))
        except MissingError as error:
            print(f"{setting.name} is left out: {error}", file=sys.stderr)
    if not results:
        raise MissingError("the sources have no test nets: run measure.py STORE test first")
    return results


def count_tests(profile: Profile, setting: Setting) -> int:
    """Return how many windows of a setting's test nets a profile has."""
    log = open_log(profile, setting)
    return sum(len(log.list_for(role)) for role in PASSES)


def evaluate_setting(profile: Profile, setting: Setting) -> SettingResult:
    """Return the scores of all estimators that were measured.

    Raises:
        MissingError: None was measured.
    """
    log = open_log(profile, setting)
    results: list[Evaluation] = []
    for names, seconds in ((OWN, OWN_SECONDS), (BASELINES, BASELINE_SECONDS)):
        measured = tuple(name for name in names if log.list_for(name_campaign(name)))
        if measured:
            results.append(evaluate_stored(profile, setting.plan(measured, seconds)))
    if not results:
        raise MissingError("no estimator has observations")
    scores = {score.estimator: score for one in results for score in one.scores}
    estimates: dict[str, Json] = {}
    for net in (net for one in results for net in one.nets):
        estimates.setdefault(net.name, {}).update(net.estimates)
    return SettingResult(
        setting,
        results[0],
        tuple(scores[name] for name in ESTIMATORS if name in scores),
        tuple(replace(net, estimates=estimates[net.name]) for net in results[0].nets),
        tuple(dict.fromkeys(line for one in results for line in (*one.missing, *one.left_out))),
        replace(profile, observations=list_used(log), fits={}),
    )


def open_log(profile: Profile, setting: Setting) -> EvaluationLog:
    """Return a profile's observations of a setting."""
    plan = setting.plan(OWN, OWN_SECONDS)
    return EvaluationLog(name_evaluation(plan, profile.key), profile.observations)


def list_used(log: EvaluationLog) -> tuple[Observation, ...]:
    """Return the observations of a setting without those of cost.py."""
    prefix = log.make_tag(f"{COST}.")
    return tuple(one for one in log.list_all() if not one.run.startswith(prefix))


# ---------------------------------------------------------------------------------------------
# Writing


def write_all(
    out: Path,
    results: Sequence[SettingResult],
    outside: Json | None,
    first_rows: Sequence[Json] = (),
) -> Json:
    """Write tables, nets and plots, and return the summary."""
    rows = [*make_rows(results, outside), *first_rows]
    nets = list_nets(results, outside)
    summary = {**describe_run(results), "rows": rows}
    (out / "summary.json").write_text(spread_json(summary, "rows"))
    (out / "nets.json").write_text(spread_json({**describe_run(results), "nets": nets}, "nets"))
    (out / "table.md").write_text(make_markdown(rows))
    for name, plot in plot_all(summary, nets).items():
        save_svg(plot, out / f"{name}.svg")
        save_png(plot, out / f"{name}.png")
    return summary


def keep_observations(out: Path, results: Sequence[SettingResult]) -> None:
    """Write the observations of each setting; those that are kept already are never rewritten."""
    for one in results:
        write_packed(one.profile, out / f"observations-{one.setting.name}.json.gz")


def describe_run(results: Sequence[SettingResult]) -> Json:
    """Describe the devices, date and commit of the results."""
    evaluations = [one.evaluation for one in results]
    devices = list(dict.fromkeys(one.device for one in evaluations))
    return {
        "device": " and ".join(dict.fromkeys(one.name for one in devices)),
        "devices": [one.to_dict() for one in devices],
        "provenance": weakest_provenance(one.provenance for one in evaluations),
        "covers": " and ".join(dict.fromkeys(one.covers for one in evaluations)),
        "date": max(one.date for one in evaluations),
        "commit": find_commit(__file__),
        "missing": {one.setting.name: list(one.missing) for one in results if one.missing},
    }


def read_outside(file: Path, profiles: Sequence[Profile]) -> Json:
    """Return the result of outside.py, with baselines fitted to its other nets."""
    return add_baselines(json.loads(file.read_text()), profiles)


def copy_outside(file: Path, out: Path) -> None:
    """Copy the result of outside.py, and its observations if they are in the same folder."""
    (out / "outside.json").write_bytes(file.read_bytes())
    observations = file.with_name(f"{file.stem}-profile.json")
    if observations.exists():
        write_packed(read_profile(observations), out / "observations-outside.json.gz")


def spread_json(data: Json, long: str) -> str:
    """Return JSON with one line for each value of one long list."""
    head = json.dumps({name: one for name, one in data.items() if name != long}, allow_nan=False)
    lines = ",\n".join(json.dumps(one, allow_nan=False) for one in data[long])
    return f"{head[:-1]},\n{json.dumps(long)}: [\n{lines}\n]}}\n"


def plot_all(summary: Json, nets: Sequence[Json]) -> dict[str, Plot]:
    """Draw the mean error of each setting and the distribution of errors."""
    rows = list_judged(nets)
    noise = {row["setting"]: row["noise_percent"] for row in summary["rows"]}
    device, provenance = summary["device"], summary["provenance"]
    settings = len({net["setting"] for net in nets})
    about = f"{len(nets)} held-out nets in {settings} settings on {device}"
    return {
        "accuracy": plot_mape_points(
            rows,
            {name: value for name, value in noise.items() if value is not None},
            Caption("Mean error of the estimated energy per step", about, provenance),
        ),
        "error-shares": plot_error_distribution(
            rows, Caption(subtitle=about, provenance=provenance)
        ),
    }


if __name__ == "__main__":
    main()
