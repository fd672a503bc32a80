"""A picture described once, for any backend to draw: panels, axes and what lies on them.

    Picture ─┬─ Panel ─┬─ Axis x, y (and z: then the panel is a room, seen from above)
             │         └─ marks: Dots, Line, Band, Bars, Spans, Surface, Tag
             └─ Panel …

Marks (marks.py) of the same name are one series: one entry of the legend, whatever their panel,
unless a Tag says the name where the series is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Mark, Tag
from joulecast.records import PROVENANCES, weakest_provenance

# How far apart, largest over smallest, values must be for a logarithmic axis.
DECADES = 30.0
# Above this only whole decades are marked.
_CROWDED = 300.0
_PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


@dataclass(frozen=True)
class Axis:
    """What runs along a side of a panel.

    Attributes:
        title: What it is, without its unit.
        unit: ``J``, ``s``, ``%``; empty for plain numbers.
        prefixes: Whether ticks may say mJ and kJ.
        log: Logarithmic; then ``low`` and ``high`` are given and positive.
        low: Where it begins; None leaves that to the backend. ``high`` likewise.
        labels: Names for the places 0, 1, 2 … instead of numbers.
        roomy: Each of those places holds a small picture of its own and needs space for it.
    """

    title: str
    unit: str = ""
    prefixes: bool = False
    log: bool = False
    low: float | None = None
    high: float | None = None
    labels: tuple[str, ...] = ()
    roomy: bool = False

    @property
    def heading(self) -> str:
        """The title with its unit, as it stands beside the axis."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def suffix(self) -> str:
        """What stands behind each tick: a short unit; a long one stands in the heading alone."""
        return self.unit if self.prefixes and len(self.unit) <= 2 else ""

    @property
    def ticks(self) -> dict[float, str]:
        """Where a logarithmic axis is marked, and with which words; empty for any other."""
        if not self.log or self.low is None or self.high is None:
            return {}
        first, last = (math.floor(math.log10(end)) for end in (self.low, self.high))
        marked = (1, 2, 5) if self.high / self.low < _CROWDED else (1,)
        places = (float(f"{one}e{power}") for power in range(first, last + 1) for one in marked)
        return {place: self._say(place) for place in places if self.low <= place <= self.high}

    def _say(self, place: float) -> str:
        if not self.prefixes:
            return f"{place:g}"
        power = max(-3, min(4, math.floor(math.log10(place) / 3 + 1e-9)))
        return f"{place / 1000.0**power:g} {_PREFIXES[power]}{self.suffix}".rstrip()

    @property
    def letters(self) -> int:
        """How many letters must fit side by side for labels to stand upright."""
        return (1 + max(map(len, self.labels), default=0)) * len(self.labels)


@dataclass(frozen=True)
class Panel:
    """One pair of axes and what lies on them, the first mark lowest."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    title: str = ""
    z: Axis | None = None
    square: bool = False


@dataclass(frozen=True)
class Picture:
    """Panels side by side under a title.

    Attributes:
        about: A smaller line under the title.
        provenance: What the numbers rest on; said in the heading unless they were measured.
    """

    title: str
    panels: tuple[Panel, ...]
    about: str = ""
    provenance: str = "measured"

    def __post_init__(self) -> None:
        if self.provenance not in PROVENANCES:
            known = ", ".join(PROVENANCES)
            raise InputError(f"provenance is {self.provenance!r}: give one of {known}")

    @property
    def heading(self) -> str:
        """The title, and what the numbers rest on where that is not a meter."""
        said = "" if self.provenance == "measured" else f" ({self.provenance})"
        return self.title + said

    @property
    def columns(self) -> int:
        """How many panels stand side by side; rooms need more space."""
        most = 3 if all(panel.z is None for panel in self.panels) else 2
        return min(most, len(self.panels))

    @property
    def series(self) -> tuple[str, ...]:
        """Names of everything that is drawn, each once, in order."""
        return tuple(dict.fromkeys(mark.name for panel in self.panels for mark in panel.marks))

    @property
    def legend(self) -> dict[str, Mark]:
        """For each series without a tag the mark that stands for it: its line before its band."""
        marks = [mark for panel in self.panels for mark in panel.marks]
        first = {mark.name: mark for mark in reversed(marks)}
        solid = {mark.name: mark for mark in reversed(marks) if not isinstance(mark, Band)}
        tagged = {mark.name for mark in marks if isinstance(mark, Tag)}
        return {name: solid.get(name, first[name]) for name in self.series if name not in tagged}


def join_pictures(title: str, pictures: Sequence[Picture], about: str = "") -> Picture:
    """Several pictures as the panels of one, each under its own title."""
    need_some(pictures, "the pictures")
    panels = tuple(
        replace(panel, title=panel.title or picture.title)
        for picture in pictures
        for panel in picture.panels
    )
    words = about or "; ".join(dict.fromkeys(one.about for one in pictures if one.about))
    return Picture(title, panels, words, weakest_provenance(one.provenance for one in pictures))


def need_some(rows: Iterable[object], what: str) -> None:
    """Refuse to draw nothing."""
    if not any(True for _ in rows):
        raise InputError(f"there is nothing to draw: give at least one of {what}")


def spans_decades(values: Iterable[float]) -> bool:
    """Whether values are so far apart that only a logarithmic axis shows the small ones."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) >= DECADES


def fit_axis(
    title: str,
    values: Sequence[float],
    unit: str = "",
    *,
    prefixes: bool = False,
    zero: bool = False,
) -> Axis:
    """An axis for some values: logarithmic where they span decades, else from ``zero`` if asked."""
    if spans_decades(values):
        return Axis(title, unit, prefixes, True, *pick_bounds(values, log=True))
    return Axis(title, unit, prefixes, low=0.0 if zero else None)


def pick_bounds(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Where an axis may begin and end for these values, with a little air."""
    low, high = min(values), max(values)
    if log:
        air = (high / low) ** 0.06 if high > low else 2.0
        return low / air, high * air
    air = 0.06 * (high - low) or abs(high) or 1.0
    return (0.0 if 0 <= low < 0.5 * high else low - air), high + air
