"""Plot energy against channels and FLOPs, which predict it badly, and time, which does well."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulecast.figures.marks import Band, Floats, Line, Mark, Points
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
from joulecast.units import format_count, format_duration, format_energy
from joulecast.views.style import BLUE, MEASURED, MUTED, RED, choose_colours, choose_markers

_ENERGY_TITLE = "Energy per step"


@dataclass(frozen=True)
class LayerMeasurement:
    """Energy per step of a layer with a number of channels, and its FLOPs."""

    channels: float
    flops: float
    energy_j: float
    description: str = ""


@dataclass(frozen=True)
class StepMeasurement:
    """Duration and energy of a training step of a network."""

    net: str
    duration_s: float
    energy_j: float


@dataclass(frozen=True)
class ChannelCosts:
    """Energy of a layer over its channels, with a Gaussian process and lines through FLOPs.

    Attributes:
        title: The layer and how it is trained.
        channels: Measured numbers of channels.
        energies_j: Energy of a step at each of them.
        is_held_out: Whether the process was not fitted to a point.
        proportional_j: Energy proportional to FLOPs at each number of channels.
        linear_j: Energy linear in FLOPs.
        means_j: Mean of the Gaussian process; its 95 % interval is from ``lows_j`` to ``highs_j``.
    """

    title: str
    channels: Floats
    energies_j: Floats
    is_held_out: tuple[bool, ...]
    proportional_j: Floats
    linear_j: Floats
    means_j: Floats
    lows_j: Floats
    highs_j: Floats


def plot_channel_costs(layers: Sequence[ChannelCosts], caption: Caption = Caption()) -> Plot:
    """Plot measured energies over channels with three fits to them, one panel per layer."""
    require_data((count for layer in layers for count in layer.channels), "measured layer")
    return make_plot(
        [_make_channel_panel(layer) for layer in layers], caption, "Energy against input channels"
    )


def plot_energy_by_size(
    series: Mapping[str, Sequence[LayerMeasurement]], caption: Caption = Caption()
) -> Plot:
    """Plot energy against channels and against FLOPs, with proportional lines for comparison."""
    require_data((point for points in series.values() for point in points), "layer measurement")
    points = [point for found in series.values() for point in found]
    energies_j = [point.energy_j for point in points]
    y = fit_axis(_ENERGY_TITLE, energies_j, "J", has_si_prefixes=True, starts_at_zero=True)
    channels = Axis("Channels", is_integer=True)
    flops = Axis("FLOPs per step", "FLOP", has_si_prefixes=True)
    if y.is_log:
        # All axes logarithmic or none, so that proportionality stays a straight line.
        channels = _make_log(channels, [point.channels for point in points])
        flops = _make_log(flops, [point.flops for point in points])
    proportional = tuple(_make_proportional(found) for found in series.values() if found)
    panels = (
        Panel(channels, y, _make_series(series, "channels"), "Energy against channels"),
        Panel(flops, y, (*proportional, *_make_series(series, "flops")), "Energy against FLOPs"),
    )
    return make_plot(panels, caption, "Energy against channels and FLOPs")


def plot_energy_by_time(
    series: Mapping[str, Sequence[StepMeasurement]],
    caption: Caption = Caption(),
    step: str = "step",
) -> Plot:
    """Plot energy against duration, a point per network; the subtitle shows correlations.

    Args:
        series: The networks.
        caption: What is written above.
        step: What one step is called.
    """
    points = [point for found in series.values() for point in found]
    require_data(points, "network")
    colours, markers = choose_colours(series), choose_markers(series)
    marks = tuple(
        Points(
            name,
            tuple(point.duration_s for point in found),
            tuple(point.energy_j for point in found),
            colours[name],
            hover_texts=tuple(
                f"{point.net}\n{format_duration(point.duration_s)}, {format_energy(point.energy_j)}"
                for point in found
            ),
            marker=markers[name],
        )
        for name, found in series.items()
    )
    durations_s = [point.duration_s for point in points]
    energies_j = [point.energy_j for point in points]
    x = fit_axis(f"Duration per {step}", durations_s, "s", has_si_prefixes=True)
    y = fit_axis(f"Energy per {step}", energies_j, "J", has_si_prefixes=True)
    panel = Panel(x, y, marks)
    title = f"Energy against duration per {step}"
    return make_plot((panel,), caption, title, _describe_correlations(series))


def _make_series(
    series: Mapping[str, Sequence[LayerMeasurement]], attribute: str
) -> tuple[Mark, ...]:
    colours, markers = choose_colours(series), choose_markers(series)
    marks: list[Mark] = []
    for name, found in series.items():
        points = sorted(found, key=lambda point: float(getattr(point, attribute)))
        x = tuple(float(getattr(point, attribute)) for point in points)
        y = tuple(point.energy_j for point in points)
        texts = tuple(
            f"{point.description or name}\n{point.channels:g} channels, "
            f"{format_count(point.flops, 'FLOP')}\n{format_energy(point.energy_j)}"
            for point in points
        )
        marks.append(Line(name, x, y, colours[name]))
        marks.append(Points(name, x, y, colours[name], hover_texts=texts, marker=markers[name]))
    return tuple(marks)


def _make_channel_panel(layer: ChannelCosts) -> Panel:
    x = layer.channels
    colours = choose_colours(("flops", "flops-linear"))
    marks: list[Mark] = [
        Band("95 % interval", x, layer.lows_j, layer.highs_j, BLUE),
        Line("Gaussian process mean", x, layer.means_j, BLUE),
        Line("proportional to FLOPs", x, layer.proportional_j, colours["flops"], is_dashed=True),
        Line("linear in FLOPs", x, layer.linear_j, colours["flops-linear"], is_dashed=True),
    ]
    for name, wanted, colour, marker in (
        ("measured", False, MEASURED, "circle"),
        ("measured, held out", True, RED, "cross"),
    ):
        rows = [
            (count, energy_j)
            for count, energy_j, held_out in zip(
                x, layer.energies_j, layer.is_held_out, strict=True
            )
            if held_out == wanted
        ]
        if rows:
            counts, energies_j = zip(*rows, strict=True)
            texts = tuple(f"{count:g} channels: {format_energy(energy)}" for count, energy in rows)
            marks.append(Points(name, counts, energies_j, colour, hover_texts=texts, marker=marker))
    axis = Axis("Input channels", is_integer=True)
    return Panel(axis, Axis(_ENERGY_TITLE, "J", True, low=0.0), tuple(marks), layer.title)


def _make_log(axis: Axis, values: Sequence[float]) -> Axis:
    low, high = choose_limits(values, is_log=True)
    return replace(axis, is_log=True, low=low, high=high)


def _make_proportional(points: Sequence[LayerMeasurement]) -> Line:
    """Return a line through the largest layer on which every FLOP costs the same."""
    largest = max(points, key=lambda point: point.flops)
    flops = tuple(sorted(point.flops for point in points))
    energies_j = tuple(largest.energy_j * count / largest.flops for count in flops)
    return Line("proportional to FLOPs", flops, energies_j, MUTED, is_dashed=True)


def _describe_correlations(series: Mapping[str, Sequence[StepMeasurement]]) -> str:
    """Return Pearson's r of duration and energy for each series with enough points."""
    parts = []
    for name, points in series.items():
        durations_s = [point.duration_s for point in points]
        energies_j = [point.energy_j for point in points]
        if len(points) > 2 and len(set(durations_s)) > 1 and len(set(energies_j)) > 1:
            parts.append(f"{name}: r = {statistics.correlation(durations_s, energies_j):.2f}")
    return "; ".join(parts)
