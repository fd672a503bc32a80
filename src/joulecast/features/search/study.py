"""Run a search as an Optuna study whose sampler proposes only candidates within the budget.

    ScreeningSampler ── candidates of any sampler, 4, then 16 ... at a time, estimated together:
        │               the first within the budget; after ``tries``, the closest one made narrower
        ▼
    objective ── user attributes: energy_j, interval_j, budget_probability, within_budget ...
        ├─ exceeds the budget: TrialPruned before training; the constraint tells the sampler
        └─ within the budget: build, train, score ──▶ (score, energy_j), or the score alone

Why a wrapper beside Optuna's constraint: a constraint is learnt from trials that were already run,
and trials that are asked for and discarded fill the storage with thousands of rows and mislead
samplers that count trials. Asked repeatedly until a candidate fits, any sampler draws from its own
distribution, conditioned on the budget. Some concentrate on candidates that exceed the budget and
would be asked forever: therefore the widths of the closest one shrink by a common factor. A trial
can exceed the budget only if the sampler ignores the wrapper's candidate (a grid), if it was
enqueued, or if its setup is too expensive even for the smallest network.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from joulecast.families import FAMILIES
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.features.search.screen import (
    BudgetScreener,
    ScreenedCandidate,
    SearchResult,
    TrainedTrial,
)
from joulecast.features.search.space import (
    SETUP_NAMES,
    Choice,
    Dimension,
    NumberRange,
    Params,
)
from joulecast.records import Network
from joulecast.system.errors import (
    InputError,
    JoulecastError,
    MissingError,
    NetError,
    StoreError,
    arg,
)
from joulecast.system.redaction import redact_url
from joulecast.system.user_errors import describe_user_error
from joulecast.views.fronts import find_front

try:
    import optuna
except ImportError as error:
    raise MissingError("search needs Optuna: run pip install 'joulecast[search]'") from error

Json = dict[str, Any]
ScoreFunction = Callable[[Any, Any], float]
BuildFunction = Callable[[Network, int], Any]
Screening = tuple[ScreenedCandidate, int, int]
"""The candidate of a trial, how many were screened for it, and how many of them were ruled out."""
SAMPLERS = {
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "random": "RandomSampler",
}
MAX_TRIES = 32
_FIRST_ROUND_SIZE, _GROWTH = 4, 4
_SHRINK_STEPS = 24
_IDENTITY = "joulecast"
# Raised by Optuna if a sampler cannot do what is asked, or if a storage breaks.
_OPTUNA_ERRORS = (optuna.exceptions.OptunaError, ValueError, NotImplementedError)
_MAX_MESSAGE_SIZE = 300
_DRAWS = 400


def run_study(
    screener: BudgetScreener,
    score: ScoreFunction,
    build: BuildFunction | None = None,
    *,
    trials: int = 50,
    sampler: Any = "nsga2",
    objective: str = "pareto",
    storage: Any = None,
    study: str = "",
    seed: int = 0,
    tries: int = MAX_TRIES,
    on_progress: ReportProgress | None = None,
) -> SearchResult:
    """Search for networks with a high score within the budget; an existing study is continued.

    ``score`` takes what ``build`` makes of a Network and a seed (by default the Network itself) and
    Optuna's trial, whose ``params`` has all values and ``user_attrs`` the estimate. With the
    objective ``score`` it may report intermediate values and be pruned. ``sampler`` is a name of
    ``SAMPLERS`` or of a class of ``optuna.samplers``, or a sampler; it draws at most ``tries``
    candidates for a trial.
    """
    screener.check_reachable(seed)
    opened = _open_study(screener, storage, study, objective)
    # The seed differs when a study is continued, so that the same candidates do not return.
    inner = make_sampler(sampler, seed + len(opened.get_trials(deepcopy=False)))
    opened.sampler = screening = ScreeningSampler(inner, screener, tries)
    failures, dimensions = list[JoulecastError](), screener.space.dimensions

    def run_trial(trial: optuna.Trial) -> float | tuple[float, float]:
        params = {name: _suggest(trial, name, one) for name, one in dimensions.items()}
        candidate, screened, ruled_out = screening.pop_screening(trial.number, params)
        # The dashboard shows user attributes.
        attributes = {
            **candidate.to_dict(),
            "device": screener.fitted_profile.profile.device.name,
            "covers": screener.fitted_profile.profile.covers,
            "budget": str(screener.budget),
            "screened": screened,
            "ruled_out": ruled_out,
        }
        for name, value in attributes.items():
            if name not in ("params", "setup"):
                trial.set_user_attr(name, value)
        # Optuna 5 passes constraints to samplers; earlier versions show them a pruned trial.
        if hasattr(trial, "set_constraint"):
            excess = screener.confidence - candidate.budget_probability
            trial.set_constraint("energy budget", excess)
        if not candidate.is_within_budget:
            reason = screener.explain_rejection(candidate)
            trial.set_user_attr("reason", reason)
            raise optuna.TrialPruned(reason)
        try:
            net: Any = candidate.network
            net = net if build is None else build(net, seed + trial.number)
            found = _score(score, net, candidate.name, trial)
        except JoulecastError as error:
            # If it were raised here, Optuna would print a traceback. The trial fails, and the
            # search stops and raises it.
            failures.append(error)
            found = math.nan
            trial.set_user_attr("reason", str(error))
            trial.study.stop()
        return found if objective == "score" else (found, candidate.energy_j)

    count = itertools.count(1)

    def tell_progress(_: optuna.Study, __: optuna.trial.FrozenTrial) -> None:
        if on_progress is not None:
            on_progress(ProgressReport(next(count), trials, "trials"))

    with _translate_errors("the study", _OPTUNA_ERRORS):
        opened.optimize(run_trial, n_trials=trials, callbacks=[tell_progress])
    if failures:
        raise failures[0]
    return summarise_study(opened, screener, type(inner).__name__)


def summarise_study(
    study: optuna.Study, screener: BudgetScreener, sampler: str = ""
) -> SearchResult:
    """Return the state of a study, which other processes may still be adding trials to."""
    states, names = optuna.trial.TrialState, screener.space.dimensions.keys()
    ended = study.get_trials(deepcopy=False)
    trained = [
        one
        for one in ended
        if one.state == states.COMPLETE and one.values and names <= one.params.keys()
    ]
    candidates = screener.screen([{name: one.params[name] for name in names} for one in trained])
    # No other trial has a lower loss for less energy.
    losses = [-float(one.values[0]) for one in trained]
    on_front = find_front(list(zip(losses, (one.energy_j for one in candidates), strict=True)))
    shares = [0.0] * len(trained)
    if trained:
        # The share of joint draws in which each trial is on the front.
        estimates = screener.estimate([(one.network, one.setup) for one in candidates], joint=True)
        energies_j = estimates.draw(_DRAWS) * np.array([one.steps for one in candidates])
        fronts = [find_front(list(zip(losses, row, strict=True))) for row in energies_j.tolist()]
        shares = np.mean(fronts, axis=0).tolist()
    trials = [
        TrainedTrial(one.number, -loss, candidate, is_on_front, share)
        for one, loss, candidate, is_on_front, share in zip(
            trained, losses, candidates, on_front, shares, strict=True
        )
    ]
    return SearchResult(
        study.study_name,
        screener,
        tuple(trials),
        screened_count=sum(one.user_attrs.get("screened", 0) for one in ended),
        ruled_out_count=sum(one.user_attrs.get("ruled_out", 0) for one in ended),
        pruned_count=sum(one.state == states.PRUNED for one in ended),
        failed_count=sum(one.state == states.FAIL for one in ended),
        sampler=sampler,
    )


def silence_optuna() -> None:
    """Let Optuna log errors only, for programs that report trials and failures themselves."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def make_sampler(sampler: Any, seed: int) -> optuna.samplers.BaseSampler:
    """Return a sampler by name, with a seed, or the given sampler itself."""
    if not isinstance(sampler, str):
        found: optuna.samplers.BaseSampler = sampler
        return found
    make = getattr(optuna.samplers, SAMPLERS.get(sampler, sampler), None)
    if not (isinstance(make, type) and issubclass(make, optuna.samplers.BaseSampler)):
        known = ", ".join(SAMPLERS)
        raise InputError(f"no sampler {sampler!r}: give {known} or a class of optuna.samplers")
    try:
        return make(seed=seed)  # type: ignore[call-arg]
    except (TypeError, ImportError) as error:
        raise InputError(
            f"the sampler {sampler} cannot be created from its name ({error}): pass an instance"
        ) from error


class ScreeningSampler(optuna.samplers.BaseSampler):
    """Samples from another sampler until a candidate is within the budget."""

    def __init__(
        self, inner: optuna.samplers.BaseSampler, screener: BudgetScreener, tries: int = MAX_TRIES
    ) -> None:
        self.inner, self.screener, self.tries = inner, screener, tries
        dimensions = screener.space.dimensions
        self.distributions = {name: _make_distribution(one) for name, one in dimensions.items()}
        self._screenings: dict[int, Screening] = {}
        self.before_trial = inner.before_trial  # type: ignore[method-assign]
        self.after_trial = inner.after_trial  # type: ignore[method-assign]
        self.reseed_rng = inner.reseed_rng  # type: ignore[method-assign]

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> Json:
        """Return the whole space, and whatever else the inner sampler draws jointly."""
        return {**self.inner.infer_relative_search_space(study, trial), **self.distributions}

    def sample_relative(self, study: optuna.Study, trial: Any, search_space: Json) -> Json:
        """Return the first candidate within the budget, or the closest one made narrower.

        Its widths and depths move in steps towards the smallest network, widest first.
        """
        relative = self.inner.infer_relative_search_space(study, trial)
        proposals: list[tuple[Json, ScreenedCandidate]] = []
        size = _FIRST_ROUND_SIZE
        while len(proposals) < self.tries and not any(one.is_within_budget for _, one in proposals):
            count = min(size, self.tries - len(proposals))
            proposals += self._screen([self._draw(study, trial, relative) for _ in range(count)])
            size *= _GROWTH
        params, candidate = max(proposals, key=self._rate)
        if not candidate.is_within_budget:
            sizes = {
                name: one
                for name, one in self.screener.space.dimensions.items()
                if isinstance(one, NumberRange) and name not in SETUP_NAMES and one.is_integer
            }
            shares = (1.0 - place / _SHRINK_STEPS for place in range(1, _SHRINK_STEPS + 1))
            narrower = self._screen(
                [
                    {**params, **{n: one.shrink(params[n], share) for n, one in sizes.items()}}
                    for share in shares
                ]
            )
            proposals += narrower
            params, candidate = max(narrower, key=self._rate)
        ruled_out = sum(not one.is_within_budget for _, one in proposals)
        self._screenings[trial.number] = candidate, len(proposals), ruled_out
        return params

    def sample_independent(
        self, study: optuna.Study, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        """Return a value for a parameter that the training function suggests."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def pop_screening(self, number: int, params: Params) -> Screening:
        """Return the screening of a trial; an enqueued candidate is screened now."""
        screening = self._screenings.pop(number, None)
        if screening is not None and dict(screening[0].params) == dict(params):
            return screening
        candidate = self.screener.screen([params])[0]
        return candidate, 1, int(not candidate.is_within_budget)

    def _draw(self, study: optuna.Study, trial: Any, relative: Json) -> Json:
        """Return all values of one candidate, drawn by the inner sampler."""
        drawn = dict(self.inner.sample_relative(study, trial, relative)) if relative else {}
        for name, distribution in self.distributions.items():
            if distribution.single():
                drawn[name] = self.screener.space.dimensions[name].bounds[0]
            elif name not in drawn:
                drawn[name] = self.inner.sample_independent(study, trial, name, distribution)
        return drawn

    def _rate(self, proposal: tuple[Json, ScreenedCandidate]) -> float:
        """Return a sort key: within the budget all are equal, outside the most probable is best."""
        return min(proposal[1].budget_probability, self.screener.confidence)

    def _screen(self, drawn: Sequence[Json]) -> list[tuple[Json, ScreenedCandidate]]:
        own = [{name: params[name] for name in self.distributions} for params in drawn]
        return list(zip(drawn, self.screener.screen(own), strict=True))


def _make_distribution(dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if isinstance(dimension, Choice):
        return kinds.CategoricalDistribution(dimension.values)
    low, high = dimension.bounds
    if dimension.is_integer:
        return kinds.IntDistribution(int(low), int(high), dimension.log, dimension.step)
    return kinds.FloatDistribution(low, high, dimension.log)


def _suggest(trial: optuna.Trial, name: str, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.values)
    low, high = dimension.bounds
    if dimension.is_integer:
        return trial.suggest_int(name, int(low), int(high), step=dimension.step, log=dimension.log)
    return trial.suggest_float(name, low, high, log=dimension.log)


def _score(score: ScoreFunction, net: Any, name: str, trial: optuna.Trial) -> float:
    """Return the score of a network; NaN, which fails the trial, if it is not finite."""
    try:
        found = score(net, trial)
    except (optuna.TrialPruned, JoulecastError):
        raise
    except Exception as error:
        raise NetError(
            f"training {name} failed in trial {trial.number}: {describe_user_error(error)}"
        ) from error
    try:
        value = float(found)
    except (TypeError, ValueError):
        raise NetError(
            f"the training function returned {type(found).__name__} in trial {trial.number}: "
            "return one number, the score; higher is better"
        ) from None
    return value if math.isfinite(value) else math.nan


def _open_study(screener: BudgetScreener, storage: Any, study: str, objective: str) -> optuna.Study:
    """Create or load a study; everything that its energies depend on must not change in it."""
    space, profile = screener.space, screener.fitted_profile.profile
    family, shape = space.family.partition(":")[0], space.input_shape
    extra = [name for name in space.dimensions if name not in FAMILIES[family].params]
    identity = {
        "family": family,
        "input_shape": None if shape is None else list(shape),
        "setup": {name: one for name, one in space.setup.to_dict().items() if name not in extra},
        "vary": sorted(extra),
        "device": profile.device.name,
        "profile": profile.key,
        "estimator": screener.fitted_profile.estimator.name,
        "length": screener.length.to_dict(),
        "objective": objective,
    }
    both = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    directions = both if objective == "pareto" else both[:1]
    name, where = study or f"{space.family} on {profile.device.name}", "the study"
    if isinstance(storage, str):
        where = f"the storage {redact_url(storage)}"
        # Drivers would take a part of the password for the host, and quote it.
        if where.count("@") < storage.count("@"):
            raise InputError(f"{where} has several @: write @ in a password as %40")
    with _translate_errors(where, (Exception,)):
        opened = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True
        )
        stored = opened.user_attrs.get(_IDENTITY)
        if stored is None:
            opened.set_user_attr(_IDENTITY, identity)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                # Labels of the dashboard's axes.
                opened.set_metric_names(["score", "energy_j"][: len(directions)])
    if stored is not None and stored != identity:
        changes = "; ".join(_list_changes(stored, identity))
        raise InputError(
            f"study {name!r} was started with other options ({changes}): give another "
            f"{arg('study')}"
        )
    return opened


def _list_changes(before: Json, after: Json) -> list[str]:
    """Return differences like ``batch 32, not 64``."""
    changes: list[str] = []
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            changes += _list_changes(old, value)
        elif old != value:
            was, now = (
                ", ".join(map(str, one)) or "none" if isinstance(one, list) else str(one)
                for one in (old, value)
            )
            changes.append(f"{name.replace('_', ' ')} {was}, not {now}")
    return changes


@contextmanager
def _translate_errors(what: str, types: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise errors of Optuna as a StoreError with a one-line message."""
    try:
        yield
    except JoulecastError:
        raise
    except types as error:
        # Redacted before it is cut: half a password is still half a password.
        message = redact_url(" ".join(str(error).split()))[:_MAX_MESSAGE_SIZE]
        raise StoreError(
            f"{what} cannot be used ({type(error).__name__}: {message}): give another storage, "
            "study or sampler"
        ) from error
