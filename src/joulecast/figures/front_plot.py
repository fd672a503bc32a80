"""Plot energy against score or time, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from joulecast.figures.marks import Label, Line, Mark, Points
from joulecast.figures.plot import (
    Axis,
    Caption,
    Panel,
    Plot,
    choose_limits,
    fit_axis,
    make_plot,
    require_data,
)
from joulecast.fronts import find_front
from joulecast.units import format_energy
from joulecast.views.style import BLUE, GREY, RED

_FRONT, _BUDGET = "Pareto front", "energy budget"


@dataclass(frozen=True)
class FrontPoint:
    """A candidate with its energy and the quantity that is traded for it.

    Attributes:
        value: Score, or duration: the quantity on the x axis.
        interval_j: Ends of the credible interval of the energy.
        label: Short text beside the point, shown if it is on the front.
    """

    name: str
    value: float
    energy_j: float
    interval_j: tuple[float, float]
    label: str = ""


@dataclass(frozen=True)
class FrontPlotOptions:
    """Options of ``plot_pareto_front``.

    Attributes:
        value_title: Title of the x axis; ``value_unit`` its unit.
        is_higher_better: Whether a higher value is better.
        budget_j: Energy budget, drawn as a line.
        energy_title: Title of the energy axis.
        others: Name of the points behind the front.
    """

    value_title: str = "Score"
    value_unit: str = ""
    is_higher_better: bool = True
    budget_j: float | None = None
    energy_title: str = "Energy"
    others: str = "other trials"


def plot_pareto_front(
    points: Sequence[FrontPoint],
    options: FrontPlotOptions = FrontPlotOptions(),
    caption: Caption = Caption(),
) -> Plot:
    """Plot energies with intervals against their values; the front is a staircase."""
    require_data(points, "point")
    sign = -1.0 if options.is_higher_better else 1.0
    is_on_front = find_front([(sign * point.value, point.energy_j) for point in points])
    flagged = list(zip(points, is_on_front, strict=True))
    front = sorted((point for point, on in flagged if on), key=lambda point: point.value)
    behind = [point for point, on in flagged if not on]
    marks: list[Mark] = []
    budget_j = options.budget_j
    if budget_j is not None:
        ends = choose_limits([point.value for point in points], is_log=False)
        marks.append(Line(_BUDGET, ends, (budget_j, budget_j), RED, is_dashed=True))
    if behind:
        marks.append(_make_points(options.others, behind, GREY, "cross", options))
    marks.append(_make_staircase(front, options.is_higher_better))
    marks.append(_make_points(_FRONT, front, BLUE, "circle", options))
    marks += [Label(p.label, (p.value,), (p.energy_j,), BLUE) for p in front if p.label]
    x = Axis(options.value_title, options.value_unit, has_si_prefixes=bool(options.value_unit))
    energies_j = [end for point in points for end in (*point.interval_j, point.energy_j)]
    energies_j += [budget_j] if budget_j else []
    y = fit_axis(options.energy_title, energies_j, "J", has_si_prefixes=True, starts_at_zero=True)
    title = f"{options.energy_title} against {options.value_title.lower()}"
    return make_plot((Panel(x, y, tuple(marks)),), caption, title)


def _make_points(
    name: str, points: Sequence[FrontPoint], colour: str, marker: str, options: FrontPlotOptions
) -> Points:
    return Points(
        name,
        tuple(point.value for point in points),
        tuple(point.energy_j for point in points),
        colour,
        low=tuple(point.interval_j[0] for point in points),
        high=tuple(point.interval_j[1] for point in points),
        hover_texts=tuple(_describe_point(point, options) for point in points),
        marker=marker,
    )


def _describe_point(point: FrontPoint, options: FrontPlotOptions) -> str:
    low, high = map(format_energy, point.interval_j)
    value = f"{options.value_title} {point.value:.4g} {options.value_unit}".rstrip()
    return f"{point.name}\n{value}\n{format_energy(point.energy_j)} (interval {low}–{high})"


def _make_staircase(front: Sequence[FrontPoint], is_higher_better: bool) -> Line:
    """Return the least energy needed for each value."""
    x, y = [front[0].value], [front[0].energy_j]
    for before, after in pairwise(front):
        # Between two points the better one is needed, at its energy.
        corner = (
            (before.value, after.energy_j) if is_higher_better else (after.value, before.energy_j)
        )
        x += [corner[0], after.value]
        y += [corner[1], after.energy_j]
    return Line(_FRONT, tuple(x), tuple(y), BLUE)
