"""What tells energy: channels and FLOPs do so badly, time does well."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulecast.figures.marks import Dots, Line, Mark
from joulecast.figures.picture import Axis, Panel, Picture, fit_axis, need_some, pick_bounds
from joulecast.figures.style import (
    FAINT,
    choose_colours,
    choose_shapes,
)
from joulecast.units import format_count, format_duration, format_energy


@dataclass(frozen=True)
class Sized:
    """A layer at some width: its FLOPs and what it took."""

    channels: float
    flops: float
    energy_j: float
    note: str = ""


@dataclass(frozen=True)
class Taken:
    """What a step of a net took."""

    net: str
    duration_s: float
    energy_j: float


def draw_sizes(
    series: Mapping[str, Sequence[Sized]],
    *,
    title: str = "Energy against channels and against FLOPs",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """A layer at many widths, twice; dashed is energy in proportion to FLOPs."""
    need_some((point for points in series.values() for point in points), "the sizes of a layer")
    series = {
        name: sorted(points, key=lambda point: point.channels) for name, points in series.items()
    }
    found = [point for points in series.values() for point in points]
    y = fit_axis(
        "energy of a step", [point.energy_j for point in found], "J", prefixes=True, zero=True
    )
    channels, counts = Axis("channels"), Axis("work of a step", "FLOP", True)
    if y.log:
        # All logarithmic or none, so that proportion stays a straight line.
        channels = _make_log(channels, [point.channels for point in found])
        counts = _make_log(counts, [point.flops for point in found])
    by_flops = _trace_sizes(series, "flops")
    lines = tuple(_draw_proportion(points) for points in series.values() if points)
    panels = (
        Panel(channels, y, _trace_sizes(series, "channels"), "against channels"),
        Panel(counts, y, (*lines, *by_flops), "against FLOPs"),
    )
    return Picture(title, panels, about, provenance)


def draw_time_energy(
    series: Mapping[str, Sequence[Taken]],
    *,
    title: str = "Time and energy of a step",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """Every net as a point, joules over seconds, with how well they go together."""
    taken = [one for points in series.values() for one in points]
    need_some(taken, "the nets")
    colours, shapes = choose_colours(series), choose_shapes(series)
    marks = tuple(
        Dots(
            name,
            tuple(one.duration_s for one in points),
            tuple(one.energy_j for one in points),
            colours[name],
            notes=tuple(
                f"{one.net}\n{format_duration(one.duration_s)}, {format_energy(one.energy_j)}"
                for one in points
            ),
            shape=shapes[name],
        )
        for name, points in series.items()
    )
    times, joules = [one.duration_s for one in taken], [one.energy_j for one in taken]
    x = fit_axis("time of a step", times, "s", prefixes=True)
    y = fit_axis("energy of a step", joules, "J", prefixes=True)
    return Picture(title, (Panel(x, y, marks),), about or _correlate(series), provenance)


def _trace_sizes(series: Mapping[str, Sequence[Sized]], column: str) -> tuple[Mark, ...]:
    colours, shapes = choose_colours(series), choose_shapes(series)
    marks: list[Mark] = []
    for name, points in series.items():
        x = tuple(float(getattr(point, column)) for point in points)
        y = tuple(point.energy_j for point in points)
        notes = tuple(
            f"{point.note or name}\n{point.channels:g} channels, "
            f"{format_count(point.flops, 'FLOP')}\n{format_energy(point.energy_j)}"
            for point in points
        )
        marks.append(Line(name, x, y, colours[name]))
        marks.append(Dots(name, x, y, colours[name], notes=notes, shape=shapes[name]))
    return tuple(marks)


def _make_log(axis: Axis, values: Sequence[float]) -> Axis:
    low, high = pick_bounds(values, log=True)
    return replace(axis, log=True, low=low, high=high)


def _draw_proportion(points: Sequence[Sized]) -> Line:
    """From the widest point down, as if every FLOP cost the same."""
    last = points[-1]
    flops = tuple(point.flops for point in points)
    energies = tuple(last.energy_j * count / last.flops for count in flops)
    return Line("in proportion to FLOPs", flops, energies, FAINT, dashed=True)


def _correlate(series: Mapping[str, Sequence[Taken]]) -> str:
    """How well time goes with energy, in words; nothing where too few points say it."""
    words = []
    for name, points in series.items():
        times, joules = [one.duration_s for one in points], [one.energy_j for one in points]
        if len(points) > 2 and len(set(times)) > 1 and len(set(joules)) > 1:
            words.append(f"{name} r = {statistics.correlation(times, joules):.2f}")
    return "; ".join(words)
