"""Plot what accuracy costs: error against measured points or device time, and profiling time."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Bars, Floats, Label, Line, Mark, Points
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
from joulecast.units import format_duration
from joulecast.views.style import MUTED, choose_colours, choose_markers

CostCurve = Sequence[tuple[float, float]]
"""Costs in ascending order, each with the error in percent."""

MAPE = "Mean absolute percentage error"
_NOISE = "measurement noise"
# Labels are at least this share of the panel's height apart.
_LABEL_SPACING = 0.065
# A line that reaches this share of the longest one needs no dashes to its label.
_FULL_LENGTH_SHARE = 0.85


@dataclass(frozen=True)
class CostPlotOptions:
    """Options of ``plot_error_by_cost``.

    Attributes:
        noise_percent: Mean difference of two measurements of a network, drawn as a floor.
        max_percent: Upper end of the error axis; lines enter from above.
        estimator_of: For a method, the estimator whose colour and marker it takes.
        error_title: Title of the error axis.
    """

    noise_percent: float | None = None
    max_percent: float = math.inf
    estimator_of: Mapping[str, str] = field(default_factory=dict)
    error_title: str = MAPE


def plot_profiling_time(
    durations_s: Mapping[str, Mapping[str, float]], caption: Caption = Caption()
) -> Plot:
    """Plot bars of device time.

    Args:
        durations_s: For each device, and each network or estimator, the time of its measurements.
        caption: Title and provenance.
    """
    require_data((name for row in durations_s.values() for name in row), "profiling time")
    names = list(dict.fromkeys(name for row in durations_s.values() for name in row))
    colours = choose_colours(names)
    width = 0.8 / len(names)
    marks = []
    for index, name in enumerate(names):
        found = {i: row[name] for i, row in enumerate(durations_s.values()) if name in row}
        marks.append(
            Bars(
                name,
                tuple(i - 0.4 + (index + 0.5) * width for i in found),
                tuple(found.values()),
                colours[name],
                0.92 * width,
                hover_texts=tuple(f"{name}: {format_duration(s)}" for s in found.values()),
                labels=tuple(f"{duration_s:.0f}" for duration_s in found.values()),
            )
        )
    x, y = Axis("", categories=tuple(durations_s)), Axis("Device time", "s", low=0.0)
    return make_plot((Panel(x, y, tuple(marks)),), caption, "Device time of profiling")


def plot_error_by_time(
    scores: Mapping[str, tuple[float, float]], caption: Caption = Caption()
) -> Plot:
    """Plot a point for each estimator: its error against the device time that it took.

    Args:
        scores: For each estimator, its device time in seconds and its mean error in percent.
        caption: Title and provenance.
    """
    require_data(scores, "estimator")
    colours, markers = choose_colours(scores), choose_markers(scores)
    marks = [
        Points(
            name,
            (duration_s,),
            (error,),
            colours[name],
            hover_texts=(f"{name}: MAPE {error:.1f} % after {format_duration(duration_s)}",),
            marker=markers[name],
        )
        for name, (duration_s, error) in scores.items()
    ]
    x = Axis("Device time of profiling", "s", low=0.0)
    y = fit_axis(MAPE, [error for _, error in scores.values()], "%", starts_at_zero=True)
    return make_plot((Panel(x, y, tuple(marks)),), caption, "Error against device time")


def plot_error_by_budget(
    runs: Mapping[str, Sequence[CostCurve]],
    budget: Axis = Axis("Measured points", is_integer=True),
    caption: Caption = Caption(),
) -> Plot:
    """Plot error against a budget of points or device time, a line per method.

    Args:
        runs: For each method, its runs (one per seed). The line is their mean, the band reaches
            from the best to the worst; runs with other budgets are interpolated linearly.
        budget: Title and unit of the budget.
        caption: Title and provenance.
    """
    require_data((point for found in runs.values() for run in found for point in run), "run")
    colours = choose_colours(runs)
    marks: list[Mark] = []
    drawn: list[float] = []
    for name, found in runs.items():
        x, columns = _align_runs(name, found)
        drawn += [error for column in columns for error in column]
        if len(found) > 1:
            lows, highs = tuple(map(min, columns)), tuple(map(max, columns))
            marks.append(Band(name, x, lows, highs, colours[name]))
        marks.append(Line(name, x, tuple(map(statistics.fmean, columns)), colours[name]))
    has_band = any(isinstance(mark, Band) for mark in marks)
    subtitle = "line: mean over seeds; band: best to worst seed" if has_band else ""
    y = fit_axis(MAPE, drawn, "%", starts_at_zero=True)
    bands_first = sorted(marks, key=lambda mark: isinstance(mark, Line))
    panel = Panel(budget, y, tuple(bands_first))
    return make_plot((panel,), caption, "Error against budget", subtitle)


def plot_error_by_cost(
    lines: Mapping[str, CostCurve],
    options: CostPlotOptions = CostPlotOptions(),
    cost: Axis = Axis("Device time of profiling", "s"),
    caption: Caption = Caption(),
) -> Plot:
    """Plot error against cost on two logarithmic axes, each line with its name at its end.

    A line that ends early is continued to its name with dashes.

    Args:
        lines: For each method, its costs and errors, all positive.
        options: Limits and colours.
        cost: Title and unit of the cost.
        caption: Title and provenance.
    """
    require_data((point for line in lines.values() for point in line), "line")
    columns = {name: tuple(zip(*line, strict=True)) for name, line in lines.items() if line}
    costs = [x for xs, _ in columns.values() for x in xs]
    errors = [y for _, ys in columns.values() for y in ys]
    first, last = min(costs) / 1.12, max(costs)
    shown = [min(options.max_percent, y) for y in (*errors, options.noise_percent or min(errors))]
    low, high = choose_limits(shown, is_log=True)
    estimators = {name: options.estimator_of.get(name, name) for name in columns}
    colours, markers = choose_colours(estimators.values()), choose_markers(estimators.values())
    marks: list[Mark] = []
    ends: dict[str, tuple[float, str]] = {}
    if options.noise_percent:
        level = (options.noise_percent,) * 2
        marks.append(Line(_NOISE, (first, last), level, MUTED, is_dashed=True))
        ends[_NOISE] = (options.noise_percent, MUTED)
    for name, (x, y) in columns.items():
        colour = colours[estimators[name]]
        texts = tuple(f"{name}\n{a:.3g} {cost.unit}: {b:.1f} %" for a, b in zip(x, y, strict=True))
        marks.append(Line(name, x, y, colour))
        if x[-1] < _FULL_LENGTH_SHARE * last:
            marks.append(Line(name, (x[-1], last), (y[-1],) * 2, colour, is_dashed=True))
        marker = markers[estimators[name]]
        marks.append(Points(name, x, y, colour, hover_texts=texts, marker=marker))
        ends[name] = (y[-1], colour)
    spacing = _LABEL_SPACING * math.log(high / low)
    levels = {name: math.log(min(options.max_percent, end)) for name, (end, _) in ends.items()}
    heights = _spread_labels(levels, spacing)
    for name, (_, colour) in ends.items():
        marks.append(Label(name, (last,), (math.exp(heights[name]),), colour))
    x_axis = Axis(cost.title, cost.unit, is_log=True, low=first, high=last * 1.04)
    y_axis = Axis(options.error_title, "%", is_log=True, low=low, high=high)
    panel = Panel(x_axis, y_axis, tuple(marks))
    return make_plot((panel,), caption, "Error against device time")


def _spread_labels(heights: Mapping[str, float], spacing: float) -> dict[str, float]:
    """Return heights at least ``spacing`` apart, in the same order, by isotonic regression."""
    order = sorted(heights, key=lambda name: heights[name])
    # Without the spacing, heights must not decrease: pool adjacent violators at their mean.
    pools: list[list[float]] = []
    for index, name in enumerate(order):
        pools.append([heights[name] - index * spacing])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    levels = [statistics.fmean(pool) for pool in pools for _ in pool]
    return {name: levels[index] + index * spacing for index, name in enumerate(order)}


def _align_runs(name: str, runs: Sequence[CostCurve]) -> tuple[Floats, list[list[float]]]:
    """Return the budgets that all runs reach, and the errors of all runs at each."""
    if not runs or not all(runs):
        raise InputError(f"{name}: a run has no points: leave it out")
    first, last = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    budgets = sorted({x for run in runs for x, _ in run if first <= x <= last})
    if not budgets:
        raise InputError(
            f"{name}: its {len(runs)} runs have no budget in common: give runs that overlap"
        )
    return tuple(budgets), [[_interpolate(run, x) for run in runs] for x in budgets]


def _interpolate(run: CostCurve, x: float) -> float:
    """Return a run's error at a budget by linear interpolation."""
    after = bisect.bisect_left(run, x, key=lambda point: point[0])
    if run[after][0] == x:
        return run[after][1]
    (x0, y0), (x1, y1) = run[after - 1], run[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
