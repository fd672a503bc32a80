"""Print a Report in a terminal.

Tables fit 100 columns where the output is not a terminal. Colours and widths come from rich, which
leaves them out where they would not show. Control characters in names are shown escaped.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from joulecast.system.printable import make_printable
from joulecast.system.redaction import redact_url
from joulecast.views.report import Heading, Report, Table, Text
from joulecast.views.words import shorten

WIDTH = 100
_SHORTEST_COLUMN = 8
_STYLES = {"lead": "bold", "plain": "", "warning": "bold yellow", "note": "dim", "command": ""}


class LiteralConsole(Console):
    """A console that prints text literally, escapes control characters and hides passwords."""

    def render_str(self, text: str, **options: Any) -> RichText:
        """Return the text to print; only line breaks at its ends are line breaks."""
        inner = text.strip("\n")
        start, _, end = text.partition(inner) if inner else (text, "", "")
        return super().render_str(start + make_printable(redact_url(inner)) + end, **options)


def make_console(stream: TextIO) -> Console:
    """Return a console that prints text literally to a stream."""
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else int(columns) if columns.isdecimal() else WIDTH
    return LiteralConsole(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_report(report: Report, console: Console) -> None:
    """Print a report; plots and pictures are for other views."""
    if report.title:
        console.print(report.title + ("\n" if report.blocks else ""))
    before: object = None
    for block in report.blocks:
        if isinstance(block, Heading):
            console.print(f"{block.text}\n", style="bold")
        elif isinstance(block, Text):
            # Notes follow the tables that they explain; anything else stands apart from a table.
            console.print(block.text, style=_STYLES[block.role], soft_wrap=block.role == "command")
        elif isinstance(block, Table):
            if isinstance(before, Text):
                console.print()
            _print_table(block, console)
        else:
            continue
        before = block


def format_report(report: Report) -> str:
    """Return a report as plain text."""
    stream = io.StringIO()
    print_report(report, make_console(stream))
    return stream.getvalue().rstrip("\n")


def _print_table(table: Table, console: Console) -> None:
    if table.title:
        console.print(table.title, style="bold")
    style: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    has_head = any(heading.lstrip(">~").strip() for heading in table.columns)
    shown = RichTable(
        show_header=has_head, show_footer=bool(table.footer), padding=(0, 1, 0, 0), **style
    )
    # Escaped first, because that makes them longer.
    escaped = [[make_printable(cell) for cell in row] for row in table.rows]
    for place, heading in enumerate(table.columns):
        shown.add_column(
            heading.lstrip(">~"),
            footer=table.footer[place] if table.footer else "",
            justify="right" if heading.startswith(">") else "left",
            style="" if place else "bold",
            no_wrap=not heading.startswith("~"),
        )
    for row in _shorten_rows(escaped, table.columns, table.footer, console.width):
        shown.add_row(*row)
    console.print(shown)
    console.print()


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
