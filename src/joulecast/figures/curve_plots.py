"""What an estimator thinks of a layer: its curve over the widths, its doubt, and where it is off.

``sample_curve`` asks a Gaussian process for everything that these pictures need; whoever has other
curves fills a ``SampledCurve`` by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Dots, Floats, Line, Mark, Surface
from joulecast.figures.picture import Axis, Panel, Picture, need_some, pick_bounds
from joulecast.figures.style import BLUE, FAINT, INK, RED
from joulecast.units import format_energy

if TYPE_CHECKING:
    from joulecast.gp.regression import Gp

Widths = tuple[float, ...]

# A band of so many deviations holds 95 %.
_BAND = 1.96
_GRID = {1: 121, 2: 25}
_WORDS = {"cin": "input channels", "cout": "output channels", "hidden": "hidden size"}


@dataclass(frozen=True)
class CurvePoint:
    """A place of a curve that was looked at: what was seen there, and what the curve says."""

    widths: Widths
    seen_j: float
    curve_j: float

    @property
    def difference_percent(self) -> float:
        """How far the curve is above what was seen."""
        return 100.0 * (self.curve_j / self.seen_j - 1.0) if self.seen_j else 0.0


@dataclass(frozen=True)
class SampledCurve:
    """A fitted curve on a grid, the points it rests on, and points that test it.

    Attributes:
        features: What the widths are called, one or two.
        axes: For each width the places of the grid.
        means_j: What the curve says, in the order of ``itertools.product(*axes)``.
        sds_j: How unsure it is there.
    """

    label: str
    features: tuple[str, ...]
    axes: tuple[Floats, ...]
    means_j: Floats
    sds_j: Floats
    profiled: tuple[CurvePoint, ...] = ()
    tests: tuple[CurvePoint, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.features) <= 2 or len(self.axes) != len(self.features):
            names = ", ".join(self.features) or "none"
            raise InputError(f"{self.label}: widths are {names}; one or two can be drawn")
        need_some(self.means_j, f"the grid points of {self.label}")


def sample_curve(
    gp: Gp,
    label: str,
    features: Sequence[str],
    tests: Mapping[Widths, float] | None = None,
) -> SampledCurve:
    """What a Gaussian process says between the smallest and largest widths it knows.

    Args:
        gp: The fitted process.
        label: What it is of.
        features: What its widths are called.
        tests: Joules that were seen at other widths.
    """
    import numpy as np

    count = _GRID.get(len(features), 2)
    lows, highs = gp.widths.min(axis=0), gp.widths.max(axis=0)
    axes = tuple(tuple(np.linspace(a, b, count).tolist()) for a, b in zip(lows, highs, strict=True))
    grid = np.array(list(itertools.product(*axes)))
    means, sds = gp.predict(grid)[0], gp.deviations(grid)
    known = list(zip(gp.widths.tolist(), gp.values.tolist(), strict=True))
    return SampledCurve(
        label,
        tuple(features),
        axes,
        tuple(means.tolist()),
        tuple(sds.tolist()),
        _ask(gp, known),
        _ask(gp, list((tests or {}).items())),
    )


def draw_curve(
    curve: SampledCurve, *, title: str = "", about: str = "", provenance: str = "measured"
) -> Picture:
    """The curve with what it rests on and what tests it; over two widths a surface."""
    panel = _draw_sheet(curve) if len(curve.features) == 2 else _draw_band(curve)
    return Picture(title or f"Energy of {curve.label}", (panel,), about, provenance)


def draw_differences(
    curve: SampledCurve, *, title: str = "", about: str = "", provenance: str = "measured"
) -> Picture:
    """How far the curve is from what was seen, at the points that test it; else where it rests."""
    points = curve.tests or curve.profiled
    need_some(points, f"the points of {curve.label}")
    columns = tuple(zip(*(point.widths for point in points), strict=True))
    off = tuple(point.difference_percent for point in points)
    name = "test" if curve.tests else "profiled"
    notes = tuple(_describe(curve, point) for point in points)
    if len(columns) == 2:
        marks: tuple[Mark, ...] = (
            Dots(
                name,
                *columns,
                INK,
                notes=notes,
                shades=off,
                shade_title="curve above what was seen (%)",
            ),
        )
        y = _name_axis(curve, 1)
    else:
        ends = curve.axes[0][0], curve.axes[0][-1]
        zero = Line("no difference", ends, (0.0, 0.0), FAINT, dashed=True)
        marks = (zero, Dots(name, columns[0], off, RED, notes=notes, shape="cross"))
        y = Axis("curve above what was seen", "%")
    panel = Panel(_name_axis(curve, 0), y, marks)
    return Picture(title or f"Where {curve.label} is off", (panel,), about, provenance)


def draw_guided_point(
    before: SampledCurve,
    after: SampledCurve,
    *,
    title: str = "",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """A curve of one width before and after it was measured where it was least sure."""
    for curve in (before, after):
        if len(curve.features) != 1:
            raise InputError(
                f"{curve.label} has {len(curve.features)} widths: give one of one width"
            )
    sds = before.sds_j
    worst = before.axes[0][sds.index(max(sds))]
    known = {point.widths for point in before.profiled}
    new = tuple(point for point in after.profiled if point.widths not in known)
    ends = [end for curve in (before, after) for column in _find_ends(curve) for end in column]
    low, high = pick_bounds(ends, log=False)
    panels = (
        _draw_band(before, worst=worst, title=_count(before)),
        _draw_band(after, new=new, title=_count(after)),
    )
    same = tuple(replace(panel, y=replace(panel.y, low=low, high=high)) for panel in panels)
    title = title or f"Measured where it is least sure: {before.label}"
    return Picture(title, same, about, provenance)


def _draw_band(
    curve: SampledCurve,
    *,
    worst: float | None = None,
    new: Sequence[CurvePoint] = (),
    title: str = "",
) -> Panel:
    (x,) = curve.axes
    lows, highs = _find_ends(curve)
    marks: list[Mark] = [Band("95 % of the curve", x, lows, highs, BLUE)]
    marks.append(Line("curve", x, curve.means_j, BLUE))
    if worst is not None:
        marks.append(Line("least sure here", (worst, worst), (min(lows), max(highs)), RED, True))
    old = [point for point in curve.profiled if point not in new]
    marks += _dot(curve, "profiled", old, INK, "circle")
    marks += _dot(curve, "newly profiled", new, RED, "star")
    marks += _dot(curve, "test", curve.tests, RED, "cross")
    return Panel(_name_axis(curve, 0), Axis("energy of a step", "J", True), tuple(marks), title)


def _find_ends(curve: SampledCurve) -> tuple[Floats, Floats]:
    """Lower and upper edge of the band around a curve."""
    pairs = list(zip(curve.means_j, curve.sds_j, strict=True))
    return tuple(m - _BAND * sd for m, sd in pairs), tuple(m + _BAND * sd for m, sd in pairs)


def _draw_sheet(curve: SampledCurve) -> Panel:
    across, along = curve.axes
    # The product runs along the second width fastest; a sheet wants a row for each of the second.
    rows = tuple(curve.means_j[place :: len(along)] for place in range(len(along)))
    marks: list[Mark] = [Surface("curve", across, along, rows, BLUE)]
    marks += _dot(curve, "profiled", curve.profiled, INK, "circle")
    marks += _dot(curve, "test", curve.tests, RED, "cross")
    x, y = (_name_axis(curve, place) for place in (0, 1))
    return Panel(x, y, tuple(marks), z=Axis("energy of a step", "J", True))


def _name_axis(curve: SampledCurve, place: int) -> Axis:
    name = curve.features[place]
    return Axis(_WORDS.get(name, name))


def _dot(
    curve: SampledCurve, name: str, points: Sequence[CurvePoint], colour: str, shape: str
) -> list[Mark]:
    if not points:
        return []
    columns = tuple(zip(*(point.widths for point in points), strict=True))
    seen = tuple(point.seen_j for point in points)
    notes = tuple(_describe(curve, point) for point in points)
    if len(columns) == 1:
        return [Dots(name, columns[0], seen, colour, notes=notes, shape=shape)]
    x, y = columns
    return [Dots(name, x, y, colour, seen, notes=notes, shape=shape)]


def _describe(curve: SampledCurve, point: CurvePoint) -> str:
    at = ", ".join(f"{n} {w:g}" for n, w in zip(curve.features, point.widths, strict=True))
    return (
        f"{curve.label} at {at}\nseen {format_energy(point.seen_j)}, "
        f"curve {format_energy(point.curve_j)}, {point.difference_percent:+.1f} %"
    )


def _count(curve: SampledCurve) -> str:
    return f"after {len(curve.profiled)} points"


def _ask(gp: Gp, seen: Sequence[tuple[Sequence[float], float]]) -> tuple[CurvePoint, ...]:
    import numpy as np

    if not seen:
        return ()
    means = gp.predict(np.array([list(widths) for widths, _ in seen], dtype=float))[0]
    return tuple(
        CurvePoint(tuple(map(float, widths)), energy_j, float(mean))
        for (widths, energy_j), mean in zip(seen, means, strict=True)
    )
