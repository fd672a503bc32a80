"""Describe a plot once, for any backend: panels, axes and marks.

    Plot ─┬─ Panel ─┬─ Axis x, y (and z for a 3-D panel)
          │         └─ marks: Points, Line, Band, Bars, HorizontalBars, Surface, Label
          └─ Panel …

Marks with the same name are one series with one legend entry, also across panels. A series with a
Label needs no legend entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Label, Mark
from joulecast.records import PROVENANCES, weakest_provenance

# Ratio of the largest to the smallest value from which an axis is logarithmic.
LOG_RATIO = 30.0
# Ratio above which only powers of ten are labelled.
_POWERS_ONLY_RATIO = 300.0
_SI_PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


@dataclass(frozen=True)
class Axis:
    """An axis of a panel.

    Attributes:
        title: What it shows, without the unit.
        unit: ``J``, ``s``, ``%``; empty for plain numbers.
        has_si_prefixes: Tick labels may use mJ, kJ and so on.
        is_log: Logarithmic; then ``low`` and ``high`` are given and positive.
        low: Lower end; None leaves it to the backend. ``high`` likewise.
        is_integer: Ticks are whole numbers, as for channels.
        categories: Labels of the positions 0, 1, 2 … instead of numbers.
        has_tall_rows: Each category has a row with its own content, and needs more height.
    """

    title: str
    unit: str = ""
    has_si_prefixes: bool = False
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    is_integer: bool = False
    categories: tuple[str, ...] = ()
    has_tall_rows: bool = False

    @property
    def label(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def tick_suffix(self) -> str:
        """The unit after each tick label; a long unit is only in the axis label."""
        return self.unit if self.has_si_prefixes and len(self.unit) <= 2 else ""

    @property
    def log_ticks(self) -> dict[float, str]:
        """Tick positions and labels of a logarithmic axis; empty for any other."""
        if not self.is_log or self.low is None or self.high is None:
            return {}
        first, last = (math.floor(math.log10(end)) for end in (self.low, self.high))
        digits = (1, 2, 5) if self.high / self.low < _POWERS_ONLY_RATIO else (1,)
        ticks = (float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits)
        return {tick: self._format_tick(tick) for tick in ticks if self.low <= tick <= self.high}

    def _format_tick(self, tick: float) -> str:
        if not self.has_si_prefixes:
            return f"{tick:g}"
        power = max(-3, min(4, math.floor(math.log10(tick) / 3 + 1e-9)))
        return f"{tick / 1000.0**power:g} {_SI_PREFIXES[power]}{self.tick_suffix}".rstrip()

    @property
    def category_letters(self) -> int:
        """How many letters wide the categories are side by side."""
        return (1 + max(map(len, self.categories), default=0)) * len(self.categories)


@dataclass(frozen=True)
class Panel:
    """A pair of axes and its marks, the first mark lowest; with ``z`` a 3-D panel."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    title: str = ""
    z: Axis | None = None
    is_square: bool = False


@dataclass(frozen=True)
class Caption:
    """The text above a plot.

    Attributes:
        title: The title; empty for the default title of the plot.
        subtitle: A smaller line below the title.
        provenance: Where the numbers come from; shown unless they were measured.
    """

    title: str = ""
    subtitle: str = ""
    provenance: str = "measured"


@dataclass(frozen=True)
class Plot:
    """Panels side by side under a caption."""

    caption: Caption
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        provenance = self.caption.provenance
        if provenance not in PROVENANCES:
            known = ", ".join(PROVENANCES)
            raise InputError(f"provenance is {provenance!r}: give one of {known}")

    @property
    def heading(self) -> str:
        """The title, with the provenance of data that were not measured."""
        provenance = self.caption.provenance
        note = "" if provenance == "measured" else f" ({provenance})"
        return self.caption.title + note

    @property
    def columns(self) -> int:
        """How many panels fit side by side; 3-D panels need more space."""
        most = 3 if all(panel.z is None for panel in self.panels) else 2
        return min(most, len(self.panels))

    @property
    def series(self) -> tuple[str, ...]:
        """Names of all series in order."""
        return tuple(dict.fromkeys(mark.name for panel in self.panels for mark in panel.marks))

    @property
    def legend(self) -> dict[str, Mark]:
        """The mark shown in the legend for each series without a label: a line before its band."""
        marks = [mark for panel in self.panels for mark in panel.marks]
        first = {mark.name: mark for mark in reversed(marks)}
        solid = {mark.name: mark for mark in reversed(marks) if not isinstance(mark, Band)}
        labelled = {mark.name for mark in marks if isinstance(mark, Label)}
        return {name: solid.get(name, first[name]) for name in self.series if name not in labelled}


def make_plot(
    panels: Iterable[Panel], caption: Caption, default_title: str, default_subtitle: str = ""
) -> Plot:
    """Return a plot whose caption falls back to a default title and subtitle."""
    complete = replace(
        caption,
        title=caption.title or default_title,
        subtitle=caption.subtitle or default_subtitle,
    )
    return Plot(complete, tuple(panels))


def combine_plots(title: str, plots: Sequence[Plot], subtitle: str = "") -> Plot:
    """Return the panels of several plots as one plot, each under its own title."""
    require_data(plots, "plot")
    panels = tuple(
        replace(panel, title=panel.title or plot.caption.title)
        for plot in plots
        for panel in plot.panels
    )
    subtitles = dict.fromkeys(plot.caption.subtitle for plot in plots if plot.caption.subtitle)
    provenance = weakest_provenance(plot.caption.provenance for plot in plots)
    return Plot(Caption(title, subtitle or "; ".join(subtitles), provenance), panels)


def require_data(rows: Iterable[object], what: str) -> None:
    """Raise InputError if there is nothing to plot."""
    if not any(True for _ in rows):
        raise InputError(f"nothing to plot: give at least one {what}")


def needs_log_axis(values: Iterable[float]) -> bool:
    """Return whether positive values are so far apart that a linear axis hides the small ones."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) >= LOG_RATIO


def fit_axis(
    title: str,
    values: Sequence[float],
    unit: str = "",
    *,
    has_si_prefixes: bool = False,
    starts_at_zero: bool = False,
) -> Axis:
    """Return an axis for some values: logarithmic if they span decades, else linear."""
    if needs_log_axis(values):
        low, high = choose_limits(values, is_log=True)
        return Axis(title, unit, has_si_prefixes, is_log=True, low=low, high=high)
    return Axis(title, unit, has_si_prefixes, low=0.0 if starts_at_zero else None)


def choose_limits(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    """Return axis limits for some values, with a margin."""
    low, high = min(values), max(values)
    if is_log:
        margin = (high / low) ** 0.06 if high > low else 2.0
        return low / margin, high * margin
    margin = 0.06 * (high - low) or abs(high) or 1.0
    return (0.0 if 0 <= low < 0.5 * high else low - margin), high + margin
