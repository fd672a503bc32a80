"""A sampler around any of Optuna's: it asks for candidates until one keeps the budget.

    candidates, 4, then 16 ... at a time ──one question to the profile──▶ the first within
                                          after ``tries``: the nearest one, made narrower

Why a sampler around the sampler, and neither a constraint nor ask-and-tell alone: a constraint is
learnt from trials that were already run, and trials that are asked for and thrown away fill the
storage with thousands of rows and mislead samplers that count trials. Asked again until a candidate
fits, any sampler draws from its own belief, on condition of the budget. Some believe so firmly in
what costs too much that they would be asked for ever: then the widths of the nearest candidate
shrink towards the smallest net, all by the same share, as far as they must. So every trial of the
study is one that was trained, unless its setup is too dear for the smallest net.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, MissingError
from joulecast.uses.search.dimensions import Choice, Dimension, NumberRange, Value
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.search_space import SETUP_NAMES, Params

try:
    import optuna
except ImportError as error:
    raise MissingError("search needs Optuna: run pip install 'joulecast[search]'") from error

Json = dict[str, Any]
Judged = tuple[dict[str, Any], ScreenedCandidate]
SAMPLERS = {
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "random": "RandomSampler",
}
TRIES = 32
"""Candidates that a sampler is asked for at most for one trial."""
_FIRST_ROUND, _GROWTH = 4, 4
_SHRINKS = 24


def make_sampler(
    sampler: str | optuna.samplers.BaseSampler, seed: int
) -> optuna.samplers.BaseSampler:
    """A sampler by name, with a seed; one that is made already stays as it is."""
    if not isinstance(sampler, str):
        return sampler
    make = getattr(optuna.samplers, SAMPLERS.get(sampler, sampler), None)
    if not (isinstance(make, type) and issubclass(make, optuna.samplers.BaseSampler)):
        known = ", ".join(SAMPLERS)
        raise InputError(
            f"there is no sampler {sampler!r}: give {known} or a class of optuna.samplers"
        )
    try:
        made: optuna.samplers.BaseSampler = make(seed=seed)  # type: ignore[call-arg]
    except (TypeError, ImportError) as error:
        raise InputError(f"{sampler} cannot be made by its name alone ({error})") from error
    return made


@dataclass(frozen=True)
class ScreeningRecord:
    """What was said before a trial began.

    Attributes:
        screened: Candidates that were judged for it; ``ruled_out`` how many cost too much.
    """

    verdict: ScreenedCandidate
    screened: int
    ruled_out: int


class ScreeningSampler(optuna.samplers.BaseSampler):
    """Asks another sampler until a candidate keeps the budget.

    Args:
        inner: Whoever proposes.
        screen: Whoever judges.
        tries: Candidates to ask for at most for one trial.
    """

    def __init__(
        self, inner: optuna.samplers.BaseSampler, screen: BudgetScreener, tries: int = TRIES
    ) -> None:
        self.inner, self.screen, self.tries = inner, screen, tries
        self.space = {
            name: _make_distribution(dimension)
            for name, dimension in screen.space.dimensions.items()
        }
        self._looks: dict[int, ScreeningRecord] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> Json:
        """The whole space at once, and whatever else the other sampler draws together."""
        return {**self.inner.infer_relative_search_space(study, trial), **self.space}

    def sample_relative(self, study: optuna.Study, trial: Any, search_space: Json) -> Json:
        """Candidates in growing rounds, until one keeps the budget; else one that was shrunk."""
        known = self.inner.infer_relative_search_space(study, trial)
        judged: list[Judged] = []
        size = _FIRST_ROUND
        while len(judged) < self.tries and not any(verdict.within for _, verdict in judged):
            count = min(size, self.tries - len(judged))
            judged += self._judge([self._propose(study, trial, known) for _ in range(count)])
            size *= _GROWTH
        params, verdict = max(judged, key=_rank)
        if not verdict.within:
            shrunk = self._judge([{**params, **narrow} for narrow in self._shrink(params)])
            judged += shrunk
            params, verdict = max(shrunk, key=_rank)
        out = sum(not verdict.within for _, verdict in judged)
        self._looks[trial.number] = ScreeningRecord(verdict, len(judged), out)
        return params

    def sample_independent(
        self, study: optuna.Study, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        """What the training function asks for besides."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: Any) -> None:
        """The other sampler's."""
        self.inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: Any, state: Any, values: Sequence[float] | None
    ) -> None:
        """The other sampler's."""
        self.inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """The other sampler's."""
        self.inner.reseed_rng()

    def recall(self, number: int, params: Params) -> ScreeningRecord:
        """What was said of a trial; judged now where somebody enqueued another candidate."""
        look = self._looks.pop(number, None)
        if look is not None and dict(look.verdict.params) == dict(params):
            return look
        verdict = self.screen.judge([params])[0]
        return ScreeningRecord(verdict, 1, int(not verdict.within))

    def _propose(self, study: optuna.Study, trial: Any, known: Json) -> Json:
        """All values of one candidate, as the other sampler draws them."""
        found = dict(self.inner.sample_relative(study, trial, known)) if known else {}
        for name, distribution in self.space.items():
            if distribution.single():
                found[name] = _first_value(self.screen.space.dimensions[name])
            elif name not in found:
                found[name] = self.inner.sample_independent(study, trial, name, distribution)
        return found

    def _judge(self, drawn: Sequence[Json]) -> list[Judged]:
        own = [{name: params[name] for name in self.space} for params in drawn]
        return list(zip(drawn, self.screen.judge(own), strict=True))

    def _shrink(self, params: Json) -> list[Json]:
        """A candidate's widths and depths on the way to the smallest ones, the widest first."""
        sizes = {
            name: dimension
            for name, dimension in self.screen.space.dimensions.items()
            if isinstance(dimension, NumberRange) and name not in SETUP_NAMES and dimension.whole
        }
        shares = [1.0 - place / _SHRINKS for place in range(1, _SHRINKS + 1)]
        return [
            {name: one.shrink(params[name], share) for name, one in sizes.items()}
            for share in shares
        ]


def _rank(found: Judged) -> tuple[bool, float]:
    """Within the budget is best, and there the first one; outside, whoever is nearest."""
    verdict = found[1]
    return verdict.within, 0.0 if verdict.within else verdict.chance


def _make_distribution(dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    low, high = dimension.ends
    if dimension.whole:
        step = dimension.step
        return optuna.distributions.IntDistribution(int(low), int(high), dimension.log, step)
    return optuna.distributions.FloatDistribution(low, high, dimension.log)


def suggest(trial: optuna.Trial, name: str, dimension: Dimension) -> Value:
    """The value of a dimension in a trial."""
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.values)  # type: ignore[return-value]
    low, high = dimension.ends
    if dimension.whole:
        step = dimension.step
        return trial.suggest_int(name, int(low), int(high), step=step, log=dimension.log)
    return trial.suggest_float(name, low, high, log=dimension.log)


def _first_value(dimension: Dimension) -> Value:
    return dimension.values[0] if isinstance(dimension, Choice) else dimension.low
