"""What accuracy costs: errors along a budget of points or seconds, and the time of profiling."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Bars, Dots, Floats, Line, Mark, Tag
from joulecast.figures.picture import Axis, Panel, Picture, fit_axis, need_some, pick_bounds
from joulecast.figures.style import FAINT, choose_colours, choose_shapes
from joulecast.units import format_duration

Run = Sequence[tuple[float, float]]

_FLOOR = "two measurements of a net"
# Tags keep so much of the panel's height apart.
_TAG_SHARE = 0.065
# A line that reaches this share of the longest one needs no dashes.
_NEAR = 0.85


def draw_profiling_time(
    seconds: Mapping[str, Mapping[str, float]],
    *,
    title: str = "Time to profile a device",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """Bars of device time.

    Args:
        seconds: For each device, for each net, how long measuring its variants took.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some((net for row in seconds.values() for net in row), "the profiling times")
    nets = list(dict.fromkeys(net for row in seconds.values() for net in row))
    colours = choose_colours(nets)
    width = 0.8 / len(nets)
    marks = []
    for place, net in enumerate(nets):
        found = {at: row[net] for at, row in enumerate(seconds.values()) if net in row}
        words = tuple(format_duration(taken_s) for taken_s in found.values())
        marks.append(
            Bars(
                net,
                tuple(at - 0.4 + (place + 0.5) * width for at in found),
                tuple(found.values()),
                colours[net],
                0.92 * width,
                notes=tuple(f"{net}: {word}" for word in words),
                texts=tuple(f"{taken_s:.0f}" for taken_s in found.values()),
            )
        )
    x, y = Axis("", labels=tuple(seconds)), Axis("device time", "s", low=0.0)
    return Picture(title, (Panel(x, y, tuple(marks)),), about, provenance)


def draw_budget(
    runs: Mapping[str, Sequence[Run]],
    *,
    against: str = "measured points",
    unit: str = "",
    error: str = "mean absolute error",
    title: str = "Error against budget",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """What more points or more device time buy, a line for each method.

    Args:
        runs: For each method its runs (one a seed), each a row of budgets with their errors in
            percent, budgets growing. The line is the mean, the band reaches from the best to the
            worst run; runs with other budgets are read on the lines between their points.
        against: What the budget is.
        unit: In which unit.
        error: Which error.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some((point for found in runs.values() for run in found for point in run), "the runs")
    colours = choose_colours(runs)
    marks: list[Mark] = []
    drawn: list[float] = []
    for name, found in runs.items():
        x, columns = _align(name, found)
        drawn += [error for column in columns for error in column]
        if len(found) > 1:
            lows, highs = tuple(map(min, columns)), tuple(map(max, columns))
            marks.append(Band(name, x, lows, highs, colours[name]))
        marks.append(Line(name, x, tuple(map(statistics.fmean, columns)), colours[name]))
    if not about and any(isinstance(mark, Band) for mark in marks):
        about = "line: mean of the seeds; band: best to worst seed"
    y = fit_axis(error, drawn, "%", zero=True)
    order = sorted(marks, key=lambda mark: isinstance(mark, Line))
    return Picture(title, (Panel(Axis(against, unit), y, tuple(order)),), about, provenance)


def draw_cost(
    lines: Mapping[str, Run],
    *,
    floor_percent: float | None = None,
    ceiling_percent: float = math.inf,
    kin: Mapping[str, str] | None = None,
    against: str = "device time for learning",
    unit: str = "s",
    error: str = "mean absolute error",
    title: str = "Error against device time",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """What device time buys, on two logarithmic axes; each line has its name at its end.

    A line that ends early is led to its name by dashes.

    Args:
        lines: For each method, what it spent and its error in percent, both above zero.
        floor_percent: What two measurements of a net differ by: nobody can get below.
        ceiling_percent: Where the picture ends; a line comes in from above.
        kin: For a method the estimator whose colour and shape it takes.
        against: What is spent.
        unit: In which unit.
        error: Which error.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some((point for line in lines.values() for point in line), "the lines")
    found = {name: tuple(zip(*line, strict=True)) for name, line in lines.items() if line}
    spent = [x for xs, _ in found.values() for x in xs]
    errors = [y for _, ys in found.values() for y in ys]
    first, last = min(spent) / 1.12, max(spent)
    drawn = [min(ceiling_percent, y) for y in (*errors, floor_percent or min(errors))]
    low, high = pick_bounds(drawn, log=True)
    known = {name: (kin or {}).get(name, name) for name in found}
    colours, shapes = choose_colours(known.values()), choose_shapes(known.values())
    marks: list[Mark] = []
    ends: dict[str, tuple[float, str]] = {}
    if floor_percent:
        marks.append(Line(_FLOOR, (first, last), (floor_percent,) * 2, FAINT, dashed=True))
        ends[_FLOOR] = (floor_percent, FAINT)
    for name, (x, y) in found.items():
        colour = colours[known[name]]
        notes = tuple(f"{name}\n{a:.3g} {unit}: {b:.1f} %" for a, b in zip(x, y, strict=True))
        marks.append(Line(name, x, y, colour))
        if x[-1] < _NEAR * last:
            marks.append(Line(name, (x[-1], last), (y[-1],) * 2, colour, dashed=True))
        marks.append(Dots(name, x, y, colour, notes=notes, shape=shapes[known[name]]))
        ends[name] = (y[-1], colour)
    gap = _TAG_SHARE * math.log(high / low)
    levels = {name: math.log(min(ceiling_percent, end)) for name, (end, _) in ends.items()}
    places = _push_apart(levels, gap)
    for name, (_, colour) in ends.items():
        marks.append(Tag(name, (last,), (math.exp(places[name]),), colour))
    across = Axis(against, unit, log=True, low=first, high=last * 1.04)
    up = Axis(error, "%", log=True, low=low, high=high)
    return Picture(title, (Panel(across, up, tuple(marks)),), about, provenance)


def _push_apart(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """Places at least ``gap`` apart, in the same order, as near to where they were as can be."""
    order = sorted(places, key=lambda name: places[name])
    # Without their gaps, places may only grow: whichever would fall share their mean.
    pools: list[list[float]] = []
    for at, name in enumerate(order):
        pools.append([places[name] - at * gap])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    levels = [statistics.fmean(pool) for pool in pools for _ in pool]
    return {name: levels[at] + at * gap for at, name in enumerate(order)}


def _align(name: str, runs: Sequence[Run]) -> tuple[Floats, list[list[float]]]:
    """Budgets that all runs reach, and at each the error of every run."""
    if not runs or not all(runs):
        raise InputError(f"{name}: a run without any point cannot be drawn; leave it out")
    first, last = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    places = sorted({x for run in runs for x, _ in run if first <= x <= last})
    if not places:
        raise InputError(f"{name}: no budget is reached by all of its {len(runs)} runs")
    return tuple(places), [[_read_run(run, x) for run in runs] for x in places]


def _read_run(run: Run, x: float) -> float:
    """A run's error at a budget, on the straight line between its neighbours."""
    after = bisect.bisect_left(run, x, key=lambda point: point[0])
    if run[after][0] == x:
        return run[after][1]
    (x0, y0), (x1, y1) = run[after - 1], run[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
