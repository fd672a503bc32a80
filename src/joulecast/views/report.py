"""Describe a result once, for every view of it.

A feature turns its result into a ``Report``: a title and blocks, in the order in which people read
them. ``terminal.py`` prints it, ``html.py`` makes a page of it; plots are drawn where they can be
seen. A result that inherits from ``Reportable`` also shows itself in ``print`` and in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_MEASURED = {
    "imported": "The energies are imported from another source.",
    "modelled": "The energies are modelled, not measured: durations times a stated power.",
    "datasheet": "The energies rest on a data sheet: the device was never measured.",
    "simulated": "The energies are simulated: there is no real device behind them.",
}
"""What has to be said about energies that were not measured, by provenance."""


@dataclass(frozen=True)
class Heading:
    """A heading of the blocks below it."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"heading": self.text}


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        role: ``lead`` for an answer, ``plain``, ``warning`` for what must not be missed, ``note``
            for what explains the answer, ``command`` for a line to copy.
    """

    text: str
    role: str = "plain"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"text": self.text, "role": self.role}


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: Headings; ``>`` in front of one aligns its cells right, ``~`` wraps them.
        rows: Cells as text; the first of each row is its heading.
        title: A line above the table.
        footer: Totals.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    footer: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; headings do not say how their cells are aligned."""
        return {
            "title": self.title,
            "columns": [name.lstrip(">~") for name in self.columns],
            "rows": [list(row) for row in self.rows],
            "footer": list(self.footer),
        }


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        name: Name of its file, without suffix.
        title: What it shows.
        draw: Draws it on a figure of matplotlib.
        description: What can be seen in it, for those who cannot see it.
        data: Its values as a table, which a page shows on request.
        size: Width and height in inches.
    """

    name: str
    title: str
    draw: Callable[[Figure], None]
    description: str = ""
    data: Table | None = None
    size: tuple[float, float] = (7.0, 4.2)


@dataclass(frozen=True)
class Picture:
    """A finished picture, such as the label of a device."""

    name: str
    svg: str
    description: str


Block = Heading | Text | Table | Plot | Picture


@dataclass(frozen=True)
class Report:
    """What was found about one thing.

    Attributes:
        title: What it is about, in a line.
        blocks: What to read below, in order.
        provenance: Where its energies come from: the weakest of all; empty if it has none.
        kind: What the report is of: ``estimate``, ``comparison``, ``profile`` ...
    """

    title: str
    blocks: tuple[Block, ...]
    provenance: str = ""
    kind: str = ""

    @property
    def warning(self) -> str:
        """What has to be said about energies that were not measured; empty if they were."""
        return NOT_MEASURED.get(self.provenance, "")

    @property
    def plots(self) -> tuple[Plot, ...]:
        """All plots."""
        return tuple(block for block in self.blocks if isinstance(block, Plot))

    def __str__(self) -> str:
        from joulecast.views.terminal import format_report

        return format_report(self)

    def _repr_html_(self) -> str:
        from joulecast.views.html import render_fragment

        return render_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Return words and tables as JSON values, without plots and pictures."""
        return {
            "kind": self.kind,
            "title": self.title,
            "provenance": self.provenance,
            "blocks": [
                one.to_dict() for one in self.blocks if not isinstance(one, (Plot, Picture))
            ],
        }


class Reportable:
    """A result that shows itself: in ``print``, in a notebook, and as a page."""

    def report(self) -> Report:
        """Return what people see of it."""
        raise NotImplementedError

    def finish_command(self) -> int:
        """Return the exit code of a command that has shown it, or raise what went wrong."""
        return 0

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()


@dataclass(frozen=True)
class Answer(Reportable):
    """A result that is no more than its JSON and its report."""

    data: dict[str, Any]
    shown: Report

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values."""
        return self.data

    def report(self) -> Report:
        """Return what people see."""
        return self.shown


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    footer: Sequence[str] = (),
) -> Table:
    """Return a table of any sequences."""
    return Table(tuple(columns), tuple(tuple(row) for row in rows), title, tuple(footer))


Columns = Sequence[tuple[str, Callable[[Any], str]]]


def tabulate(columns: Columns, rows: Iterable[Any]) -> Table:
    """Return a table of records; a column is its heading, and the cell of a record."""
    cells = ([form(one) for _, form in columns] for one in rows)
    return make_table([title for title, _ in columns], cells)


def list_facts(pairs: Iterable[tuple[str, str]], title: str = "") -> Table:
    """Return a table of names and values, without those that are empty."""
    return make_table(("", "~"), ((name, value) for name, value in pairs if value), title)
