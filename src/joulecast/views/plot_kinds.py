"""Kinds of plots that several reports have.

Functions that begin with ``plot`` return a Plot with its values as a table; those that begin with
``draw`` draw on axes that the caller has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from joulecast.system.errors import InputError
from joulecast.system.units import format_duration, format_energy, format_interval, format_share
from joulecast.views.fronts import find_front
from joulecast.views.report import Plot, Table, make_table
from joulecast.views.style import (
    BLUE,
    GREEN,
    GREY,
    MUTED,
    RED,
    TEXT,
    choose_colours,
    choose_markers,
)
from joulecast.views.words import label_provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Widths = tuple[float, ...]
Floats = tuple[float, ...]
_MAPE = "Mean absolute percentage error"
# Values that differ by more are drawn on a logarithmic axis.
_LOG_RATIO = 30.0
# Standard deviations of a 95 % interval.
_Z95 = 1.96


def make_plot(
    name: str,
    title: str,
    draw: Callable[[Axes], None],
    data: Table,
    provenance: str,
    size: tuple[float, float] = (7.0, 4.2),
) -> Plot:
    """Return a plot of one panel; its title says if its energies were not measured."""

    def draw_panel(figure: Figure) -> None:
        draw(figure.add_subplot())

    return Plot(name, title + label_provenance(provenance), draw_panel, "", data, size)


# ---------------------------------------------------------------------------------------------
# The energy of a layer over its widths


@dataclass(frozen=True)
class CurvePoint:
    """A measured point of a curve, with the curve's prediction."""

    widths: Widths
    measured_j: float
    predicted_j: float

    @property
    def error_percent(self) -> float:
        """The relative error of the prediction."""
        return 100.0 * (self.predicted_j / self.measured_j - 1.0) if self.measured_j else 0.0


@dataclass(frozen=True)
class SampledCurve:
    """A fitted curve on a grid, with the points that it was fitted to.

    Attributes:
        features: Names of the widths, one or two.
        axes: Grid points of each width.
        means_j: Predicted means, in the order of ``itertools.product(*axes)``.
        sds_j: Standard deviations of the prediction.
        next_point: Where it would be measured next, and the prediction there; None if unknown.
    """

    label: str
    features: tuple[str, ...]
    axes: tuple[Floats, ...]
    means_j: Floats
    sds_j: Floats
    points: tuple[CurvePoint, ...] = ()
    next_point: tuple[Widths, float] | None = None


def plot_curve(name: str, curve: SampledCurve, provenance: str) -> Plot:
    """Plot a curve with its points: a line with a 95 % band, or two maps over two widths."""
    is_map = len(curve.features) == 2
    rows = [
        (
            ", ".join(f"{width:g}" for width in point.widths),
            format_energy(point.measured_j),
            format_energy(point.predicted_j),
            f"{round(point.error_percent, 1) + 0.0:+.1f} %",
        )
        for point in curve.points
    ]
    columns = (", ".join(curve.features), ">measured", ">predicted", ">error")
    return Plot(
        name,
        f"Energy of {curve.label}{label_provenance(provenance)}",
        lambda figure: _draw_maps(figure, curve) if is_map else _draw_line(figure, curve),
        "",
        make_table(columns, rows, "Measured points"),
        (9.0, 4.2) if is_map else (7.0, 4.2),
    )


def _draw_line(figure: Figure, curve: SampledCurve) -> None:
    axes = figure.add_subplot()
    (x,), pairs = curve.axes, list(zip(curve.means_j, curve.sds_j, strict=True))
    lows, highs = [m - _Z95 * sd for m, sd in pairs], [m + _Z95 * sd for m, sd in pairs]
    axes.fill_between(x, lows, highs, color=BLUE, alpha=0.2, lw=0, label="95 % interval")
    axes.plot(x, curve.means_j, color=BLUE, label="prediction")
    if curve.points:
        measured = [(*point.widths, point.measured_j) for point in curve.points]
        axes.plot(*zip(*measured, strict=True), "o", color=TEXT, label="measured")
    if curve.next_point is not None:
        ((at,), energy_j) = curve.next_point
        axes.plot([at], [energy_j], "*", color=RED, markersize=12, label="next point")
    _label_width(axes.xaxis, curve.features[0])
    label_axis(axes.yaxis, "Energy per step", "J")
    axes.legend()


def _draw_maps(figure: Figure, curve: SampledCurve) -> None:
    """Draw the mean, and the half width of the 95 % interval as a share of it."""
    import numpy as np
    from matplotlib.ticker import EngFormatter, PercentFormatter

    shape = len(curve.axes[0]), len(curve.axes[1])
    means_j, sds_j = (np.reshape(found, shape).T for found in (curve.means_j, curve.sds_j))
    shares = _Z95 * sds_j / np.maximum(np.abs(means_j), np.finfo(float).tiny)
    titles = ("Predicted energy per step", "Half width of the 95 % interval")
    forms = (EngFormatter("J"), PercentFormatter(1.0, symbol=" %"))
    panels = zip(figure.subplots(1, 2), (means_j, shares), titles, forms, strict=True)
    for axes, values, title, form in panels:
        axes.grid(False)
        map_ = axes.pcolormesh(*curve.axes, values, cmap="viridis", shading="nearest")
        # A picture in the SVG: hundreds of cells would show seams, and take more room.
        map_.set_rasterized(True)
        figure.colorbar(map_, ax=axes, format=form)
        if curve.points:
            widths = zip(*(point.widths for point in curve.points), strict=True)
            axes.plot(*widths, "o", mfc="white", mec="black", ms=5, label="measured")
        if curve.next_point is not None:
            x, y = curve.next_point[0]
            axes.plot([x], [y], "*", color=RED, mec="white", ms=14, label="next point")
        axes.set_title(title)
        _label_width(axes.xaxis, curve.features[0])
        _label_width(axes.yaxis, curve.features[1])
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=2)


def _label_width(axis: Any, feature: str) -> None:
    names = {"cin": "Input channels", "cout": "Output channels", "hidden": "Hidden size"}
    label_axis(axis, names.get(feature, feature), is_count=True)


# ---------------------------------------------------------------------------------------------
# How accurate estimates are, and what accuracy costs


@dataclass(frozen=True)
class ScoredEstimate:
    """An estimate of a network's energy per step, beside the measurement."""

    net: str
    estimator: str
    measured_j: float
    estimated_j: float
    interval_j: tuple[float, float]

    def __post_init__(self) -> None:
        if not self.measured_j > 0:
            raise InputError(
                f"{self.net}: measured energy is {self.measured_j} J, so no relative error "
                "exists: leave that network out"
            )

    @property
    def error_percent(self) -> float:
        """The relative error of the estimate; positive if it is too large."""
        return 100.0 * (self.estimated_j / self.measured_j - 1.0)


def plot_estimates(rows: Sequence[ScoredEstimate], provenance: str, step: str = "step") -> Plot:
    """Plot estimated against measured energy, a point per network, with the identity line."""
    values = [value for row in rows for value in (row.measured_j, row.estimated_j)]

    def draw(axes: Axes) -> None:
        groups = _group_by_estimator(rows)
        colours, markers = choose_colours(groups), choose_markers(groups)
        ends = 0.9 * min(values), 1.1 * max(values)
        axes.plot(ends, ends, "--", color=MUTED, lw=1, label="estimated = measured")
        for name, group in groups.items():
            points = [
                FrontPoint(row.net, row.measured_j, row.estimated_j, row.interval_j)
                for row in group
            ]
            style = {"fmt": markers[name], "color": colours[name], "ms": 4, "label": name}
            _draw_points(axes, points, **style)
        axes.set_xscale(_choose_scale(values))
        axes.set_yscale(_choose_scale(values))
        label_axis(axes.xaxis, f"Measured energy per {step}", "J")
        label_axis(axes.yaxis, f"Estimated energy per {step}", "J")
        axes.set_xlim(ends)
        axes.set_ylim(ends)
        axes.set_aspect("equal")
        axes.legend()

    title = f"Estimated and measured energy per {step}"
    return make_plot("agreement", title, draw, _tabulate(rows), provenance, size=(6.0, 5.2))


def plot_error_distribution(rows: Sequence[ScoredEstimate], provenance: str) -> Plot:
    """Plot the cumulative distribution of absolute errors; up and left is better."""

    def draw(axes: Axes) -> None:
        groups = _group_by_estimator(rows)
        colours = choose_colours(groups)
        errors = {
            name: sorted(abs(row.error_percent) for row in group) for name, group in groups.items()
        }
        largest = max(found[-1] for found in errors.values())
        for name, found in errors.items():
            shares = [100.0 * (at + 1) / len(found) for at in range(len(found))]
            x, y = [0.0, *found, largest], [0.0, *shares, 100.0]
            axes.step(x, y, where="post", color=colours[name], label=name)
        if largest > _LOG_RATIO * max(1.0, min(map(statistics.median, errors.values()))):
            # Errors below one percent share the linear part.
            axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(left=0.0)
        axes.set_ylim(0.0, 103.0)
        label_axis(axes.xaxis, "Absolute percentage error (%)")
        label_axis(axes.yaxis, "Networks with at most this error (%)")
        axes.legend()

    return make_plot("error-shares", "Distribution of errors", draw, _tabulate(rows), provenance)


def plot_mape_bars(
    mape_percent: Mapping[str, float], noise_percent: float | None, provenance: str
) -> Plot:
    """Plot a bar of the mean error for each estimator, and the measurement noise as a line."""

    def draw(axes: Axes) -> None:
        _draw_bars(axes, mape_percent, "{:.1f}", f"{_MAPE} (%)")
        axes.set_yscale(_choose_scale(mape_percent.values()))
        if noise_percent is not None:
            axes.axhline(noise_percent, color=TEXT, ls="--", lw=1, label="measurement noise")
            axes.legend()

    rows = [(name, f"{error:.1f} %") for name, error in mape_percent.items()]
    data = make_table(("estimator", ">MAPE"), rows)
    return make_plot("errors", "Mean error by estimator", draw, data, provenance)


def plot_profiling_time(durations_s: Mapping[str, float], provenance: str) -> Plot:
    """Plot a bar of the device time of each estimator's measurements."""
    rows = [(name, format_duration(duration_s)) for name, duration_s in durations_s.items()]
    return make_plot(
        "profiling-time",
        "Device time of profiling",
        lambda axes: _draw_bars(axes, durations_s, "{:.0f}", "Device time (s)"),
        make_table(("estimator", ">device time"), rows),
        provenance,
    )


def plot_error_by_time(scores: Mapping[str, tuple[float, float]], provenance: str) -> Plot:
    """Plot a point for each estimator: its error against the device time that it took.

    Args:
        scores: For each estimator, its device time in seconds and its mean error in percent.
        provenance: Where the energies come from.
    """

    def draw(axes: Axes) -> None:
        _draw_series(axes, {name: [score] for name, score in scores.items()}, 7)
        axes.set_xlim(left=0.0)
        axes.set_xscale("linear")
        axes.set_ylim(bottom=0.0 if axes.get_yscale() == "linear" else None)
        label_axis(axes.xaxis, "Device time of profiling (s)")
        label_axis(axes.yaxis, f"{_MAPE} (%)")

    rows = [(name, format_duration(s), f"{error:.1f} %") for name, (s, error) in scores.items()]
    data = make_table(("estimator", ">device time", ">MAPE"), rows)
    return make_plot("error-time", "Error against device time", draw, data, provenance)


def plot_energy_by_time(
    series: Mapping[str, Sequence[tuple[str, float, float]]], provenance: str, step: str = "step"
) -> Plot:
    """Plot energy against duration, a point per network.

    Args:
        series: For each kind of observation, names of networks with duration and energy.
        provenance: Where the energies come from.
        step: What one step is called.
    """

    def draw(axes: Axes) -> None:
        _draw_series(axes, {name: [row[1:] for row in rows] for name, rows in series.items()}, 4)
        label_axis(axes.xaxis, f"Duration of a {step}", "s")
        label_axis(axes.yaxis, f"Energy per {step}", "J")

    rows = [
        (net, name, format_duration(duration_s), format_energy(energy_j))
        for name, found in series.items()
        for net, duration_s, energy_j in found[:_MOST_ROWS]
    ]
    data = make_table(("network", "observed", ">duration", ">energy"), rows)
    title = f"Energy against duration of a {step}"
    return make_plot("time-energy", title, draw, data, provenance)


# A page would be slow with more.
_MOST_ROWS = 200


def _tabulate(rows: Sequence[ScoredEstimate]) -> Table:
    cells = [
        (
            row.net,
            row.estimator,
            format_energy(row.measured_j),
            format_energy(row.estimated_j),
            format_interval(row.interval_j, format_energy),
            f"{row.error_percent:+.1f} %",
        )
        for row in rows[:_MOST_ROWS]
    ]
    columns = ("network", "estimator", ">measured", ">estimated", ">95 % interval", ">error")
    return make_table(columns, cells)


def _group_by_estimator(rows: Iterable[ScoredEstimate]) -> dict[str, list[ScoredEstimate]]:
    groups: dict[str, list[ScoredEstimate]] = {}
    for row in rows:
        groups.setdefault(row.estimator, []).append(row)
    return groups


def _draw_series(
    axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]], size: float
) -> None:
    """Draw the points of each series, on axes that suit all of them."""
    colours, markers = choose_colours(series), choose_markers(series)
    for name, points in series.items():
        x, y = zip(*points, strict=True)
        axes.plot(x, y, markers[name], color=colours[name], ms=size, label=name)
    x, y = zip(*(point for points in series.values() for point in points), strict=True)
    axes.set_xscale(_choose_scale(x))
    axes.set_yscale(_choose_scale(y))
    axes.legend()


def _draw_bars(axes: Axes, values: Mapping[str, float], form: str, label: str) -> None:
    colours = choose_colours(values)
    bars = axes.bar(list(values), list(values.values()), 0.6, color=[colours[n] for n in values])
    axes.bar_label(bars, [form.format(one) for one in values.values()], fontsize=8, padding=2)
    axes.grid(False, axis="x")
    label_axis(axes.yaxis, label)


# ---------------------------------------------------------------------------------------------
# Progress of profiling


def plot_campaign(moments: Sequence[tuple[float, int, float | None]], provenance: str) -> Plot:
    """Plot uncertainty and points against the device time of a campaign.

    Args:
        moments: Elapsed time, number of points and uncertainty, which is None before it is known.
            Without any, as of an atlas, only the points are plotted.
        provenance: Where the energies come from.
    """
    known = [(elapsed_s, 100.0 * share) for elapsed_s, _, share in moments if share is not None]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if known else 1, squeeze=False)[0]
        if known:
            panels[0].plot(*zip(*known, strict=True), "o-", color=BLUE, ms=3)
            label_axis(panels[0].yaxis, "Uncertainty (%)")
        elapsed_s, points, _ = zip(*moments, strict=True)
        panels[-1].step(elapsed_s, points, where="post", color=GREEN)
        label_axis(panels[-1].yaxis, "Points", is_count=True)
        for axes in panels:
            axes.set_xlim(left=0.0)
            axes.set_ylim(bottom=0.0)
            label_axis(axes.xaxis, "Elapsed time (s)")

    rows = [
        (format_duration(s), f"{n:,}", "–" if share is None else f"± {format_share(share)}")
        for s, n, share in moments
    ]
    data = make_table(("elapsed", ">points", ">uncertainty"), rows)
    title = "Progress of the campaign" + label_provenance(provenance)
    return Plot("campaign", title, draw, "", data, (9.0, 3.6) if known else (7.0, 3.6))


def plot_observations(times_s: Mapping[str, Sequence[float]], provenance: str) -> Plot:
    """Plot how many observations there are over time, a line per kind of observation.

    Args:
        times_s: For each kind, when its observations were made, in seconds since 1970.
        provenance: Where their energies come from.
    """
    first_s = min(at_s for found in times_s.values() for at_s in found)
    last_s = max(at_s for found in times_s.values() for at_s in found)
    unit, unit_s = next((u, size) for u, size, most in _TIMES if last_s - first_s < most * size)

    def draw(axes: Axes) -> None:
        colours = choose_colours(times_s)
        for name, found in times_s.items():
            x = [(at_s - first_s) / unit_s for at_s in (*sorted(found), last_s)]
            counts = [*range(1, len(found) + 1), len(found)]
            axes.step(x, counts, where="post", color=colours[name], label=name)
        axes.set_ylim(bottom=0.0)
        label_axis(axes.xaxis, f"Time since the first observation ({unit})")
        label_axis(axes.yaxis, "Observations", is_count=True)
        axes.legend()

    rows = [(name, f"{len(found):,}") for name, found in times_s.items()]
    data = make_table(("observed", ">observations"), rows)
    return make_plot("observations", "Observations over time", draw, data, provenance)


# Unit, its seconds, and up to how many units it is used.
_TIMES = (("s", 1.0, 180.0), ("min", 60.0, 180.0), ("h", 3600.0, 96.0), ("d", 86400.0, math.inf))


# ---------------------------------------------------------------------------------------------
# A Pareto front


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
        _draw_points(axes, behind, fmt="x", color=GREY, label=others, capsize=2)
    x, y = [front[0].value], [front[0].energy_j]
    for before, after in pairwise(front):
        # Between two points the better one is needed, at its energy.
        x += [before.value if is_higher_better else after.value, after.value]
        y += [after.energy_j if is_higher_better else before.energy_j, after.energy_j]
    axes.plot(x, y, color=BLUE)
    _draw_points(axes, front, fmt="o", color=BLUE, label="Pareto front", capsize=2)
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


def label_axis(axis: Any, title: str, unit: str = "", is_count: bool = False) -> None:
    """Name an axis; values with a unit get SI prefixes, and counts are whole numbers."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_label_text(title)
    if unit:
        axis.set_major_formatter(EngFormatter(unit))
    if is_count:
        axis.set_major_locator(MaxNLocator(integer=True))


def _choose_scale(values: Iterable[float]) -> str:
    """Return ``log`` for values that differ much."""
    found = [value for value in values if value > 0]
    return "log" if found and max(found) > _LOG_RATIO * min(found) else "linear"


def _draw_points(axes: Axes, points: Sequence[FrontPoint], **style: Any) -> None:
    """Draw energies with their intervals against values."""
    errors = [
        [max(0.0, point.energy_j - point.interval_j[0]) for point in points],
        [max(0.0, point.interval_j[1] - point.energy_j) for point in points],
    ]
    values, energies = [p.value for p in points], [p.energy_j for p in points]
    axes.errorbar(values, energies, errors, ls="none", elinewidth=0.8, **style)
