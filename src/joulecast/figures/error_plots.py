"""Plot how accurate estimates are: against measurements, by family, and as a distribution.

All functions take ``ScoredEstimate`` rows, one per network and estimator. Errors are relative to
the measurement, in percent; positive means overestimated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.figures.marks import Bars, Line, Mark, Points
from joulecast.figures.plot import (
    Axis,
    Caption,
    Panel,
    Plot,
    choose_limits,
    make_plot,
    needs_log_axis,
    require_data,
)
from joulecast.units import format_energy
from joulecast.views.style import MUTED, TEXT, choose_colours, choose_markers

_NOISE = "measurement noise"
_MAPE = "Mean absolute percentage error"


@dataclass(frozen=True)
class ScoredEstimate:
    """An estimate of a network's energy per step, beside the measurement.

    Attributes:
        interval_j: Ends of the credible interval, if the estimator has one.
        family: The family of the network.
    """

    net: str
    estimator: str
    measured_j: float
    estimated_j: float
    interval_j: tuple[float, float] | None = None
    family: str = ""

    def __post_init__(self) -> None:
        if not self.measured_j > 0:
            raise InputError(
                f"{self.net}: measured energy is {self.measured_j} J, so no relative error "
                "exists: leave that network out"
            )

    @property
    def error_percent(self) -> float:
        """The relative error of the estimate."""
        return 100.0 * (self.estimated_j / self.measured_j - 1.0)

    @property
    def hover_text(self) -> str:
        """The network, its estimate, its measurement and the error."""
        interval = ""
        if self.interval_j is not None:
            interval = " (interval {}–{})".format(*map(format_energy, self.interval_j))
        return (
            f"{self.net}\n{self.estimator}: {format_energy(self.estimated_j)}{interval}\n"
            f"measured: {format_energy(self.measured_j)}, error {self.error_percent:+.1f} %"
        )


def compute_mape_percent(rows: Iterable[ScoredEstimate]) -> float:
    """Return the mean absolute percentage error."""
    return statistics.fmean(abs(row.error_percent) for row in rows)


def plot_estimates(
    rows: Sequence[ScoredEstimate], caption: Caption = Caption(), step: str = "step"
) -> Plot:
    """Plot estimated against measured energy, a point per network, with the identity line.

    Args:
        rows: The estimates.
        caption: What is written above.
        step: What one step is called.
    """
    require_data(rows, "scored estimate")
    values = [value for row in rows for value in (row.measured_j, row.estimated_j)]
    is_log = needs_log_axis(values)
    low, high = choose_limits(values, is_log)
    x = Axis(f"Measured energy per {step}", "J", True, is_log, low, high)
    y = Axis(f"Estimated energy per {step}", "J", True, is_log, low, high)
    identity = Line("estimated = measured", (low, high), (low, high), MUTED, is_dashed=True)
    groups = _group_by(rows, lambda row: row.estimator)
    colours, markers = choose_colours(groups), choose_markers(groups)
    marks: list[Mark] = [identity]
    for name, group in groups.items():
        intervals = [row.interval_j or (row.estimated_j,) * 2 for row in group]
        marks.append(
            Points(
                name,
                tuple(row.measured_j for row in group),
                tuple(row.estimated_j for row in group),
                colours[name],
                # A logarithmic axis has no zero.
                low=tuple(max(end[0], low) if is_log else end[0] for end in intervals),
                high=tuple(end[1] for end in intervals),
                hover_texts=tuple(row.hover_text for row in group),
                marker=markers[name],
            )
        )
    panel = Panel(x, y, tuple(marks), is_square=True)
    return make_plot((panel,), caption, f"Estimated and measured energy per {step}")


def plot_mape_bars(
    rows: Sequence[ScoredEstimate],
    noise_percent: Mapping[str, float] | None = None,
    caption: Caption = Caption(),
) -> Plot:
    """Plot a bar of the mean error for each family and estimator.

    Args:
        rows: The scored estimates.
        noise_percent: For each family, the mean difference of two measurements of a network.
        caption: Title and provenance.
    """
    require_data(rows, "scored estimate")
    families = list(dict.fromkeys(row.family for row in rows))
    groups = _group_by(rows, lambda row: row.estimator)
    colours = choose_colours(groups)
    width = 0.8 / len(groups)
    marks: list[Mark] = []
    for index, (name, group) in enumerate(groups.items()):
        errors = {families.index(family): e for family, e in _compute_mapes(group).items()}
        marks.append(
            Bars(
                name,
                tuple(position - 0.4 + (index + 0.5) * width for position in errors),
                tuple(errors.values()),
                colours[name],
                0.92 * width,
                hover_texts=tuple(_describe_mape(families[i], name, e) for i, e in errors.items()),
                labels=tuple(f"{e:.2g}" if e < 10 else f"{e:.0f}" for e in errors.values()),
            )
        )
    for family, noise in (noise_percent or {}).items():
        if family in families:
            centre = families.index(family)
            ends = (centre - 0.45, centre + 0.45)
            marks.append(Line(_NOISE, ends, (noise,) * 2, TEXT, is_dashed=True))
    x, y = Axis("", categories=tuple(families)), Axis(_MAPE, "%", low=0.0)
    return make_plot((Panel(x, y, tuple(marks)),), caption, "Mean error by family")


def plot_mape_points(
    rows: Sequence[ScoredEstimate],
    noise_percent: Mapping[str, float] | None = None,
    caption: Caption = Caption(),
) -> Plot:
    """Plot the mean error on a logarithmic axis, a row per family and a point per estimator.

    Args:
        rows: The scored estimates.
        noise_percent: For each family, the mean difference of two measurements of a network.
        caption: Title and provenance.
    """
    require_data(rows, "scored estimate")
    families = list(dict.fromkeys(row.family for row in rows))
    # The first family is the top row.
    heights = {name: float(len(families) - 1 - i) for i, name in enumerate(families)}
    noise = {name: e for name, e in (noise_percent or {}).items() if name in heights and e > 0}
    groups = _group_by(rows, lambda row: row.estimator)
    errors = {name: _compute_mapes(group) for name, group in groups.items()}
    positive = [e for found in errors.values() for e in found.values() if e > 0]
    low, high = choose_limits([*positive, *noise.values()] or [1.0], is_log=True)
    colours, markers = choose_colours(groups), choose_markers(groups)
    marks: list[Mark] = []
    for name, found in errors.items():
        marks.append(
            Points(
                name,
                tuple(max(error, low) for error in found.values()),
                tuple(heights[family] for family in found),
                colours[name],
                hover_texts=tuple(_describe_mape(family, name, e) for family, e in found.items()),
                marker=markers[name],
            )
        )
    for family, value in noise.items():
        ends = (heights[family] - 0.32, heights[family] + 0.32)
        marks.append(Line(_NOISE, (value, value), ends, TEXT))
    x = Axis(_MAPE, "%", is_log=True, low=low, high=high)
    y = Axis("", categories=tuple(reversed(families)))
    return make_plot((Panel(x, y, tuple(marks)),), caption, "Mean error by family")


def plot_error_distribution(rows: Sequence[ScoredEstimate], caption: Caption = Caption()) -> Plot:
    """Plot the cumulative distribution of absolute errors; up and left is better."""
    require_data(rows, "scored estimate")
    groups = _group_by(rows, lambda row: row.estimator)
    colours = choose_colours(groups)
    errors = {
        name: sorted(abs(row.error_percent) for row in group) for name, group in groups.items()
    }
    largest = max(found[-1] for found in errors.values())
    medians = [statistics.median(found) for found in errors.values()]
    is_log = needs_log_axis([largest, *medians])
    start = min([1.0, *(median / 4 for median in medians)]) if is_log else 0.0
    marks = []
    for name, group in groups.items():
        ordered = sorted(group, key=lambda row: abs(row.error_percent))
        x = (start, *(max(start, abs(row.error_percent)) for row in ordered), largest)
        y = (0.0, *(100.0 * (i + 1) / len(ordered) for i in range(len(ordered))), 100.0)
        hover_texts = (name, *(row.hover_text for row in ordered), name)
        marks.append(Line(name, x, y, colours[name], is_step=True, hover_texts=hover_texts))
    x_axis = Axis(
        "Absolute percentage error", "%", is_log=is_log, low=start, high=1.02 * largest or 1.0
    )
    y_axis = Axis("Networks with at most this error", "%", low=0.0, high=103.0)
    panel = Panel(x_axis, y_axis, tuple(marks))
    return make_plot((panel,), caption, "Distribution of errors")


def _compute_mapes(rows: Iterable[ScoredEstimate]) -> dict[str, float]:
    """Return the mean error of each family."""
    groups = _group_by(rows, lambda row: row.family)
    return {family: compute_mape_percent(group) for family, group in groups.items()}


def _describe_mape(family: str, estimator: str, mape_percent: float) -> str:
    return f"{family}, {estimator}: MAPE {mape_percent:.1f} %"


def _group_by(
    rows: Iterable[ScoredEstimate], key: Callable[[ScoredEstimate], str]
) -> dict[str, list[ScoredEstimate]]:
    groups: dict[str, list[ScoredEstimate]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
