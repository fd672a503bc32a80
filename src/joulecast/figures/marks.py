"""Marks of a panel: points, lines, bands, bars, surfaces and labels, with final coordinates.

A backend draws them where they are and chooses only pixels. Bars carry their position and base, so
stacks and groups need no further option. Marks with the same name are one series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError

Floats = tuple[float, ...]


@dataclass(frozen=True)
class Points:
    """Points, optionally with vertical error bars from ``low`` to ``high``.

    Attributes:
        hover_texts: What the pointer shows over each point.
        marker: ``circle``, ``diamond``, ``square``, ``triangle``, ``cross`` or ``star``.
        colour_values: Values mapped to a blue–white–red scale around 0, instead of ``colour``.
        colourbar_title: What the colour values are, with their unit.
    """

    name: str
    x: Floats
    y: Floats
    colour: str
    z: Floats = ()
    low: Floats = ()
    high: Floats = ()
    hover_texts: tuple[str, ...] = ()
    marker: str = "circle"
    colour_values: Floats = ()
    colourbar_title: str = ""

    def __post_init__(self) -> None:
        per_point = (self.z, self.low, self.high, self.hover_texts, self.colour_values)
        _check_lengths(self.name, self.x, (self.y, *filter(None, per_point)))
        _check_finite(self.name, self.x, self.y, self.z, self.low, self.high, self.colour_values)


@dataclass(frozen=True)
class Line:
    """A line through points; a step line changes its value at the next point."""

    name: str
    x: Floats
    y: Floats
    colour: str
    is_dashed: bool = False
    is_step: bool = False
    hover_texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.x, (self.y, *filter(None, (self.hover_texts,))))
        _check_finite(self.name, self.x, self.y)


@dataclass(frozen=True)
class Band:
    """The area between two lines."""

    name: str
    x: Floats
    low: Floats
    high: Floats
    colour: str

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.x, (self.low, self.high))
        _check_finite(self.name, self.x, self.low, self.high)


@dataclass(frozen=True)
class Bars:
    """Vertical bars.

    Attributes:
        x: Centre of each bar.
        y: Height of each bar above its base.
        base: Where each bar starts; 0 if empty.
        low: Lower end of the error bar at each top; ``high`` the upper end.
        labels: Text above each bar.
    """

    name: str
    x: Floats
    y: Floats
    colour: str
    width: float = 0.8
    base: Floats = ()
    low: Floats = ()
    high: Floats = ()
    hover_texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        per_bar = (self.base, self.low, self.high, self.hover_texts, self.labels)
        _check_lengths(self.name, self.x, (self.y, *filter(None, per_bar)))
        _check_finite(self.name, self.x, self.y, self.base, self.low, self.high)


@dataclass(frozen=True)
class HorizontalBars:
    """Horizontal bars, each from ``x`` to ``end`` and centred on ``y``, with text inside."""

    name: str
    x: Floats
    end: Floats
    y: Floats
    colour: str
    height: float = 0.8
    hover_texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        per_bar = (self.hover_texts, self.labels)
        _check_lengths(self.name, self.x, (self.end, self.y, *filter(None, per_bar)))
        _check_finite(self.name, self.x, self.end, self.y)


@dataclass(frozen=True)
class Surface:
    """A surface over a grid: ``z`` has a row for each ``y`` with a value for each ``x``.

    Attributes:
        opacity: From 0, which cannot be seen, to 1, which hides what is behind.
    """

    name: str
    x: Floats
    y: Floats
    z: tuple[Floats, ...]
    colour: str
    opacity: float = 0.85

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.y, (self.z,))
        _check_lengths(self.name, self.x, self.z)
        _check_finite(self.name, self.x, self.y, *self.z)


@dataclass(frozen=True)
class Label:
    """The name of a series, written to the right of each position instead of in the legend."""

    name: str
    x: Floats
    y: Floats
    colour: str

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.x, (self.y,))
        _check_finite(self.name, self.x, self.y)


Mark = Points | Line | Band | Bars | HorizontalBars | Surface | Label


def _check_lengths(name: str, x: Sequence[object], others: Iterable[Sequence[object]]) -> None:
    for other in others:
        if len(other) != len(x):
            raise InputError(
                f"{name}: {len(x)} positions but {len(other)} values: give as many of both"
            )


def _check_finite(name: str, *columns: Floats) -> None:
    values: Iterator[float] = (value for column in columns for value in column)
    for value in values:
        if not math.isfinite(value):
            raise InputError(f"{name}: {value} cannot be plotted: leave that point out")
