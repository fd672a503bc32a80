"""``joulecast search FAMILY``: search for accurate nets within an energy budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.interruptions import report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.output import OutputOptions, save_plots, write_result
from joulecast.cli.print_search import print_screening, print_search
from joulecast.cli.progress import show_report
from joulecast.errors import InputError
from joulecast.features.nets import NetRequest, find_training
from joulecast.features.options import EstimateOptions, SearchOptions
from joulecast.features.profiles import load_profile
from joulecast.features.search import SearchTask, make_search_screener, run_search
from joulecast.uses.search import (
    BudgetScreener,
    Dimension,
    SearchResult,
    check_reachable,
    parse_dimension,
    screen_randomly,
)


@dataclass(frozen=True)
class TrainingOptions:
    """How candidates are scored.

    Attributes:
        train: Name of the training function; without one, candidates are only screened.
        candidates: Random nets to screen without a training function.
    """

    train: str | None
    candidates: int


def parse_dimensions(ctx: Any, param: Any, value: Any) -> dict[str, Dimension]:
    """Click callback that parses ``c1=8..64`` into dimensions by name."""
    try:
        return dict(parse_dimension(str(text)) for text in value)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command()
@click.argument("net", metavar="FAMILY")
@options.net_options
@options.budget
@options.device
@options.estimating
@collect(
    "searching",
    SearchOptions,
    options.confidence,
    click.option(
        "--vary",
        multiple=True,
        callback=parse_dimensions,
        metavar="NAME=VALUES",
        help="c1=8..64/8, batch=16,32, precision=fp32,bf16, lr=1e-4..1e-1/log; one value fixes it."
        "  [default: every width and depth from 1 to FAMILY's]",
    ),
    click.option(
        "--trials", type=click.IntRange(1), default=50, show_default=True, help="Nets to train."
    ),
    click.option(
        "--sampler", default="nsga2", show_default=True, help="nsga2, tpe, random, gp ..."
    ),
    click.option(
        "--objective",
        type=click.Choice(("pareto", "score")),
        default="pareto",
        show_default=True,
        help="Score against energy, or the score alone.",
    ),
    click.option("--storage", metavar="URL", help="Optuna storage, like sqlite:///search.db."),
    click.option("--study", default="", metavar="NAME", help="Name of the study in the storage."),
    options.seed,
)
@collect(
    "training",
    TrainingOptions,
    click.option(
        "--train", metavar="FILE.PY:NAME", help="Training function: (net, trial) → score."
    ),
    click.option(
        "--candidates",
        type=click.IntRange(1),
        default=1000,
        show_default=True,
        help="Without --train: random nets to screen.",
    ),
)
@options.plotted_output
def search(
    request: NetRequest,
    budget: options.RunBudget,
    device: str,
    estimating: EstimateOptions,
    searching: SearchOptions,
    training: TrainingOptions,
    output: OutputOptions,
) -> None:
    """Search FAMILY for nets with a high score within an energy budget.

    Candidates that are estimated to exceed the budget are ruled out before training. The others are
    trained by your own function, which gets the net (a PyTorch module) and Optuna's trial, and
    returns a score; larger is better. Without --train the command only lists nets that keep the
    budget.
    """
    profile = load_profile(device, store=estimating.store)
    task = SearchTask(request, budget.text, budget.length, estimating)
    has_training = training.train is not None
    screener = make_search_screener(task, profile, searching, trains=has_training)
    if training.train is None:
        _refuse_training_options()
        check_reachable(screener, searching.seed)
        screening = screen_randomly(screener, training.candidates, searching.seed)
        write_result(output, screening.to_dict(), lambda: print_screening(screening))
        return
    result = _train(screener, training.train, searching)
    if output.plot:
        from joulecast.uses.search.search_plot import plot_search

        save_plots(output.plot, [plot_search(result)])
    write_result(output, result.to_dict(), lambda: print_search(result, searching.storage))


def _refuse_training_options() -> None:
    """Raise UsageError for options that only make sense with a training function."""
    for name in ("trials", "sampler", "objective", "storage", "study", "plot"):
        if options.is_typed(name):
            raise click.UsageError(f"--{name} needs --train", click.get_current_context())


def _train(screener: BudgetScreener, train: str, searching: SearchOptions) -> SearchResult:
    from joulecast.uses.search.study import silence_optuna

    score = find_training(train)
    silence_optuna()
    kept = f"finished trials are in {searching.storage}; run it again to continue"
    lost = "its trials are lost; give --storage to keep them"
    with report_interruption(kept if searching.storage else lost), show_report() as tell:
        return run_search(screener, score, searching, tell)
