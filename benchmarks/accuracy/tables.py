"""Show the rows of the report: a short Markdown table, and more on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rows import ESTIMATORS, FIELDS, FIRST, GROUPS, OUTSIDE, find_row
from settings import OWN

from joulecast.cli.terminal import label_provenance, make_console, print_table

Json = dict[str, Any]


def list_columns(rows: Sequence[Json]) -> list[str]:
    """Return the columns of the short table."""
    known = {row["estimator"] for row in rows}
    names = [name for name in (FIRST, *ESTIMATORS) if name in known]
    return ["setting", "nets", "noise", *names, "coverage", "width", "device s"]


def list_cells(rows: Sequence[Json]) -> list[list[str]]:
    """Return a line for each setting: MAPE of all estimators, then details of additive."""
    settings = [row["setting"] for row in rows if row["setting"] not in (*GROUPS, OUTSIDE)]
    found = []
    for setting in dict.fromkeys((*settings, OUTSIDE, *GROUPS)):
        own_rows = [row for row in rows if row["setting"] == setting]
        if not own_rows:
            continue
        errors = []
        for name in list_columns(rows)[3:-3]:
            row = find_row(own_rows, setting, name)
            errors.append("-" if row is None else f"{row['mape_percent']:.1f}")
        own = find_row(own_rows, setting, OWN[0])
        more = ["-"] * 3
        if own is not None:
            names = ("coverage95_percent", "interval_width_percent", "device_seconds")
            more = [f"{own[name]:.0f}" for name in names]
        noise = own_rows[0]["noise_percent"]
        shown_noise = "-" if noise is None else f"{noise:.1f}"
        found.append([setting, str(own_rows[0]["nets"]), shown_noise, *errors, *more])
    return found


def make_markdown(rows: Sequence[Json]) -> str:
    """Return the short table with the lowest error of each line in bold."""
    columns = list_columns(rows)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for cells in list_cells(rows):
        errors = [float(cell) for cell in cells[3:-3] if cell != "-"]
        best = f"{min(errors):.1f}"
        bold = [f"**{cell}**" if cell == best else cell for cell in cells[3:-3]]
        lines.append([*cells[:3], *bold, *cells[-3:]])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_summary(summary: Json) -> None:
    """Print the short table, then all columns of the groups."""
    console = make_console()
    console.width = max(console.width, 170)
    rows = summary["rows"]
    provenance = label_provenance(summary["provenance"])
    first, *others = list_columns(rows)
    title = f"Mean absolute error in percent on {summary['device']}{provenance}"
    print_table(console, [first, *(f">{one}" for one in others)], list_cells(rows), title=title)
    means = [row for row in rows if row["setting"] in (*GROUPS, OUTSIDE)]
    headings = ["setting", "estimator", *(f">{word.split('_')[0]}" for word in FIELDS[4:])]
    cells = [
        [row["setting"], row["estimator"], *("-" if v is None else f"{v:.4g}" for v in values)]
        for row in means
        for values in [[row[name] for name in FIELDS[4:]]]
    ]
    print_table(console, headings, cells, title="All nets of a group")
    for row in means:
        for baseline, ratio in row.get("ratios", {}).items():
            text = (
                f"{row['setting']}: the error of {baseline} is {ratio:.1f} times that of {OWN[0]}."
            )
            console.print(text)
    for setting, lines in summary["missing"].items():
        for line in lines:
            console.print(f"Not measured or scored in {setting}: {line}")
