"""A comparison as a picture: joules of a sample against its seconds, a panel for each coverage."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import MissingError
from joulecast.figures import Picture, Priced, draw_front, join_pictures
from joulecast.records import weakest_provenance
from joulecast.units import format_share
from joulecast.uses.compare.comparison import Comparison, ComparisonRow


def draw_comparison(found: Comparison) -> Picture:
    """Every ranked combination, with the front.

    Raises:
        MissingError: None could be ranked.
    """
    if not found.groups:
        raise MissingError("no combination could be ranked, so there is nothing to draw")
    pictures = [_draw_group(covers, rows) for covers, rows in found.groups.items()]
    apart = "; panels are not comparable" if len(pictures) > 1 else ""
    about = f"bars hold with {format_share(found.level)}{apart}"
    return join_pictures(f"{found.net}: joules and seconds of a sample", pictures, about)


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
    basis = weakest_provenance(row.estimate.basis for row in rows if row.estimate)
    return draw_front(
        points,
        worth="time of a sample",
        unit="s",
        more_is_better=False,
        energy="energy of a sample",
        others="other combinations",
        title=f"meters cover {covers}" + ("" if basis == "measured" else f" ({basis})"),
        provenance=basis,
    )
