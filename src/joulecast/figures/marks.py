"""What lies on a panel: points, lines, bands, bars, spans, sheets and tags, with final numbers.

A backend draws them where they are and decides nothing but pixels. Bars say where they stand and on
what, so stacks and groups need no word. Marks of the same name are one series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError

Floats = tuple[float, ...]


@dataclass(frozen=True)
class Dots:
    """Points, with bars from ``low`` to ``high`` and a line of hover text each where given.

    Attributes:
        shape: ``circle``, ``diamond``, ``square``, ``triangle``, ``cross`` or ``star``.
        shades: Numbers that colour the points from blue (negative) to red, instead of ``colour``.
        shade_title: What the shades say, with its unit.
    """

    name: str
    x: Floats
    y: Floats
    colour: str
    z: Floats = ()
    low: Floats = ()
    high: Floats = ()
    notes: tuple[str, ...] = ()
    shape: str = "circle"
    shades: Floats = ()
    shade_title: str = ""

    def __post_init__(self) -> None:
        per_point = (self.z, self.low, self.high, self.notes, self.shades)
        _check_lengths(self.name, self.x, (self.y, *filter(None, per_point)))
        _check_finite(self.name, self.x, self.y, self.z, self.low, self.high, self.shades)


@dataclass(frozen=True)
class Line:
    """A line through points; ``stepped`` goes level first, then up."""

    name: str
    x: Floats
    y: Floats
    colour: str
    dashed: bool = False
    stepped: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.x, (self.y, *filter(None, (self.notes,))))
        _check_finite(self.name, self.x, self.y)


@dataclass(frozen=True)
class Band:
    """The room between two lines."""

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
    """Upright bars.

    Attributes:
        x: Where the middle of each stands.
        y: How tall each is, from its base.
        base: What each stands on; the axis where it is empty.
        low: Where a thin bar for the doubt about its top begins, ``high`` where it ends.
        texts: Words above each.
    """

    name: str
    x: Floats
    y: Floats
    colour: str
    width: float = 0.8
    base: Floats = ()
    low: Floats = ()
    high: Floats = ()
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        per_bar = (self.base, self.low, self.high, self.notes, self.texts)
        _check_lengths(self.name, self.x, (self.y, *filter(None, per_bar)))
        _check_finite(self.name, self.x, self.y, self.base, self.low, self.high)


@dataclass(frozen=True)
class Spans:
    """Lying bars, each from ``x`` to ``end`` around the height ``y``, with words inside it."""

    name: str
    x: Floats
    end: Floats
    y: Floats
    colour: str
    height: float = 0.8
    notes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        per_span = (self.notes, self.texts)
        _check_lengths(self.name, self.x, (self.end, self.y, *filter(None, per_span)))
        _check_finite(self.name, self.x, self.end, self.y)


@dataclass(frozen=True)
class Surface:
    """A sheet over a grid: ``z`` has a row for each of ``y``, with a number for each of ``x``."""

    name: str
    x: Floats
    y: Floats
    z: tuple[Floats, ...]
    colour: str

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.y, (self.z,))
        _check_lengths(self.name, self.x, self.z)
        _check_finite(self.name, self.x, self.y, *self.z)


@dataclass(frozen=True)
class Tag:
    """The name of a series, right of each place: then no legend has to say it."""

    name: str
    x: Floats
    y: Floats
    colour: str

    def __post_init__(self) -> None:
        _check_lengths(self.name, self.x, (self.y,))
        _check_finite(self.name, self.x, self.y)


Mark = Dots | Line | Band | Bars | Spans | Surface | Tag


def _check_lengths(name: str, places: Sequence[object], others: Iterable[Sequence[object]]) -> None:
    for other in others:
        if len(other) != len(places):
            raise InputError(f"{name}: {len(places)} places but {len(other)} values: give as many")


def _check_finite(name: str, *columns: Floats) -> None:
    values: Iterator[float] = (value for column in columns for value in column)
    for value in values:
        if not math.isfinite(value):
            raise InputError(f"{name}: {value} cannot be drawn; leave that point out")
