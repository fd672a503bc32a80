"""Plot a search: score against energy with intervals, the Pareto front and the budget."""

from __future__ import annotations

from joulecast.errors import MissingError
from joulecast.records import name_step
from joulecast.units import format_energy
from joulecast.uses.search.search_result import SearchResult
from joulecast.views.plot_kinds import FrontPoint, draw_front, make_plot
from joulecast.views.report import Plot, make_table


def plot_search(result: SearchResult) -> Plot:
    """Return a plot of all trained networks and their Pareto front.

    Raises:
        MissingError: No network was trained yet.
    """
    if not result.trials:
        raise MissingError("no network was trained, so there is nothing to plot: run more trials")
    points = [
        FrontPoint(
            str(trial.number),
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
    limit_j = screener.compute_run_limit_j(min(steps)) if has_one_limit else None
    rows = [
        (
            str(trial.number),
            trial.candidate.network.name,
            f"{trial.score:.4g}",
            format_energy(trial.candidate.energy_j),
        )
        for trial in result.trials
    ]
    return make_plot(
        "search",
        f"{screener.space.family}: score against energy",
        lambda axes: draw_front(
            axes,
            points,
            budget_j=limit_j,
            energy=f"Estimated energy per {period}",
            others="other networks",
        ),
        make_table((">trial", "network", ">score", ">energy"), rows),
        screener.fitted_profile.provenance,
        f"{profile.device.name}, joules of the {profile.covers}; bars: {level} interval. Numbers "
        "are those of trials.",
    )
