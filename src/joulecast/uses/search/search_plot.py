"""A search as a picture: quality against joules, with intervals, the front and the budget."""

from __future__ import annotations

from joulecast.errors import MissingError
from joulecast.figures import Picture, Priced, draw_front
from joulecast.units import format_share
from joulecast.uses.search.search_result import SearchResult


def draw_search(found: SearchResult) -> Picture:
    """The front among all trials.

    Raises:
        MissingError: Nothing was trained yet.
    """
    if not found.points:
        raise MissingError("no trial was trained, so there is nothing to draw: give more trials")
    points = [
        Priced(
            f"trial {point.number}: {point.verdict.network.name}",
            point.score,
            point.verdict.energy_j,
            point.verdict.interval_j,
        )
        for point in found.points
    ]
    screen, profile = found.screen, found.screen.opened.profile
    steps = {point.verdict.steps for point in found.points}
    one = len(steps) == 1 or screen.budget.per == "run"
    level = format_share(screen.level)
    return draw_front(
        points,
        budget_j=screen.limit_total(min(steps)) if one else None,
        energy="estimated energy of a run"
        if screen.length.is_run
        else "estimated energy of a step",
        title=f"{screen.space.family}: score against energy",
        about=f"{profile.device.name}, meter covers {profile.covers}; bars hold with {level}",
        provenance=screen.opened.basis,
    )
