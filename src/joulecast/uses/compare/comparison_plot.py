"""Plot a comparison: energy against time per sample, one panel for each meter coverage."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import MissingError
from joulecast.figures import Picture, Priced, draw_front, join_pictures
from joulecast.records import weakest_provenance
from joulecast.units import format_share
from joulecast.uses.compare.comparison import Comparison, ComparisonRow


def draw_comparison(comparison: Comparison) -> Picture:
    """Return a plot of all ranked rows and their Pareto front.

    Raises:
        MissingError: No row could be ranked.
    """
    if not comparison.groups:
        raise MissingError("no combination could be ranked, so there is nothing to plot")
    panels = [_draw_group(covers, rows) for covers, rows in comparison.groups.items()]
    note = "; panels are not comparable" if len(panels) > 1 else ""
    caption = f"bars: {format_share(comparison.level)} interval{note}"
    return join_pictures(f"{comparison.net}: energy and time per sample", panels, caption)


def _draw_group(covers: str, rows: Sequence[ComparisonRow]) -> Picture:
    points = [
        Priced(
            f"{row.device}: batch {row.setup.batch}, {row.setup.optimizer}, {row.setup.precision}",
            row.duration_s,
            row.energy_j,
            row.interval_j,
            tag=f"#{row.rank}",
        )
        for row in rows
    ]
    provenance = weakest_provenance(row.estimate.provenance for row in rows if row.estimate)
    return draw_front(
        points,
        worth="time per sample",
        unit="s",
        more_is_better=False,
        energy="energy per sample",
        others="other combinations",
        title=f"meter covers {covers}" + ("" if provenance == "measured" else f" ({provenance})"),
        provenance=provenance,
    )
