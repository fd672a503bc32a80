"""An Optuna sampler that wraps another one and proposes only candidates within the budget.

    candidates, 4, then 16 ... at a time ──estimated together──▶ the first within the budget
                                           after ``tries``: the closest one, made narrower

Why a wrapper instead of an Optuna constraint or plain ask-and-tell: a constraint is learnt from
trials that were already run, and trials that are asked for and discarded fill the storage with
thousands of rows and mislead samplers that count trials. Asked repeatedly until a candidate fits,
any sampler draws from its own distribution, conditioned on the budget. Some samplers concentrate on
candidates that exceed the budget and would be asked forever: after ``tries`` candidates, the widths
of the closest one shrink by a common factor until it fits. So every trial of the study is trained,
unless its setup is too expensive even for the smallest network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, MissingError
from joulecast.uses.search.dimensions import Choice, Dimension, NumberRange, Value
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.search_space import SETUP_NAMES, Params
from joulecast.uses.search_options import MAX_CANDIDATES

try:
    import optuna
except ImportError as error:
    raise MissingError("search needs Optuna: run pip install 'joulecast[search]'") from error

Json = dict[str, Any]
_Proposal = tuple[dict[str, Any], ScreenedCandidate]
SAMPLERS = {
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "random": "RandomSampler",
}
_FIRST_ROUND_SIZE, _GROWTH = 4, 4
_SHRINK_STEPS = 24


def make_sampler(
    sampler: str | optuna.samplers.BaseSampler, seed: int
) -> optuna.samplers.BaseSampler:
    """Return a sampler by name, with a seed, or the given sampler itself."""
    if not isinstance(sampler, str):
        return sampler
    make = getattr(optuna.samplers, SAMPLERS.get(sampler, sampler), None)
    if not (isinstance(make, type) and issubclass(make, optuna.samplers.BaseSampler)):
        known = ", ".join(SAMPLERS)
        raise InputError(f"no sampler {sampler!r}: give {known} or a class of optuna.samplers")
    try:
        made: optuna.samplers.BaseSampler = make(seed=seed)  # type: ignore[call-arg]
    except (TypeError, ImportError) as error:
        raise InputError(
            f"the sampler {sampler} cannot be created from its name ({error}): pass an instance"
        ) from error
    return made


@dataclass(frozen=True)
class TrialScreening:
    """The candidate of a trial, and how many were screened to find it.

    Attributes:
        screened_count: Candidates that were screened for the trial.
        ruled_out_count: How many of them exceed the budget.
    """

    candidate: ScreenedCandidate
    screened_count: int
    ruled_out_count: int


class ScreeningSampler(optuna.samplers.BaseSampler):
    """Samples from another sampler until a candidate is within the budget.

    Args:
        inner: Sampler that proposes candidates.
        screener: Estimates candidates.
        tries: Largest number of candidates to draw for one trial.
    """

    def __init__(
        self,
        inner: optuna.samplers.BaseSampler,
        screener: BudgetScreener,
        tries: int = MAX_CANDIDATES,
    ) -> None:
        self.inner, self.screener, self.tries = inner, screener, tries
        self.distributions = {
            name: _make_distribution(dimension)
            for name, dimension in screener.space.dimensions.items()
        }
        self._screenings: dict[int, TrialScreening] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> Json:
        """Return the whole space, and whatever else the inner sampler draws jointly."""
        return {**self.inner.infer_relative_search_space(study, trial), **self.distributions}

    def sample_relative(self, study: optuna.Study, trial: Any, search_space: Json) -> Json:
        """Return the first candidate within the budget, or the closest one made narrower."""
        relative = self.inner.infer_relative_search_space(study, trial)
        proposals: list[_Proposal] = []
        size = _FIRST_ROUND_SIZE
        while len(proposals) < self.tries and not any(one.is_within_budget for _, one in proposals):
            count = min(size, self.tries - len(proposals))
            drawn = [self._draw(study, trial, relative) for _ in range(count)]
            proposals += self._screen(drawn)
            size *= _GROWTH
        params, candidate = max(proposals, key=_rate_proposal)
        if not candidate.is_within_budget:
            narrower = self._screen([{**params, **sizes} for sizes in self._list_narrower(params)])
            proposals += narrower
            params, candidate = max(narrower, key=_rate_proposal)
        ruled_out = sum(not one.is_within_budget for _, one in proposals)
        self._screenings[trial.number] = TrialScreening(candidate, len(proposals), ruled_out)
        return params

    def sample_independent(
        self, study: optuna.Study, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        """Return a value for a parameter that the training function suggests."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: Any) -> None:
        """Delegate to the inner sampler."""
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: Any, state: Any, values: Sequence[float] | None
    ) -> None:
        """Delegate to the inner sampler."""
        self.inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Delegate to the inner sampler."""
        self.inner.reseed_rng()

    def pop_screening(self, number: int, params: Params) -> TrialScreening:
        """Return the screening of a trial; an enqueued candidate is screened now."""
        screening = self._screenings.pop(number, None)
        if screening is not None and dict(screening.candidate.params) == dict(params):
            return screening
        candidate = self.screener.screen([params])[0]
        return TrialScreening(candidate, 1, int(not candidate.is_within_budget))

    def _draw(self, study: optuna.Study, trial: Any, relative: Json) -> Json:
        """Return all values of one candidate, drawn by the inner sampler."""
        drawn = dict(self.inner.sample_relative(study, trial, relative)) if relative else {}
        for name, distribution in self.distributions.items():
            if distribution.single():
                drawn[name] = _find_single_value(self.screener.space.dimensions[name])
            elif name not in drawn:
                drawn[name] = self.inner.sample_independent(study, trial, name, distribution)
        return drawn

    def _screen(self, drawn: Sequence[Json]) -> list[_Proposal]:
        own = [{name: params[name] for name in self.distributions} for params in drawn]
        return list(zip(drawn, self.screener.screen(own), strict=True))

    def _list_narrower(self, params: Json) -> list[Json]:
        """Return a candidate's widths and depths on the way to the smallest, widest first."""
        sizes = {
            name: dimension
            for name, dimension in self.screener.space.dimensions.items()
            if isinstance(dimension, NumberRange)
            and name not in SETUP_NAMES
            and dimension.is_integer
        }
        shares = [1.0 - place / _SHRINK_STEPS for place in range(1, _SHRINK_STEPS + 1)]
        return [
            {name: one.shrink(params[name], share) for name, one in sizes.items()}
            for share in shares
        ]


def suggest_value(trial: optuna.Trial, name: str, dimension: Dimension) -> Value:
    """Return the value of a dimension in a trial."""
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.values)  # type: ignore[return-value]
    low, high = dimension.bounds
    if dimension.is_integer:
        step = dimension.step
        return trial.suggest_int(name, int(low), int(high), step=step, log=dimension.log)
    return trial.suggest_float(name, low, high, log=dimension.log)


def _rate_proposal(proposal: _Proposal) -> tuple[bool, float]:
    """Return a sort key: within the budget all are equal, outside the most probable is best."""
    candidate = proposal[1]
    is_within = candidate.is_within_budget
    return is_within, 0.0 if is_within else candidate.budget_probability


def _make_distribution(dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    low, high = dimension.bounds
    if dimension.is_integer:
        step = dimension.step
        return optuna.distributions.IntDistribution(int(low), int(high), dimension.log, step)
    return optuna.distributions.FloatDistribution(low, high, dimension.log)


def _find_single_value(dimension: Dimension) -> Value:
    return dimension.values[0] if isinstance(dimension, Choice) else dimension.low
