"""Run a search as an Optuna study.

    ScreeningSampler ── a candidate within the budget, found before the trial starts
        ▼
    objective ── user attributes: energy_j, interval_j, budget_probability, within_budget ...
        ├─ exceeds the budget: TrialPruned before training; the constraint tells the sampler
        └─ within the budget: build, train, score ──▶ (score, energy_j), or the score alone

A trial can exceed the budget only if the sampler ignores the wrapper's candidate (a grid), if it
was enqueued, or if nothing fitted after ``tries`` candidates. Only this module and
``screening_sampler`` import Optuna.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from joulecast.errors import InputError, JoulecastError, NetError, StoreError
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.records import Network
from joulecast.redaction import redact_url
from joulecast.user_errors import describe_user_error
from joulecast.uses.search.random_screening import check_reachable
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.screening_sampler import (
    ScreeningSampler,
    TrialScreening,
    make_sampler,
    suggest_value,
)
from joulecast.uses.search.search_result import SearchResult, make_trained_trials
from joulecast.uses.search.study_identity import check_same_study, describe_study
from joulecast.uses.search_options import SearchOptions

# After screening_sampler, which says what to install if Optuna is missing.
import optuna  # isort: skip

ScoreFunction = Callable[[Any, optuna.Trial], float]
BuildFunction = Callable[[Network, int], Any]
_CONSTRAINT = "energy budget"
_IDENTITY = "joulecast"
# Raised by Optuna if a sampler cannot do what is asked, or if a storage breaks.
_OPTUNA_ERRORS = (optuna.exceptions.OptunaError, ValueError, NotImplementedError)
_MAX_MESSAGE_SIZE = 300


def search(
    screener: BudgetScreener,
    score: ScoreFunction,
    options: SearchOptions | None = None,
    build: BuildFunction | None = None,
    on_progress: ReportProgress | None = None,
) -> SearchResult:
    """Search for networks with a high score within the budget.

    Args:
        screener: Space, budget and estimator; its confidence is used, not that of ``options``.
        score: Training function: takes a network and Optuna's trial and returns a score; higher
            is better. ``trial.params`` has all values, ``trial.user_attrs`` the estimate.
        options: Number of trials, sampler, objective and storage.
        build: Builds from a Network and a seed what ``score`` receives; the Network by default.
        on_progress: Called after every trial.

    Raises:
        InputError: No candidate meets the budget, or the study was started with other options.
        NetError: The training function fails, or does not return a number.
        StoreError: The storage cannot be opened.
    """
    options = options or SearchOptions()
    check_reachable(screener, options.seed)
    study = _open_study(screener, options)
    # The seed differs when a study is continued, so that the same candidates do not return.
    inner = make_sampler(options.sampler, options.seed + len(study.get_trials(deepcopy=False)))
    study.sampler = sampler = ScreeningSampler(inner, screener, options.tries)
    objective = _Objective(screener, sampler, score, options, build)
    callbacks = [_make_callback(on_progress, options.trials)] if on_progress else None
    with _translate_errors("the study", _OPTUNA_ERRORS):
        study.optimize(objective, n_trials=options.trials, callbacks=callbacks)
    if objective.error is not None:
        raise objective.error
    return summarise_study(study, screener, type(inner).__name__)


def summarise_study(
    study: optuna.Study, screener: BudgetScreener, sampler: str = ""
) -> SearchResult:
    """Return the state of a study, which other processes may still be adding trials to."""
    states = optuna.trial.TrialState
    ended = study.get_trials(deepcopy=False)
    names = screener.space.dimensions
    trained = [
        (one.number, float(one.values[0]), {name: one.params[name] for name in names})
        for one in ended
        if one.state == states.COMPLETE and one.values and set(names) <= set(one.params)
    ]
    return SearchResult(
        study=study.study_name,
        screener=screener,
        trials=make_trained_trials(screener, trained),
        screened_count=sum(one.user_attrs.get("screened", 0) for one in ended),
        ruled_out_count=sum(one.user_attrs.get("ruled_out", 0) for one in ended),
        pruned_count=sum(one.state == states.PRUNED for one in ended),
        failed_count=sum(one.state == states.FAIL for one in ended),
        sampler=sampler,
    )


def silence_optuna() -> None:
    """Let Optuna log errors only, for programs that report trials and failures themselves."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


class _Objective:
    """The function that Optuna calls for every trial."""

    def __init__(
        self,
        screener: BudgetScreener,
        sampler: ScreeningSampler,
        score: ScoreFunction,
        options: SearchOptions,
        build: BuildFunction | None,
    ) -> None:
        self.screener, self.sampler, self.score = screener, sampler, score
        self.options, self.build = options, build
        self.error: JoulecastError | None = None

    def __call__(self, trial: optuna.Trial) -> float | tuple[float, float]:
        params = {
            name: suggest_value(trial, name, dimension)
            for name, dimension in self.screener.space.dimensions.items()
        }
        screening = self.sampler.pop_screening(trial.number, params)
        candidate = screening.candidate
        _set_attributes(trial, self.screener, screening)
        if not candidate.is_within_budget:
            reason = self.screener.explain_rejection(candidate)
            trial.set_user_attr("reason", reason)
            raise optuna.TrialPruned(reason)
        try:
            score = self._train(candidate, trial)
        except JoulecastError as error:
            # If it were raised here, Optuna would print a traceback. The trial fails, and the
            # search stops and raises it.
            self.error, score = error, math.nan
            trial.set_user_attr("reason", str(error))
            trial.study.stop()
        return score if self.options.objective == "score" else (score, candidate.energy_j)

    def _train(self, candidate: ScreenedCandidate, trial: optuna.Trial) -> float:
        net: Any = candidate.network
        try:
            if self.build is not None:
                net = self.build(candidate.network, self.options.seed + trial.number)
            score = self.score(net, trial)
        except (optuna.TrialPruned, JoulecastError):
            raise
        except Exception as error:
            raise NetError(
                f"training {candidate.network.name} failed in trial {trial.number}: "
                f"{describe_user_error(error)}"
            ) from error
        try:
            value = float(score)
        except (TypeError, ValueError):
            raise NetError(
                f"the training function returned {type(score).__name__} in trial {trial.number}: "
                "return one number, the score; higher is better"
            ) from None
        # Optuna records a trial that returns NaN as failed, and continues.
        return value if math.isfinite(value) else math.nan


def _set_attributes(
    trial: optuna.Trial, screener: BudgetScreener, screening: TrialScreening
) -> None:
    """Store the estimate as user attributes, which the dashboard shows."""
    candidate = screening.candidate
    attributes = candidate.to_dict()
    for name in ("params", "setup"):
        attributes.pop(name)
    attributes.update(
        device=screener.fitted_profile.profile.device.name,
        covers=screener.fitted_profile.profile.covers,
        budget=str(screener.budget),
        screened=screening.screened_count,
        ruled_out=screening.ruled_out_count,
    )
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    # Optuna 5 passes constraints to samplers; earlier versions show them a pruned trial.
    if hasattr(trial, "set_constraint"):
        trial.set_constraint(_CONSTRAINT, screener.confidence - candidate.budget_probability)


def _make_callback(
    on_progress: ReportProgress, total: int
) -> Callable[[optuna.Study, optuna.trial.FrozenTrial], None]:
    done = 0

    def report(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        nonlocal done
        done += 1
        on_progress(ProgressReport(done, total, "trials"))

    return report


def _open_study(screener: BudgetScreener, options: SearchOptions) -> optuna.Study:
    identity = describe_study(screener, options.objective)
    both = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    directions = both if options.objective == "pareto" else both[:1]
    name = options.study or f"{screener.space.family} on {identity['device']}"
    storage = options.storage
    where = _describe_storage(storage) if isinstance(storage, str) else "the study"
    with _translate_errors(where, (Exception,)):
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=directions,
            load_if_exists=True,
        )
        stored = study.user_attrs.get(_IDENTITY)
        if stored is None:
            study.set_user_attr(_IDENTITY, identity)
            _name_metrics(study, ("score", "energy_j")[: len(directions)])
    if stored is not None:
        check_same_study(name, stored, identity)
    return study


def _describe_storage(url: str) -> str:
    shown = redact_url(url)
    # Drivers would take a part of the password for the host, and quote it.
    if shown.count("@") < url.count("@"):
        raise InputError(f"the storage {shown} has several @: write @ in a password as %40")
    return f"the storage {shown}"


def _name_metrics(study: optuna.Study, names: tuple[str, ...]) -> None:
    """Set the labels of the dashboard's axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(names))


@contextmanager
def _translate_errors(what: str, types: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise errors of Optuna as a StoreError with a one-line message."""
    try:
        yield
    except JoulecastError:
        raise
    except types as error:
        raise StoreError(
            f"{what} cannot be used ({type(error).__name__}: {_flatten_message(error)}): give "
            "another storage, study or sampler"
        ) from error


def _flatten_message(error: Exception) -> str:
    # Before it is cut: half a password is still half a password.
    return redact_url(" ".join(str(error).split()))[:_MAX_MESSAGE_SIZE]
