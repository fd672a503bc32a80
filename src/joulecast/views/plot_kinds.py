"""Kinds of plots that several reports have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from joulecast.fronts import find_front
from joulecast.views.style import BLUE, GREY, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class FrontPoint:
    """A candidate: its energy, and the score or duration that is traded for it."""

    label: str
    value: float
    energy_j: float
    interval_j: tuple[float, float]


def draw_front(
    axes: Axes,
    points: Sequence[FrontPoint],
    *,
    value: str = "Score",
    unit: str = "",
    is_higher_better: bool = True,
    budget_j: float | None = None,
    energy: str = "Energy per sample",
    others: str = "other combinations",
) -> None:
    """Draw energies with intervals against their values; the Pareto front is a staircase."""
    sign = -1.0 if is_higher_better else 1.0
    flags = find_front([(sign * point.value, point.energy_j) for point in points])
    front = sorted((p for p, on in zip(points, flags, strict=True) if on), key=lambda p: p.value)
    behind = [point for point, on in zip(points, flags, strict=True) if not on]
    if behind:
        _draw_points(axes, behind, fmt="x", color=GREY, label=others)
    x, y = [front[0].value], [front[0].energy_j]
    for before, after in pairwise(front):
        # Between two points the better one is needed, at its energy.
        x += [before.value if is_higher_better else after.value, after.value]
        y += [after.energy_j if is_higher_better else before.energy_j, after.energy_j]
    axes.plot(x, y, color=BLUE)
    _draw_points(axes, front, fmt="o", color=BLUE, label="Pareto front")
    for point in points:
        axes.annotate(
            point.label,
            (point.value, point.energy_j),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
        )
    if budget_j is not None:
        axes.axhline(budget_j, color=RED, linestyle="--", label="energy budget")
    axes.set_ylim(bottom=0.0)
    label_axis(axes.xaxis, value, unit)
    label_axis(axes.yaxis, energy, "J")
    axes.legend()


def label_axis(axis: Any, title: str, unit: str = "") -> None:
    """Name an axis; values with a unit get SI prefixes."""
    from matplotlib.ticker import EngFormatter

    axis.set_label_text(title)
    if unit:
        axis.set_major_formatter(EngFormatter(unit))


def _draw_points(axes: Axes, points: Sequence[FrontPoint], **style: Any) -> None:
    errors = [
        [point.energy_j - point.interval_j[0] for point in points],
        [point.interval_j[1] - point.energy_j for point in points],
    ]
    values, energies = [p.value for p in points], [p.energy_j for p in points]
    axes.errorbar(values, energies, errors, linestyle="none", elinewidth=0.8, capsize=2, **style)
