"""Plot errors of estimates against a property of the networks, such as FLOPs or depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Line, Mark, Points
from joulecast.figures.plot import Axis, Caption, Panel, Plot, make_plot, require_data
from joulecast.views.style import MUTED, choose_colours, choose_markers


@dataclass(frozen=True)
class ErrorPoint:
    """The error of one estimate of a network, and the property that it is plotted against."""

    net: str
    estimator: str
    size: float
    error_percent: float


def plot_error_trend(
    points: Sequence[ErrorPoint],
    x: Axis,
    caption: Caption = Caption(),
    *,
    is_absolute: bool = False,
) -> Plot:
    """Plot a point per network and estimator.

    Args:
        points: The errors.
        x: Axis of the property.
        caption: What is written above.
        is_absolute: Plot the size of errors, not their sign.
    """
    require_data(points, "error")
    groups: dict[str, list[ErrorPoint]] = {}
    for point in points:
        groups.setdefault(point.estimator, []).append(point)
    colours, markers = choose_colours(groups), choose_markers(groups)
    sizes = [point.size for point in points]
    ends = (min(sizes), max(sizes))
    zero = Line("no error", ends, (0.0, 0.0), MUTED, is_dashed=True)
    marks: list[Mark] = [] if is_absolute else [zero]
    for name, group in groups.items():
        errors = tuple(abs(p.error_percent) if is_absolute else p.error_percent for p in group)
        marks.append(
            Points(
                name,
                tuple(point.size for point in group),
                errors,
                colours[name],
                hover_texts=tuple(f"{p.net}\n{name}: {p.error_percent:+.1f} %" for p in group),
                marker=markers[name],
            )
        )
    title = "Absolute percentage error" if is_absolute else "Error of the estimate"
    y = Axis(title, "%", low=0.0) if is_absolute else Axis(title, "%")
    return make_plot((Panel(x, y, tuple(marks)),), caption, f"Error against {x.title.lower()}")
