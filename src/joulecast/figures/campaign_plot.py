"""Plot a profiling campaign: uncertainty and points over time, and observations of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Line, Points
from joulecast.figures.plot import Axis, Caption, Panel, Plot, fit_axis, make_plot, require_data
from joulecast.units import format_duration
from joulecast.views.style import BLUE, GREEN, choose_colours

_HOUR_S = 3600.0


@dataclass(frozen=True)
class CampaignMoment:
    """How far a campaign was at a moment.

    Attributes:
        uncertainty_share: Uncertainty of the estimate; None before it is known.
    """

    elapsed_s: float
    points: int
    uncertainty_share: float | None = None


def plot_campaign(moments: Sequence[CampaignMoment], caption: Caption = Caption()) -> Plot:
    """Plot uncertainty and points against the device time of a campaign.

    Without any known uncertainty, as of an atlas, only the points are plotted.
    """
    require_data(moments, "moment of the campaign")
    time = Axis("Elapsed time", "s", low=0.0)
    known = [
        (one.elapsed_s, 100.0 * one.uncertainty_share)
        for one in moments
        if one.uncertainty_share is not None
    ]
    panels = []
    if known:
        x, y = (tuple(column) for column in zip(*known, strict=True))
        texts = tuple(f"± {share:.3g} % after {format_duration(s)}" for s, share in known)
        line = Line("uncertainty", x, y, BLUE, hover_texts=texts)
        dots = Points("uncertainty", x, y, BLUE, hover_texts=texts)
        axis = fit_axis("Uncertainty", y, "%", starts_at_zero=True)
        panels.append(Panel(time, axis, (line, dots)))
    x = tuple(one.elapsed_s for one in moments)
    counts = tuple(float(one.points) for one in moments)
    texts = tuple(f"{one.points} points after {format_duration(one.elapsed_s)}" for one in moments)
    steps = Line("points", x, counts, GREEN, is_step=True, hover_texts=texts)
    panels.append(Panel(time, Axis("Points", low=0.0, is_integer=True), (steps,)))
    return make_plot(panels, caption, "Progress of the campaign")


def plot_observations(times_s: Mapping[str, Sequence[float]], caption: Caption = Caption()) -> Plot:
    """Plot how many observations there are over time, a line per kind of observation.

    Args:
        times_s: For each kind, when its observations were made, in seconds since 1970.
        caption: Title and provenance.
    """
    require_data((at_s for found in times_s.values() for at_s in found), "observation")
    first_s = min(at_s for found in times_s.values() for at_s in found)
    last_s = max(at_s for found in times_s.values() for at_s in found)
    unit, unit_s = ("h", _HOUR_S) if last_s - first_s > _HOUR_S else ("s", 1.0)
    colours = choose_colours(times_s)
    lines = []
    for name, found in times_s.items():
        x = tuple((at_s - first_s) / unit_s for at_s in sorted(found))
        if x:
            counts = tuple(float(count) for count in range(1, len(x) + 1))
            end = (last_s - first_s) / unit_s
            line = Line(name, (*x, end), (*counts, counts[-1]), colours[name], is_step=True)
            lines.append(line)
    axis = Axis("Time since the first observation", unit, low=0.0)
    panel = Panel(axis, Axis("Observations", low=0.0, is_integer=True), tuple(lines))
    return make_plot((panel,), caption, "Observations over time")
