"""Search a family for accurate nets within an energy budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulecast.budgets import RunLength, parse_budget
from joulecast.features.nets import NetRequest, Shape, build_module, check_family
from joulecast.features.options import (
    EstimateOptions,
    ProgressOptions,
    SearchOptions,
    split_options,
)
from joulecast.features.profiles import find_profile
from joulecast.features.progress_report import ReportProgress
from joulecast.records import Profile, Setup

if TYPE_CHECKING:
    from joulecast.features.option_values import DeviceLike
    from joulecast.uses.search import BudgetScreener, SearchResult


def search(
    family: str,
    score: Callable[[Any, Any], float],
    *,
    budget: str,
    device: DeviceLike | Profile = "",
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> SearchResult:
    """Search a family for nets with a high score within an energy budget.

    Candidates that are estimated to exceed the budget are never trained.

    Args:
        family: Name of the family; widths in it are the largest ones.
        score: Trains a net and returns its score, larger is better. It is called with a PyTorch
            module and Optuna's trial; ``trial.params`` holds the chosen values.
        budget: ``0.5Wh`` or ``50%`` of a run, ``5J/step``; ``5J`` is for a step where the run has
            no length.
        device: A device with a profile (see ``load_profile``), or the profile itself.
        setup: How nets are trained where nothing varies; the family's own batch by default.
        input_shape: Shape of one sample, where it differs from the family's.
        options: Fields of ``Setup`` (``batch=128``), of ``RunLength``: ``steps``, or ``epochs`` and
            ``samples``, of ``SearchOptions`` (``trials=100``) and of ``EstimateOptions``; also
            ``on_progress``, which is called after every trial.
    """
    setup_options, length, searching, estimating, reporting = split_options(
        search, options, Setup, RunLength, SearchOptions, EstimateOptions, ProgressOptions
    )
    how, estimates = SearchOptions(**searching), EstimateOptions(**estimating)
    task = SearchTask(
        NetRequest(family, None, setup, input_shape, setup_options),
        budget,
        RunLength(**length),
        estimates,
    )
    screener = make_search_screener(task, find_profile(device, estimates.store), how, trains=True)
    return run_search(screener, score, how, ProgressOptions(**reporting).on_progress)


@dataclass(frozen=True)
class SearchTask:
    """A family to search, and the budget of its nets."""

    request: NetRequest
    budget: str
    length: RunLength
    estimating: EstimateOptions


def make_search_screener(
    task: SearchTask, profile: Profile, options: SearchOptions, *, trains: bool
) -> BudgetScreener:
    """Return what estimates candidates and compares them with the budget.

    Args:
        task: Family, budget and length of a run.
        profile: Profile of the device.
        options: What varies, and with which probability the budget is kept.
        trains: Whether candidates are trained; only then may dimensions vary that change no energy.
    """
    from joulecast.uses.search import make_screener, make_search_space

    request = task.request
    check_family(request.name)
    setup = request.resolve()[1]
    space = make_search_space(request.name, setup, options.vary, request.input_shape, trains=trains)
    return make_screener(
        profile,
        space,
        parse_budget(task.budget, task.length),
        task.length,
        confidence=options.confidence,
        estimator=task.estimating.estimator,
        level=task.estimating.level,
    )


def run_search(
    screener: BudgetScreener,
    score: Callable[[Any, Any], float],
    options: SearchOptions,
    on_progress: ReportProgress | None = None,
) -> SearchResult:
    """Train candidates that keep the budget, and return the trials and their Pareto front.

    Args:
        screener: Estimates candidates and compares them with the budget.
        score: Trains a net and returns its score.
        options: What varies, and how Optuna runs the search.
        on_progress: Called after every trial.
    """
    from joulecast.uses.search.study import search as optimize

    return optimize(screener, score, options, build_module, on_progress)
