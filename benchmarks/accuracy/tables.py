"""The rows of a report for people: a short table as Markdown, and more on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rows import ESTIMATORS, FIELDS, GROUPS, OUTSIDE, find_row
from settings import OWN

from joulecast.cli.terminal import label_provenance, make_console, print_table

Json = dict[str, Any]


def list_columns(rows: Sequence[Json]) -> list[str]:
    """Headings of the short table."""
    names = [name for name in ESTIMATORS if any(row["estimator"] == name for row in rows)]
    return ["setting", "nets", "noise", *names, "in 95 %", "width", "device s"]


def list_cells(rows: Sequence[Json]) -> list[list[str]]:
    """A line for each setting: errors of all estimators, then more about ours; all in percent."""
    settings = [row["setting"] for row in rows if row["setting"] not in (*GROUPS, OUTSIDE)]
    found = []
    for setting in dict.fromkeys((*settings, OUTSIDE, *GROUPS)):
        mine = [row for row in rows if row["setting"] == setting]
        if not mine:
            continue
        errors = []
        for name in list_columns(rows)[3:-3]:
            row = find_row(mine, setting, name)
            errors.append("-" if row is None else f"{row['mape_percent']:.1f}")
        own = find_row(mine, setting, OWN[0])
        more = ["-"] * 3
        if own is not None:
            words = ("coverage95_percent", "interval_width_percent", "device_seconds")
            more = [f"{own[word]:.0f}" for word in words]
        noise = mine[0]["noise_percent"]
        said = "-" if noise is None else f"{noise:.1f}"
        found.append([setting, str(mine[0]["nets"]), said, *errors, *more])
    return found


def make_markdown(rows: Sequence[Json]) -> str:
    """The short table; the best error of each line is bold."""
    columns = list_columns(rows)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for cells in list_cells(rows):
        errors = [float(cell) for cell in cells[3:-3] if cell != "-"]
        best = f"{min(errors):.1f}"
        bold = [f"**{cell}**" if cell == best else cell for cell in cells[3:-3]]
        lines.append([*cells[:3], *bold, *cells[-3:]])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_summary(summary: Json) -> None:
    """The short table, then all about the means."""
    console = make_console()
    console.width = max(console.width, 120)
    rows = summary["rows"]
    basis = label_provenance(summary["provenance"])
    first, *others = list_columns(rows)
    title = f"Mean absolute error in percent on {summary['device']}{basis}"
    print_table(console, [first, *(f">{one}" for one in others)], list_cells(rows), title=title)
    means = [row for row in rows if row["setting"] in (*GROUPS, OUTSIDE)]
    headings = ["setting", "estimator", *(f">{word.split('_')[0]}" for word in FIELDS[4:])]
    cells = [
        [row["setting"], row["estimator"], *("-" if v is None else f"{v:.4g}" for v in values)]
        for row in means
        for values in [[row[name] for name in FIELDS[4:]]]
    ]
    print_table(console, headings, cells, title="Means over settings")
    for row in means:
        for rival, ratio in row.get("ratios", {}).items():
            console.print(f"{row['setting']}: {rival} is off {ratio:.1f} times as far as {OWN[0]}.")
    for setting, words in summary["missing"].items():
        for one in words:
            console.print(f"Not measured or judged in {setting}: {one}")
