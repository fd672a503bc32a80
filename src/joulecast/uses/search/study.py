"""Optuna drives: its samplers propose, its storage keeps, its dashboard shows.

    ScreeningSampler ── a candidate that keeps the budget, before there is a trial (sampling.py)
        ▼
    objective ── attributes: energy_j, interval_j, chance, within_budget ...
        ├─ outside the budget: TrialPruned, before a step is trained; the sampler is told how far
        └─ inside: build, train, score ──▶ (score, joules): two objectives, or the score alone

Outside are trials only where a sampler keeps to its candidate (a grid), where somebody enqueued
one, or where nothing fitted after ``tries`` candidates. Only this file and sampling.py know Optuna.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from joulecast.errors import InputError, JoulecastError, NetError, StoreError
from joulecast.records import Network
from joulecast.uses.search.study_identity import check_same, describe_study
from joulecast.uses.search.search_result import SearchResult, make_trained_trials, hide_password
from joulecast.uses.search.screening_sampler import TRIES, ScreeningRecord, ScreeningSampler, make_sampler, suggest
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.random_screening import check_reachable

# Behind sampling.py, which says what to do where it is not installed.
import optuna  # isort: skip

Json = dict[str, Any]
ScoreFunction = Callable[[Any, optuna.Trial], float]
Build = Callable[[Network, int], Any]
OBJECTIVES = ("pareto", "score")
_CONSTRAINT = "energy budget"
_ABOUT = "joulecast"
# What it raises where a sampler cannot do what is asked, or a storage breaks in between.
_OPTUNAS = (optuna.exceptions.OptunaError, ValueError, NotImplementedError)


def search(
    screen: BudgetScreener,
    score: ScoreFunction,
    *,
    trials: int = 50,
    sampler: str | optuna.samplers.BaseSampler = "nsga2",
    objective: str = "pareto",
    storage: str | optuna.storages.BaseStorage | None = None,
    study_name: str = "",
    seed: int = 0,
    tries: int = TRIES,
    build: Build | None = None,
    on_trial: Callable[[optuna.Study, optuna.trial.FrozenTrial], None] | None = None,
) -> SearchResult:
    """Search for nets that are good and within the budget.

    Args:
        screen: The space, the budget and whose profile answers.
        score: The training function: the net and Optuna's trial → how good it is; more is better.
            ``trial.params`` has all values, ``trial.user_attrs`` the estimate.
        trials: How many more to train.
        sampler: One of ``SAMPLERS``, the name of a class of ``optuna.samplers``, or a sampler.
        objective: ``pareto``: the score and the joules; ``score``: the score alone, which also
            lets a training function report and be pruned.
        storage: Where Optuna keeps the study, like ``sqlite:///search.db``; in memory by default.
        study_name: Its name there: what is there already goes on.
        seed: Of the sampler, and of each net's first weights.
        tries: Candidates to ask for at most for one trial.
        build: Makes of a Network and a seed what ``score`` gets; the Network itself by default.
        on_trial: Is told of every trial that ends.

    Raises:
        InputError: Nothing in the space keeps the budget, or the study is about something else.
        NetError: The training function fails, or returns no number.
        StoreError: The storage cannot be opened.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective is {objective!r}: choose one of {', '.join(OBJECTIVES)}")
    check_reachable(screen, seed)
    study = _open_study(screen, objective, storage, study_name)
    # A study that goes on is not to be asked for the same candidates again.
    inner = make_sampler(sampler, seed + len(study.get_trials(deepcopy=False)))
    study.sampler = screening = ScreeningSampler(inner, screen, tries)
    run = _Objective(screen, screening, score, objective, build, seed)
    with _at_the_door("the study", _OPTUNAS):
        study.optimize(run, n_trials=trials, callbacks=[on_trial] if on_trial else None)
    if run.error is not None:
        raise run.error
    return summarise_study(study, screen, type(inner).__name__)


class _Objective:
    """What Optuna calls for every trial."""

    def __init__(
        self,
        screen: BudgetScreener,
        sampler: ScreeningSampler,
        score: ScoreFunction,
        objective: str,
        build: Build | None,
        seed: int,
    ) -> None:
        self.screen, self.sampler, self.score = screen, sampler, score
        self.objective, self.build, self.seed = objective, build, seed
        self.error: JoulecastError | None = None

    def __call__(self, trial: optuna.Trial) -> float | tuple[float, float]:
        params = {
            name: suggest(trial, name, dimension)
            for name, dimension in self.screen.space.dimensions.items()
        }
        look = self.sampler.recall(trial.number, params)
        verdict = look.verdict
        _note(trial, self.screen, look)
        if not verdict.within:
            reason = self.screen.explain(verdict)
            trial.set_user_attr("reason", reason)
            raise optuna.TrialPruned(reason)
        try:
            score = self._train(verdict, trial)
        except JoulecastError as error:
            # Raised from here, Optuna would print a traceback; the trial fails, the search ends.
            self.error, score = error, math.nan
            trial.set_user_attr("reason", str(error))
            trial.study.stop()
        return score if self.objective == "score" else (score, verdict.energy_j)

    def _train(self, verdict: ScreenedCandidate, trial: optuna.Trial) -> float:
        net: Any = verdict.network
        try:
            if self.build is not None:
                net = self.build(verdict.network, self.seed + trial.number)
            score = self.score(net, trial)
        except (optuna.TrialPruned, JoulecastError):
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise NetError(
                f"training {verdict.network.name} in trial {trial.number} fails: "
                f"{type(error).__name__}: {text}"
            ) from error
        try:
            value = float(score)
        except (TypeError, ValueError):
            raise NetError(
                f"the training function returned {type(score).__name__} in trial {trial.number}: "
                "return one number, the score; more is better"
            ) from None
        # Not a number is Optuna's word for a trial that failed and shall not stop the others.
        return value if math.isfinite(value) else math.nan


def _note(trial: optuna.Trial, screen: BudgetScreener, look: ScreeningRecord) -> None:
    """What the estimate says, where the dashboard and everybody else finds it."""
    verdict = look.verdict
    said = verdict.to_dict()
    for name in ("params", "setup"):
        said.pop(name)
    said.update(
        device=screen.opened.profile.device.name,
        covers=screen.opened.profile.covers,
        budget=str(screen.budget),
        screened=look.screened,
        ruled_out=look.ruled_out,
    )
    for name, value in said.items():
        trial.set_user_attr(name, value)
    # From Optuna 5 on samplers are told so; earlier ones see the trial pruned.
    if hasattr(trial, "set_constraint"):
        trial.set_constraint(_CONSTRAINT, screen.confidence - verdict.chance)


def silence_optuna() -> None:
    """Let Optuna say errors only: for programs that tell of trials and failures themselves."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def summarise_study(study: optuna.Study, screen: BudgetScreener, sampler: str = "") -> SearchResult:
    """What a study holds so far: also that of a storage that others fill."""
    states = optuna.trial.TrialState
    ended = study.get_trials(deepcopy=False)
    names = screen.space.dimensions
    trained = [
        (one.number, float(one.values[0]), {name: one.params[name] for name in names})
        for one in ended
        if one.state == states.COMPLETE and one.values and set(names) <= set(one.params)
    ]
    return SearchResult(
        study=study.study_name,
        screen=screen,
        points=make_trained_trials(screen, trained),
        screened=sum(one.user_attrs.get("screened", 0) for one in ended),
        ruled_out=sum(one.user_attrs.get("ruled_out", 0) for one in ended),
        pruned=sum(one.state == states.PRUNED for one in ended),
        failed=sum(one.state == states.FAIL for one in ended),
        sampler=sampler,
    )


def _open_study(
    screen: BudgetScreener,
    objective: str,
    storage: str | optuna.storages.BaseStorage | None,
    name: str,
) -> optuna.Study:
    about = describe_study(screen, objective)
    both = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    directions = both if objective == "pareto" else both[:1]
    chosen = name or f"{screen.space.family} on {about['device']}"
    where = f"the storage {hide_password(storage)}" if isinstance(storage, str) else "the study"
    with _at_the_door(where, (Exception,)):
        study = optuna.create_study(
            storage=storage,
            study_name=chosen,
            directions=directions,
            load_if_exists=True,
        )
        before = study.user_attrs.get(_ABOUT)
        if before is None:
            study.set_user_attr(_ABOUT, about)
            _name_metrics(study, ("score", "energy_j")[: len(directions)])
    if before is not None:
        check_same(chosen, before, about)
    return study


def _name_metrics(study: optuna.Study, names: tuple[str, ...]) -> None:
    """Words for the dashboard's axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(names))


@contextmanager
def _at_the_door(what: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Whatever Optuna raises is one line."""
    try:
        yield
    except JoulecastError:
        raise
    except kinds as error:
        text = " ".join(str(error).split())[:300]
        raise StoreError(
            f"{what} cannot be used ({type(error).__name__}: {text}): give another storage, study "
            "or sampler"
        ) from error
