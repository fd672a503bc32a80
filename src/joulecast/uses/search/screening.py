"""Candidates → verdicts: what each will cost, and how surely it keeps the budget.

All candidates of a round are one question to the profile: most of what asking takes, it takes once.
A share of the original is judged by the joint covariance: both would be off alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.budgets import EnergyBudget, RunLength
from joulecast.errors import InputError
from joulecast.estimators import Estimates, OpenProfile, open_profile
from joulecast.estimators.base import Floats
from joulecast.kinds import network_work
from joulecast.records import Estimate, Network, Profile, Setup
from joulecast.units import format_energy, format_share
from joulecast.uses.search.search_space import Params, SearchSpace

Json = dict[str, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class ScreenedCandidate:
    """What is said of a candidate before it is trained.

    Attributes:
        energy_j: Of the run where it has a length, else of a step; likewise the interval and the
            seconds.
        steps: How many steps that is.
        chance: Probability that the budget is kept.
        within: Whether that is enough.
    """

    params: Params
    network: Network
    setup: Setup
    estimate: Estimate
    steps: int
    chance: float
    within: bool

    @property
    def energy_j(self) -> float:
        """Joules of all steps."""
        return self.estimate.energy_j * self.steps

    @property
    def interval_j(self) -> Interval:
        """Where these joules are with the estimate's level."""
        low, high = self.estimate.interval_j
        return low * self.steps, high * self.steps

    @property
    def duration_s(self) -> float:
        """Seconds of all steps."""
        return self.estimate.duration_s * self.steps

    def to_dict(self) -> Json:
        return {
            "net": self.network.name,
            "params": dict(self.params),
            "setup": self.setup.to_dict(),
            "energy_j": self.energy_j,
            "interval_j": list(self.interval_j),
            "duration_s": self.duration_s,
            "steps": self.steps,
            "chance": self.chance,
            "within_budget": self.within,
            "unseen_share": self.estimate.unseen_share,
            "basis": self.estimate.basis,
        }


@dataclass(frozen=True)
class BudgetScreener:
    """A space, a budget and whoever knows what nets cost.

    Attributes:
        opened: The profile, ready to be asked.
        length: How long a run is.
        confidence: How probable it has to be that the budget is kept; 0.5 is the estimate itself.
        level: How probable each interval is.
        original_j: What the original takes of the run, or of a step; None unless the budget is a
            share of it.
    """

    space: SearchSpace
    budget: EnergyBudget
    opened: OpenProfile
    length: RunLength = field(default_factory=RunLength)
    confidence: float = 0.5
    level: float = 0.95
    original_j: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}: give a probability, like 0.9")

    @property
    def limit_j(self) -> float:
        """The budget in joules: of a step or of a run, as it says; a share of the estimate."""
        return self.budget.limit(self.original_j or 0.0)

    def limit_total(self, steps: int) -> float:
        """The budget in joules of all steps of a run."""
        return self.limit_j * (steps if self.budget.per == "step" else 1)

    def judge(self, candidates: Sequence[Params]) -> tuple[ScreenedCandidate, ...]:
        """A verdict for each candidate, in one question."""
        pairs = [self.space.build(params) for params in candidates]
        steps = [self.length.count_steps(setup.batch) for _, setup in pairs]
        shared = self.budget.share is not None
        if shared:
            answers = self._ask([*pairs, self.space.original], joint=True)
            chances = self._weigh_share(answers, steps)
        else:
            answers = self._ask(pairs)
            limits = [self._limit_step(count) for count in steps]
            chances = answers.chance_within(limits)
        least = self.confidence
        return tuple(
            ScreenedCandidate(params, *pair, answer, count, float(chance), bool(chance >= least))
            for params, pair, answer, count, chance in zip(
                candidates, pairs, answers.each[: len(pairs)], steps, chances, strict=True
            )
        )

    def ask_jointly(self, candidates: Sequence[Params]) -> Estimates:
        """What a step of each costs, with how their errors go together."""
        pairs = [self.space.build(params) for params in candidates]
        return self._ask(pairs, joint=True)

    def explain(self, verdict: ScreenedCandidate) -> str:
        """Why a candidate is ruled out, in a sentence."""
        chance, least = format_share(verdict.chance), format_share(self.confidence)
        return (
            f"{verdict.network.name} would take {self.say_cost(verdict)} and keeps {self.budget} "
            f"with {chance}, not {least}"
        )

    def say_cost(self, verdict: ScreenedCandidate) -> str:
        """What a candidate takes, of what the budget is of, in words."""
        steps = verdict.steps if self.budget.per == "run" else 1
        low, high = (format_energy(end * steps) for end in verdict.estimate.interval_j)
        return (
            f"{format_energy(verdict.estimate.energy_j * steps)} a {self.budget.per} "
            f"({low} to {high}, {verdict.estimate.basis})"
        )

    def _ask(self, pairs: Sequence[tuple[Network, Setup]], joint: bool = False) -> Estimates:
        return self.opened.ask(pairs, self.level, joint, details=False)

    def _limit_step(self, steps: int) -> float:
        """The budget as joules of one step."""
        return self.limit_j / (steps if self.budget.per == "run" else 1)

    def _weigh_share(self, answers: Estimates, steps: Sequence[int]) -> Floats:
        last = len(steps)
        runs = self.length.count_steps(self.space.setup.batch)
        ratios = [(self.budget.share or 0.0) * runs / count for count in steps]
        return answers.chance_ratio_within(last, range(last), ratios)


def make_screener(
    profile: Profile,
    space: SearchSpace,
    budget: EnergyBudget,
    length: RunLength | None = None,
    *,
    confidence: float = 0.5,
    estimator: str = "additive",
    level: float = 0.95,
) -> BudgetScreener:
    """A screen that asks a profile.

    Args:
        profile: What the device has learnt.
        space: What may vary.
        budget: What a net may cost.
        length: How long a run is.
        confidence: How probable it has to be that the budget is kept.
        estimator: Which method answers.
        level: How probable each interval shall be.

    Raises:
        MissingError: The profile is empty, or the estimator cannot use what it holds.
    """
    opened, run = open_profile(profile, estimator), length or RunLength()
    original_j = None
    if budget.share is not None:
        steps = run.count_steps(space.setup.batch)
        original_j = steps * opened.ask([space.original]).each[0].energy_j
    return BudgetScreener(space, budget, opened, run, confidence, level, original_j)


def count_work(verdict: ScreenedCandidate) -> tuple[int, float]:
    """Parameters, and FLOPs of a step: how large a candidate is, which is not how good."""
    work = network_work(verdict.network, verdict.setup)
    return work.params, work.total.flops
