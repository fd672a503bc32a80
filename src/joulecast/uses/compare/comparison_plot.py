"""Plot a comparison: energy against time per sample, one panel for each meter coverage."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import MissingError
from joulecast.figures import (
    Caption,
    FrontPlotOptions,
    FrontPoint,
    Plot,
    combine_plots,
    plot_pareto_front,
)
from joulecast.records import weakest_provenance
from joulecast.uses.compare.comparison import Comparison, ComparisonRow


def plot_comparison(comparison: Comparison) -> Plot:
    """Return a plot of all ranked rows and their Pareto front.

    Raises:
        MissingError: No row could be ranked.
    """
    if not comparison.groups:
        raise MissingError("no combination could be ranked, so there is nothing to plot")
    panels = [_draw_group(covers, rows) for covers, rows in comparison.groups.items()]
    note = "; panels are not comparable" if len(panels) > 1 else ""
    caption = f"bars: {100 * comparison.level:g} % interval{note}"
    return combine_plots(f"{comparison.net}: energy and time per sample", panels, caption)


def _draw_group(covers: str, rows: Sequence[ComparisonRow]) -> Plot:
    points = [
        FrontPoint(
            f"{row.device}: {_describe_row(row)}",
            row.duration_s,
            row.energy_j,
            row.interval_j,
            label=f"#{row.rank}",
        )
        for row in rows
    ]
    provenance = weakest_provenance(row.estimate.provenance for row in rows if row.estimate)
    options = FrontPlotOptions(
        value_title="Time per sample",
        value_unit="s",
        is_higher_better=False,
        energy_title="Energy per sample",
        others="other combinations",
    )
    title = f"Joules of the {covers}" if provenance == "datasheet" else f"Meter covers {covers}"
    title += "" if provenance == "measured" else f" ({provenance})"
    return plot_pareto_front(points, options, Caption(title, provenance=provenance))


def _describe_row(row: ComparisonRow) -> str:
    words = [f"batch {row.setup.batch}", row.setup.optimizer, row.setup.precision]
    gpus = [f"{row.gpus} GPUs"] if row.gpus > 1 else []
    # Rows of one panel may rest on measurements, on data sheets or on either.
    provenance = row.estimate.provenance if row.estimate else "measured"
    return ", ".join([*words, *gpus, *([provenance] if provenance != "measured" else [])])
