"""Describe a report once, for a file, a page of the dashboard, or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.figures import Plot
from joulecast.records import Json

NOT_MEASURED = {
    "imported": "The energies are imported from another source.",
    "modelled": "The energies are modelled, not measured: durations times a stated power.",
    "datasheet": "The energies rest on a data sheet: the device was never measured.",
    "simulated": "The energies are simulated: there is no real device behind them.",
}


@dataclass(frozen=True)
class ReportTable:
    """A table with a caption.

    Attributes:
        caption: What it shows.
        columns: Headings; ``>`` in front of one aligns its cells right.
        rows: Cells as text; the first of each row is its heading.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A finished picture, such as the label of a device: SVG, and what it shows in words."""

    svg: str
    description: str


@dataclass(frozen=True)
class Section:
    """A part of a report under its own heading.

    Attributes:
        text: Paragraphs.
        tables: Tables below the text.
        plots: Plots by the name of their file.
        pictures: Finished pictures by the name of their file.
    """

    heading: str
    text: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    plots: Mapping[str, Plot] = field(default_factory=dict)
    pictures: Mapping[str, Picture] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What was found about one thing, in sections.

    Attributes:
        kind: ``profile``, ``evaluation``, ``pruning``, ``plan``, ``score``, ``fleet`` or
            ``campaign``.
        title: What it is about.
        lead: The most important sentence.
        provenance: Where its energies come from: the weakest of all.
        facts: Short values with their names, shown at the top.
    """

    kind: str
    title: str
    lead: str
    provenance: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def warning(self) -> str:
        """What has to be said about energies that were not measured; empty if they were."""
        return NOT_MEASURED.get(self.provenance, "")

    @property
    def plots(self) -> dict[str, Plot]:
        """All plots by the name of their file."""
        return {name: plot for one in self.sections for name, plot in one.plots.items()}

    @property
    def pictures(self) -> dict[str, Picture]:
        """All finished pictures by the name of their file."""
        return {name: found for one in self.sections for name, found in one.pictures.items()}

    def to_dict(self) -> Json:
        """Return the words and numbers as JSON values, without plots."""
        return {
            "kind": self.kind,
            "title": self.title,
            "lead": self.lead,
            "provenance": self.provenance,
            "facts": [{"name": name, "value": value} for name, value in self.facts],
            "sections": [_describe_section(one) for one in self.sections],
        }


def _describe_section(section: Section) -> dict[str, Any]:
    return {
        "heading": section.heading,
        "text": list(section.text),
        "tables": [
            {
                "caption": table.caption,
                "columns": [name.lstrip(">") for name in table.columns],
                "rows": [list(row) for row in table.rows],
            }
            for table in section.tables
        ],
    }
