"""What people see: tables, bars and sentences on stdout; JSON for programs.

Tables fit 100 columns where the output is no terminal. Colours and widths come from rich, which
leaves them out where nobody would see them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
_SHORTEST = 8
# How a provenance is said beside a number. What was measured needs no word.
_SAID = {"modelled": " (modelled)", "simulated": " (simulated)", "imported": " (imported)"}
_BASES = {
    "measured": "measured by a meter",
    "imported": "imported: somebody else measured it",
    "modelled": "modelled, not measured: CPU time x a stated power",
    "simulated": "simulated: no real device",
}


def make_console(stderr: bool = False) -> Console:
    """A console that never interprets what it prints."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or WIDTH)
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_json(data: Any) -> None:
    """Print a value for programs."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    footer: Sequence[str] = (),
) -> None:
    """Print rows under headings; ``>`` before one means right, ``~`` that its cells may wrap.

    Args:
        console: Where to.
        columns: Headings.
        rows: Cells; the first column is the one to look at.
        title: A line above.
        footer: Totals.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if title:
        console.print(title, style="bold")
    look: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(show_footer=bool(footer), **look)
    cells = _cut([list(row) for row in rows], columns, footer, console.width)
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


def _cut(
    rows: list[list[str]], columns: Sequence[str], footer: Sequence[str], width: int
) -> list[list[str]]:
    """Rows that fit a width: words are cut, the longest column first; numbers never are."""
    kinds = [heading[:1] for heading in columns]
    lines = [[heading.lstrip(">~") for heading in columns], list(footer), *rows]
    sizes = [max(len(line[i]) for line in lines if line) for i in range(len(columns))]
    words = [i for i, kind in enumerate(kinds) if kind not in (">", "~")]
    while "~" not in kinds and words and sum(sizes) + 2 * len(sizes) - 2 > width:
        longest = max(words, key=lambda i: sizes[i])
        if sizes[longest] <= _SHORTEST:
            break
        sizes[longest] -= 1
    short = [[_shorten(cell, size) for cell, size in zip(row, sizes, strict=True)] for row in rows]
    return rows if "~" in kinds else short


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print sentences below a result, one a line."""
    for note in notes:
        console.print(note, style="dim", soft_wrap=False)


def make_bar(share: float, width: int = 20) -> str:
    """A bar of eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def join_ends(low: str, high: str) -> str:
    """``404 to 632 mJ``: a unit that both ends share is said once."""
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if unit and high.endswith(f" {unit}") else f"{low} to {high}"


def say_basis(basis: str) -> str:
    """A clause that says what a number rests on."""
    return _BASES[basis]


def mark_basis(basis: str) -> str:
    """A word to stand beside a number that was not measured; nothing beside one that was."""
    return _SAID.get(basis, "")
