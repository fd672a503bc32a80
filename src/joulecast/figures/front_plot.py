"""Fronts as pictures: what is worth its joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from joulecast.figures.marks import Dots, Line, Mark, Tag
from joulecast.figures.picture import Axis, Panel, Picture, fit_axis, need_some, pick_bounds
from joulecast.figures.style import BLUE, GREY, RED
from joulecast.fronts import find_front
from joulecast.units import format_energy

_FRONT, _OTHERS, _BUDGET = "on the front", "other trials", "budget"


@dataclass(frozen=True)
class Priced:
    """Something with a worth and a price in joules.

    Attributes:
        worth: Quality, or seconds: what is on the other axis.
        interval_j: Where its joules are, as probably as was asked for.
        tag: A short word beside it, where it is on the front.
    """

    name: str
    worth: float
    energy_j: float
    interval_j: tuple[float, float]
    tag: str = ""


def draw_front(
    points: Sequence[Priced],
    *,
    worth: str = "score",
    unit: str = "",
    more_is_better: bool = True,
    budget_j: float | None = None,
    energy: str = "energy",
    others: str = _OTHERS,
    title: str = "Quality against energy",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """Joules with their intervals along what they buy; the front is a staircase.

    Args:
        points: What to show.
        worth: What joules buy; ``unit`` its unit.
        unit: Unit of the worth.
        more_is_better: Whether a larger worth is better.
        budget_j: A line that was not to be passed.
        energy: What the joules are of.
        others: What points behind the front are called.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some(points, "the points")
    sign = -1.0 if more_is_better else 1.0
    on = find_front([(sign * point.worth, point.energy_j) for point in points])
    front = sorted(
        (point for point, best in zip(points, on, strict=True) if best),
        key=lambda point: point.worth,
    )
    behind = [point for point, best in zip(points, on, strict=True) if not best]
    marks: list[Mark] = []
    if budget_j is not None:
        low, high = _pick_ends(points)
        marks.append(Line(_BUDGET, (low, high), (budget_j, budget_j), RED, dashed=True))
    if behind:
        marks.append(_place(others, behind, GREY, worth, "cross"))
    marks.append(_make_stairs(front, more_is_better))
    marks.append(_place(_FRONT, front, BLUE, worth, "circle"))
    marks += [Tag(one.tag, (one.worth,), (one.energy_j,), BLUE) for one in front if one.tag]
    x = Axis(worth, unit, prefixes=bool(unit))
    ends = [end for point in points for end in (*point.interval_j, point.energy_j)]
    y = fit_axis(energy, [*ends, *([budget_j] if budget_j else [])], "J", prefixes=True, zero=True)
    return Picture(title, (Panel(x, y, tuple(marks)),), about, provenance)


def _place(name: str, points: Sequence[Priced], colour: str, worth: str, shape: str) -> Dots:
    return Dots(
        name,
        tuple(point.worth for point in points),
        tuple(point.energy_j for point in points),
        colour,
        low=tuple(point.interval_j[0] for point in points),
        high=tuple(point.interval_j[1] for point in points),
        notes=tuple(
            f"{point.name}\n{worth} {point.worth:.4g}, {format_energy(point.energy_j)}"
            for point in points
        ),
        shape=shape,
    )


def _make_stairs(front: Sequence[Priced], more_is_better: bool) -> Line:
    """What has to be paid at least: level, then up (or down) where the next one begins."""
    x, y = [front[0].worth], [front[0].energy_j]
    for before, after in pairwise(front):
        # Up to a better one costs what that one costs; between two, the better one is needed.
        corner = (
            (before.worth, after.energy_j) if more_is_better else (after.worth, before.energy_j)
        )
        x += [corner[0], after.worth]
        y += [corner[1], after.energy_j]
    return Line(_FRONT, tuple(x), tuple(y), BLUE)


def _pick_ends(points: Sequence[Priced]) -> tuple[float, float]:
    return pick_bounds([point.worth for point in points], log=False)
