"""Plot a search: score against energy with intervals, the Pareto front and the budget."""

from __future__ import annotations

from joulecast.errors import MissingError
from joulecast.figures import (
    Caption,
    FrontPlotOptions,
    FrontPoint,
    Plot,
    plot_pareto_front,
)
from joulecast.records import name_step
from joulecast.uses.search.search_result import SearchResult


def plot_search(result: SearchResult) -> Plot:
    """Return a plot of all trained networks and their Pareto front.

    Raises:
        MissingError: No network was trained yet.
    """
    if not result.trials:
        raise MissingError("no network was trained, so there is nothing to plot: run more trials")
    points = [
        FrontPoint(
            f"trial {trial.number}: {trial.candidate.network.name}",
            trial.score,
            trial.candidate.energy_j,
            trial.candidate.interval_j,
        )
        for trial in result.trials
    ]
    screener, profile = result.screener, result.screener.fitted_profile.profile
    steps = {trial.candidate.steps for trial in result.trials}
    has_one_limit = len(steps) == 1 or screener.budget.per == "run"
    period = "run" if screener.length.is_run else name_step(screener.space.setup)
    level = f"{100 * screener.level:g} %"
    options = FrontPlotOptions(
        budget_j=screener.compute_run_limit_j(min(steps)) if has_one_limit else None,
        energy_title=f"Estimated energy per {period}",
    )
    caption = Caption(
        f"{screener.space.family}: score against energy",
        f"{profile.device.name}, joules of the {profile.covers}; bars: {level} interval",
        screener.fitted_profile.provenance,
    )
    return plot_pareto_front(points, options, caption)
