"""Print what ``joulecast search`` found: the Pareto front, or nets that keep a budget."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.cli.setups import (
    describe_setup,
    explain_not_included,
    is_inference,
)
from joulecast.cli.terminal import (
    describe_coverage,
    describe_provenance,
    format_interval,
    format_level,
    make_console,
    plural,
    print_notes,
    print_table,
)
from joulecast.families import FAMILIES
from joulecast.records import name_step
from joulecast.redaction import redact_url
from joulecast.units import format_count, format_duration, format_energy, format_share
from joulecast.uses.search import (
    BudgetScreener,
    Choice,
    RandomScreening,
    ScreenedCandidate,
    SearchResult,
    TrainedTrial,
)

_MAX_ROWS = 15


def print_search(result: SearchResult, storage: str | None) -> None:
    """Print the Pareto front of a search."""
    console, screener, front = make_console(), result.screener, result.front
    console.print(_describe_task("Searching", screener))
    console.print(
        f"{plural(len(result.trials), 'trial')} trained, sampled by {result.sampler}; "
        f"{result.ruled_out_count:,} of {result.screened_count:,} candidates were ruled out before "
        "training.\n"
    )
    if front:
        columns = ("net", *_list_extra(screener), ">score", *_list_costs(screener))
        columns += (">P(budget)", ">P(front)")
        rows = [_format_trial(trial, screener) for trial in front[:_MAX_ROWS]]
        title = f"Pareto front, least energy first; {_describe_period(screener)}"
        print_table(console, columns, rows, title=title)
    if len(front) > _MAX_ROWS:
        console.print(f"{len(front) - _MAX_ROWS} more on the front: see --json")
    print_notes(console, _list_notes(result, storage))


def print_screening(screening: RandomScreening) -> None:
    """Print the largest of the random nets that keep the budget."""
    console, screener, kept = make_console(), screening.screener, screening.within_budget
    count = len(screening.candidates)
    console.print(_describe_task("Screening", screener))
    console.print(
        f"{len(kept):,} of {count:,} random candidates keep the budget "
        f"({format_share(len(kept) / count)}); {count / screening.duration_s:,.0f} screened per "
        "second.\n"
    )
    if kept:
        columns = ("net", *_list_extra(screener), ">parameters", *_list_costs(screener))
        columns += (">P(budget)",)
        rows = [_format_candidate(candidate, screener) for candidate in kept[:_MAX_ROWS]]
        title = f"The largest of them; {_describe_period(screener)}"
        print_table(console, columns, rows, title=title)
    notes = [
        "P(budget): probability that the budget is kept. Their accuracy is unknown: give --train "
        "FILE.PY:NAME to train nets that keep the budget.",
    ]
    if screening.interpolated_count:
        notes.append(
            f"{screening.interpolated_count:,} of {count:,} estimates were interpolated between "
            "exact ones, and their intervals widened by the error of that."
        )
    print_notes(console, notes + _explain_energy(screener, screening.candidates))


def _list_extra(screener: BudgetScreener) -> tuple[str, ...]:
    """Return the heading of values that the names of nets do not show, where there are any."""
    return ("with",) if _list_other_dimensions(screener) else ()


def _list_costs(screener: BudgetScreener) -> tuple[str, ...]:
    return (">energy", f">{format_level(screener.level)}", ">time")


def _format_trial(trial: TrainedTrial, screener: BudgetScreener) -> tuple[str, ...]:
    candidate = trial.candidate
    return (
        candidate.network.name,
        *_format_params(candidate, screener),
        f"{trial.score:.4g}",
        *_format_cost(candidate),
        format_share(candidate.budget_probability),
        format_share(trial.front_probability),
    )


def _format_candidate(candidate: ScreenedCandidate, screener: BudgetScreener) -> tuple[str, ...]:
    return (
        candidate.name,
        *_format_params(candidate, screener),
        format_count(candidate.parameters),
        *_format_cost(candidate),
        format_share(candidate.budget_probability),
    )


def _format_cost(candidate: ScreenedCandidate) -> tuple[str, str, str]:
    about = "about " if candidate.estimate.unseen_share > 0 else ""
    return (
        about + format_energy(candidate.energy_j),
        format_interval(candidate.interval_j, format_energy),
        format_duration(candidate.duration_s),
    )


def _format_params(candidate: ScreenedCandidate, screener: BudgetScreener) -> tuple[str, ...]:
    """Return the cell of values that the name does not show: ``batch 16, bf16, lr 0.0016``."""
    parts = []
    for name in _list_other_dimensions(screener):
        value = candidate.params[name]
        text = f"{value:.2g}" if isinstance(value, float) else str(value)
        parts.append(text if isinstance(value, str) else f"{name} {text}")
    return (", ".join(parts),) if parts else ()


def _list_other_dimensions(screener: BudgetScreener) -> list[str]:
    """Return the dimensions that vary and that the name of a net does not show."""
    widths = FAMILIES[screener.space.family.partition(":")[0]].params
    return [
        name
        for name, dimension in screener.space.dimensions.items()
        if name not in widths and not (isinstance(dimension, Choice) and len(dimension.values) == 1)
    ]


def _describe_task(verb: str, screener: BudgetScreener) -> str:
    space = screener.space
    budget = screener.describe_budget()
    limit = "" if screener.budget.share is None else f" (about {format_energy(screener.limit_j)})"
    return (
        f"{verb} {space.family} on {screener.fitted_profile.profile.device.name}: "
        f"{describe_setup(space.setup)}; budget {budget}{limit}, kept with a probability "
        f"of at least {format_share(screener.confidence)}"
    )


def _describe_period(screener: BudgetScreener) -> str:
    step = name_step(screener.space.setup)
    return f"energy and time of one {'run' if screener.length.is_run else step}"


def _list_notes(result: SearchResult, storage: str | None) -> list[str]:
    notes = [
        "P(budget): probability that the budget is kept. P(front): probability that no other trial "
        "has at least this score for less energy.",
    ]
    if result.pruned_count or result.failed_count:
        pruned = plural(result.pruned_count, "trial")
        notes.append(f"{pruned} pruned, {result.failed_count:,} failed.")
    notes += _explain_energy(result.screener, [trial.candidate for trial in result.trials])
    if storage:
        notes.append(
            f"Stored as study {result.study!r}: the same command continues it. To view it:"
        )
        notes.append(f"    optuna-dashboard {redact_url(storage)}")
    return notes


def _explain_energy(screener: BudgetScreener, candidates: Sequence[ScreenedCandidate]) -> list[str]:
    fitted = screener.fitted_profile
    notes = [
        f"Energies are estimates. Provenance: {describe_provenance(fitted.provenance)}; "
        f"{describe_coverage(fitted.provenance, fitted.profile.covers)}. "
        f"{explain_not_included(screener.space.setup)}"
    ]
    step = "An inference" if is_inference(screener.space.setup) else "A step"
    if "batch" in _list_other_dimensions(screener) and screener.length.epochs is None:
        notes.append(
            f"{step} with a smaller batch does less work: give --epochs and --samples to compare "
            "batch sizes by the energy of a whole run."
        )
    unseen = sum(candidate.estimate.unseen_share > 0 for candidate in candidates)
    if unseen:
        notes.append(
            f"about: {unseen:,} of {len(candidates):,} have layers or a setup that were never "
            "measured on the device; profile them before you rely on their energy."
        )
    return notes
