"""Write the tables of benchmarks/anywhere from the files of runs, without a device.

python benchmarks/anywhere/report.py OUT ... [--networks second] [--to FOLDER]

table.md        scores by method and group, goals, and every network
summary.json    the same as numbers
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from result_files import open_folder
from scores import (
    PROBED,
    SHIPPED,
    GroupScore,
    NetworkScore,
    list_methods,
    make_groups,
    score_group,
    score_network,
)

from joulecast.testing.commits import find_commit

Json = dict[str, Any]

FOLDERS = {
    "first": "results",
    "second": "results-second",
    "third": "results-third",
    "fourth": "results-fourth",
}
"""Where the tables of each test are, beside this script."""

# How Joulecast names a card: digits of a hash.
UNIT = re.compile("[0-9a-f]{8}")
# Smaller groups are shown; their coverage and calibration are not judged.
FEWEST = 10


@dataclass(frozen=True)
class Goal:
    """A goal, written down before measuring.

    Attributes:
        low, high: Bounds of the value; None where there is none.
    """

    method: str
    quantity: str
    low: float | None
    high: float | None
    in_each_group: bool = False


GOALS = (
    Goal(SHIPPED, "mape_percent", None, 8.0),
    Goal(SHIPPED, "median_percent", None, 5.0),
    Goal(SHIPPED, "worst_percent", None, 25.0),
    Goal(SHIPPED, "median_width_percent", None, 35.0),
    Goal(PROBED, "mape_percent", None, 4.0),
    Goal(PROBED, "median_percent", None, 2.5),
    *(Goal(method, "within_percent", 90.0, 99.0, True) for method in (SHIPPED, PROBED)),
    *(Goal(method, "rms_z", 0.8, 1.2, True) for method in (SHIPPED, PROBED)),
)


def main() -> None:
    """Score, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders that run.py wrote")
    parser.add_argument("--networks", choices=FOLDERS, default="first", help="which test it was")
    parser.add_argument("--to", type=Path, help="folder of the tables; the test's by default")
    args = parser.parse_args()
    to = args.to or Path(__file__).parent / FOLDERS[args.networks]
    missing = [str(run) for run in args.runs if not (run / "results.json").exists()]
    if missing:
        sys.exit(f"{missing[0]} holds no results.json: give a folder that run.py wrote")
    summary = make_summary(merge_runs(args.runs))
    if not summary["networks"]:
        sys.exit("no network has a truth yet: run run.py on the device first")
    to.mkdir(parents=True, exist_ok=True)
    text = make_markdown(summary)
    (to / "table.md").write_text(text)
    (to / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    print(text)


def merge_runs(runs: list[Path]) -> dict[str, Json]:
    """Return the results of all runs; of a network in several, the first with a truth counts."""
    merged: dict[str, Json] = {}
    for run in runs:
        for name, found in open_folder(run).results.items():
            if name not in merged or "energy_j" not in merged[name].get("truth", {}):
                merged[name] = found
    return merged


def make_summary(results: dict[str, Json]) -> Json:
    """Return scores of methods and networks, goals, failures and cards."""
    judged = {
        name: found for name, found in results.items() if "energy_j" in found.get("truth", {})
    }
    groups, methods = make_groups(judged), list_methods(judged)
    scores = [
        score
        for method in methods
        for group, names in groups.items()
        if (score := score_group(method, group, names, judged))
    ]
    networks = {name: describe_network(name, judged[name], methods) for name in judged}
    return {
        "date": date.today().isoformat(),
        "commit": find_commit(__file__),
        "cards": describe_cards(judged),
        "scores": [score.to_dict() for score in scores],
        "goals": [row for goal in GOALS for row in judge_goal(goal, scores)],
        "networks": networks,
        "failures": list_failures(results),
    }


def describe_network(name: str, found: Json, methods: list[str]) -> Json:
    """Return the truth of a network and the score of each method."""
    truth, probed = found["truth"], found.get(PROBED, {})
    scores = {method: score_network(name, found, method) for method in methods}
    return {
        **found["setup"],
        "domain": found["about"]["domain"],
        "energy_j": truth["energy_j"],
        "duration_s": truth["duration_s"],
        "power_w": truth["power_w"],
        "spread_share": truth["energy_spread_share"],
        "unit": truth.get("unit", ""),
        "measuring_s": probed.get("measuring_s"),
        "probed_wall_s": probed.get("wall_s"),
        "same_card": not probed or probed.get("unit") == truth.get("unit"),
        "methods": {method: asdict(score) for method, score in scores.items() if score},
    }


def describe_cards(results: dict[str, Json]) -> Json:
    """Return the cards of truth and profile, and whether they are known to be different.

    Early observations name their card in another way, or not at all: those cannot be compared.
    """
    tested = {found["truth"].get("unit", "") for found in results.values()} - {""}
    made = {
        unit for one in results.values() for unit in one.get(SHIPPED, {}).get("profile_units", [])
    }
    are_comparable = all(UNIT.fullmatch(unit) for unit in tested | made)
    return {
        "tested": sorted(tested),
        "profile": sorted(made),
        "are_different": bool(tested and made) and are_comparable and not tested & made,
    }


def judge_goal(goal: Goal, scores: list[GroupScore]) -> list[Json]:
    """Return whether a goal is met, on all networks and where it says so in each large group."""
    rows = []
    for score in scores:
        is_judged = score.group == "all" or (goal.in_each_group and score.count >= FEWEST)
        value = getattr(score, goal.quantity)
        if score.method != goal.method or not is_judged or value is None:
            continue
        size = abs(value)
        is_met = (goal.low is None or size >= goal.low) and (goal.high is None or size <= goal.high)
        rows.append({**asdict(goal), "group": score.group, "value": value, "is_met": is_met})
    return rows


def list_failures(results: dict[str, Json]) -> list[Json]:
    """Return every stage that failed, and networks without a truth."""
    rows = []
    for name, found in results.items():
        stages = {stage: found[stage] for stage in (SHIPPED, "truth", PROBED) if stage in found}
        for stage, result in stages.items():
            if "error" in result:
                rows.append({"network": name, "stage": stage, "error": result["error"]})
        if "truth" not in found:
            rows.append({"network": name, "stage": "truth", "error": "not measured"})
    return rows


# ---------------------------------------------------------------------------------------------
# Markdown


def make_markdown(summary: Json) -> str:
    """Return all tables as one page."""
    cards = summary["cards"]
    different = "different cards" if cards["are_different"] else "**not** shown to be different"
    parts = [
        f"{len(summary['networks'])} networks, {summary['date']}, commit {summary['commit']}. "
        f"Tested on {name_units(cards['tested'])}; profile made on {name_units(cards['profile'])} "
        f"({different}).",
        make_group_table(summary),
        make_goal_table(summary["goals"]),
        make_network_table(summary["networks"]),
    ]
    if summary["failures"]:
        lines = (
            f"- {one['network']}, {one['stage']}: {one['error']}" for one in summary["failures"]
        )
        parts.append("Failures:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def make_group_table(summary: Json) -> str:
    """Return the scores of methods by group."""
    titles = ["method", "group", "networks", "failed", "MAPE", "median", "worst", "bias"]
    titles += ["within 95 %", "rms z", "median width", "MAPE of seconds"]
    rows = [
        [
            one["method"],
            one["group"],
            str(one["count"]),
            str(one["failed"]),
            f"{one['mape_percent']:.1f}",
            f"{one['median_percent']:.1f}",
            f"{one['worst_percent']:+.1f}",
            f"{one['bias_percent']:+.1f}",
            f"{one['within_percent']:.0f}",
            show(one["rms_z"], ".2f"),
            f"{one['median_width_percent']:.0f}",
            show(one["duration_mape_percent"], ".1f"),
        ]
        for one in summary["scores"]
        if one["method"] in (SHIPPED, PROBED) or one["group"] == "all"
    ]
    return "Errors, coverage and widths in percent.\n\n" + format_table(titles, rows, 2)


def make_goal_table(goals: list[Json]) -> str:
    """Return which goals are met."""
    rows = []
    for one in goals:
        bounds = f"at most {one['high']:g}"
        if one["low"] is not None:
            bounds = f"{one['low']:g} to {one['high']:g}"
        name = one["quantity"].removesuffix("_percent").replace("_", " ")
        verdict = "met" if one["is_met"] else "**missed**"
        rows.append([one["method"], name, one["group"], bounds, f"{one['value']:.2f}", verdict])
    titles = ["method", "goal", "group", "bounds", "reached", ""]
    return format_table(titles, rows, 4)


def make_network_table(networks: dict[str, Json]) -> str:
    """Return every network with the errors of our estimates and of rivals that count work."""
    rivals = ("flops", "flops-linear", "work-linear")
    titles = ["network", "batch, precision, optimizer", "J per step", "ms", "W", "spread"]
    titles += ["shipped", "width", "z", "probed", "width", "z", "probes, s", *rivals]
    rows = []
    for name, one in networks.items():
        methods = one["methods"]
        row = [name, f"{one['batch']}, {one['precision']}, {one['optimizer']}"]
        row += [f"{one['energy_j']:.2f}", f"{1e3 * one['duration_s']:.1f}", f"{one['power_w']:.0f}"]
        row.append(f"{100 * one['spread_share']:.1f}")
        for method in (SHIPPED, PROBED):
            row += show_score(methods.get(method))
        row.append(show(one["measuring_s"], ".1f"))
        row += [show_score(methods.get(rival))[0] for rival in rivals]
        rows.append(row)
    return "Errors of the energy, widths and spreads in percent.\n\n" + format_table(
        titles, rows, 2
    )


def show_score(score: NetworkScore | Json | None) -> list[str]:
    """Return error, width and z of an estimate; an asterisk marks one outside its interval."""
    if score is None:
        return ["-", "-", "-"]
    row = asdict(score) if isinstance(score, NetworkScore) else score
    mark = "" if row["is_inside"] else "*"
    error, width = 100 * row["error_share"], 100 * row["width_share"]
    return [f"{error:+.1f}{mark}", f"{width:.0f}", show(row["z"], "+.1f")]


def show(value: float | None, pattern: str) -> str:
    """Return a number, or a dash if there is none."""
    return "-" if value is None else format(value, pattern)


def name_units(units: list[str]) -> str:
    """Return the names of cards."""
    return ", ".join(units) or "an unnamed card"


def format_table(titles: list[str], rows: list[list[str]], left: int) -> str:
    """Return a Markdown table whose first columns are aligned to the left."""
    marks = ["---" if at < left else "---:" for at in range(len(titles))]
    lines = [titles, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
