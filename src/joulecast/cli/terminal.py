"""Print tables, bars and sentences for people, and JSON for programs.

Tables fit 100 columns where the output is not a terminal. Colours and widths come from rich, which
leaves them out where they would not show. Control characters in names are shown escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from joulecast.cli.streams import get_results
from joulecast.printable import make_printable
from joulecast.units import (
    format_energy,
)
from joulecast.units import (
    format_interval as format_interval,
)

if TYPE_CHECKING:
    from rich.console import Console

Json = dict[str, Any]
WIDTH = 100
_SHORTEST_COLUMN = 8
_DESCRIPTIONS = {
    "measured": "measured by a meter",
    "imported": "imported from another source",
    "modelled": "modelled, not measured: CPU time x a stated power",
    "datasheet": "from a data sheet, never measured on this device",
    "simulated": "simulated, not a real device",
}


def make_console(stderr: bool = False) -> Console:
    """Return a console that prints text literally."""
    # Slow to import, and not needed for JSON.
    from joulecast.cli.console import LiteralConsole

    stream = sys.stderr if stderr else get_results()
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else int(columns) if columns.isdecimal() else WIDTH
    return LiteralConsole(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_json(data: Any) -> None:
    """Print a value as JSON."""
    stream = get_results()
    stream.write(format_json(data) + "\n")
    stream.flush()


def format_json(data: Any) -> str:
    """Return a value as indented JSON."""
    # JSON escapes every control character but this one.
    return json.dumps(data, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    footer: Sequence[str] = (),
) -> None:
    """Print rows below headings; ``>`` in front of a heading aligns right, ``~`` wraps its cells.

    Args:
        console: Where to print.
        columns: Headings.
        rows: Cells; the first column is printed in bold.
        title: A line above the table.
        footer: Totals.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if title:
        console.print(title, style="bold")
    style: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    table = Table(show_footer=bool(footer), padding=(0, 1, 0, 0), **style)
    # Escaped first, because that makes them longer.
    escaped = [[make_printable(cell) for cell in row] for row in rows]
    cells = _shorten_rows(escaped, columns, footer, console.width)
    for place, heading in enumerate(columns):
        table.add_column(
            heading.lstrip(">~"),
            footer=footer[place] if footer else "",
            justify="right" if heading.startswith(">") else "left",
            style="" if place else "bold",
            no_wrap=not heading.startswith("~"),
        )
    for row in cells:
        table.add_row(*row)
    console.print(table)
    console.print()


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print sentences below a result, each on its own line."""
    for note in notes:
        console.print(note, style="dim", soft_wrap=False)


def make_bar(share: float, width: int = 20) -> str:
    """Return a bar in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def shorten(text: str, size: int) -> str:
    """Return a text of at most ``size`` characters, cut with an ellipsis."""
    return text if len(text) <= size else text[: size - 1] + "…"


def format_level(level: float) -> str:
    """Return ``95 % interval``."""
    return f"{100 * level:g} % interval"


def format_with_interval(
    energy_j: float, interval_j: Sequence[float], level: float, provenance: str
) -> str:
    """Return ``2.07 J (95 % interval 1.87–2.29 J)``, labelled where it was not measured."""
    label = "" if provenance == "measured" else f"{provenance}, "
    interval = f"{format_level(level)} {format_interval(interval_j, format_energy)}"
    return f"{format_energy(energy_j)} ({label}{interval})"


def format_optional(value: float | None, form: Callable[[float], str]) -> str:
    """Return a formatted value, or a dash for None."""
    return "-" if value is None else form(value)


def plural(count: int, noun: str) -> str:
    """Return ``1 net`` or ``2 nets``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def describe_provenance(provenance: str) -> str:
    """Return a clause that says where a number comes from."""
    return _DESCRIPTIONS[provenance]


def describe_coverage(provenance: str, covers: str) -> str:
    """Return a clause that says which joules a number contains."""
    if provenance == "datasheet":
        return f"joules are those of the {covers}"
    return f"the meter covers {covers}"


def label_provenance(provenance: str) -> str:
    """Return the label of a number that was not measured; empty for one that was."""
    return "" if provenance == "measured" else f" ({provenance})"


def _shorten_rows(
    rows: list[list[str]], columns: Sequence[str], footer: Sequence[str], width: int
) -> list[list[str]]:
    """Return rows that fit a width: text columns are shortened, the widest first, numbers never."""
    kinds = [heading[:1] for heading in columns]
    if "~" in kinds:
        return rows
    lines = [[heading.lstrip(">~") for heading in columns], list(footer), *rows]
    sizes = [max(len(line[i]) for line in lines if line) for i in range(len(columns))]
    texts = [i for i, kind in enumerate(kinds) if kind != ">"]
    while texts and sum(sizes) + 2 * len(sizes) - 2 > width:
        widest = max(texts, key=lambda i: sizes[i])
        if sizes[widest] <= _SHORTEST_COLUMN:
            break
        sizes[widest] -= 1
    return [[shorten(cell, size) for cell, size in zip(row, sizes, strict=True)] for row in rows]


def shorten_path(name: str, size: int) -> str:
    """Return a dotted name of at most ``size`` characters, without its beginning: ``….blocks.3``.

    The end tells layers apart. A name whose last part alone is too long is left to the table.
    """
    if len(name) <= size:
        return name
    parts = name.split(".")
    tails = (".".join(parts[at:]) for at in range(1, len(parts)))
    return next((f"….{tail}" for tail in tails if len(tail) + 2 <= size), name)
