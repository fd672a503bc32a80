"""Screen candidates: estimate their cost and the probability that they meet the budget.

All candidates of a batch are estimated together, which takes hardly longer than one. For a budget
that is a share of the original, the probability comes from the joint covariance, because the errors
of both networks are correlated. Nothing is measured or trained here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulecast.features.budgets import EnergyBudget, RunLength
from joulecast.features.search.space import Params, SearchSpace
from joulecast.records import Estimate, Network, Profile, Setup, describe_inference, name_step
from joulecast.system.errors import InputError
from joulecast.system.units import format_energy, format_share

if TYPE_CHECKING:
    from joulecast.estimators import Estimates, FittedProfile

Json = dict[str, Any]
BATCH_SIZE = 256
"""Candidates estimated together: larger batches are no faster and take more memory."""


@dataclass(frozen=True)
class ScreenedCandidate:
    """A candidate with its estimated cost, before it is trained.

    Attributes:
        name: Name of the network.
        estimate: Estimate of one step.
        steps: Steps of the run; 1 if the run has no length.
        is_within_budget: Whether the probability reaches the required confidence.
        parameters: Number of parameters.
        flops: FLOPs of one step.
    """

    params: Params
    space: SearchSpace
    name: str
    setup: Setup
    estimate: Estimate
    steps: int
    budget_probability: float
    is_within_budget: bool
    parameters: int
    flops: float

    @property
    def network(self) -> Network:
        """The network, built again: many deep ones would fill the memory."""
        return self.space.build(self.params)[0]

    @property
    def energy_j(self) -> float:
        """Energy of all steps."""
        return self.estimate.energy_j * self.steps

    @property
    def interval_j(self) -> tuple[float, float]:
        """Interval of the energy of all steps, at the estimate's level."""
        low_j, high_j = self.estimate.interval_j
        return low_j * self.steps, high_j * self.steps

    @property
    def duration_s(self) -> float:
        """Duration of all steps."""
        return self.estimate.duration_s * self.steps

    def to_dict(self) -> Json:
        """Return the candidate as JSON values."""
        return {
            "net": self.name,
            "params": dict(self.params),
            "setup": self.setup.to_dict(),
            "energy_j": self.energy_j,
            "interval_j": list(self.interval_j),
            "duration_s": self.duration_s,
            "steps": self.steps,
            **describe_inference(self.setup, self.estimate.energy_j, self.estimate.duration_s),
            "budget_probability": self.budget_probability,
            "within_budget": self.is_within_budget,
            # Older versions interpolated between the estimates of other candidates.
            "interpolated": False,
            "unseen_share": self.estimate.unseen_share,
            "provenance": self.estimate.provenance,
        }


@dataclass(frozen=True)
class BudgetScreener:
    """A search space, a budget and the estimator that decides which candidates meet it.

    Attributes:
        confidence: Probability with which a candidate must meet the budget.
        level: Probability of each interval.
        original_energy_j: Energy of the original network, of the run if it has a length; None
            unless the budget is a share of it.
    """

    space: SearchSpace
    budget: EnergyBudget
    fitted_profile: FittedProfile
    length: RunLength = field(default_factory=RunLength)
    confidence: float = 0.5
    level: float = 0.95
    original_energy_j: float | None = None

    @property
    def limit_j(self) -> float:
        """The budget in joules, per step or per run as the budget says."""
        return self.budget.limit(self.original_energy_j or 0.0)

    def compute_run_limit_j(self, steps: int) -> float:
        """Return the budget in joules for all steps of a run."""
        return self.limit_j * (steps if self.budget.per == "step" else 1)

    def screen(self, candidates: Sequence[Params]) -> tuple[ScreenedCandidate, ...]:
        """Return every candidate with its estimate, made in batches."""
        from joulecast.operators import network_work

        if len(candidates) > BATCH_SIZE:
            batches = range(0, len(candidates), BATCH_SIZE)
            parts = (self.screen(candidates[at : at + BATCH_SIZE]) for at in batches)
            return tuple(one for part in parts for one in part)
        built = [self.space.build(params) for params in candidates]
        steps = [self.length.count_steps(setup.samples_per_step) for _, setup in built]
        share = self.budget.share
        if share is not None:
            # The original comes last.
            count = len(built)
            original_steps = self.length.count_steps(self.space.setup.samples_per_step)
            estimates = self.estimate([*built, self.space.original], joint=True)
            ratios = [share * original_steps / one for one in steps]
            probabilities = estimates.probability_ratio_within(count, range(count), ratios)
        else:
            estimates = self.estimate(built)
            is_run = self.budget.per == "run"
            limits_j = [self.limit_j / (one if is_run else 1) for one in steps]
            probabilities = estimates.probability_within(limits_j)
        found = []
        rows = zip(candidates, built, estimates[: len(built)], steps, probabilities, strict=True)
        for params, (network, setup), estimate, count, probability in rows:
            work, is_within = network_work(network, setup), bool(probability >= self.confidence)
            about, budget = (params, self.space, network.name), (float(probability), is_within)
            sizes = work.params, work.total.flops
            found.append(ScreenedCandidate(*about, setup, estimate, count, *budget, *sizes))
        return tuple(found)

    def estimate(self, built: Sequence[tuple[Network, Setup]], joint: bool = False) -> Estimates:
        """Return estimates of one step of each network, if asked with their joint covariance."""
        networks, setups = [network for network, _ in built], [setup for _, setup in built]
        return self.fitted_profile.estimate(
            networks, setups, self.level, joint=joint, details=False
        )

    def explain_rejection(self, candidate: ScreenedCandidate) -> str:
        """Return one sentence that says why a candidate is not trained."""
        return (
            f"{candidate.name} would need {self._describe_cost(candidate)} and meets "
            f"{self.describe_budget()} with probability "
            f"{format_share(candidate.budget_probability)}, not {format_share(self.confidence)}"
        )

    def describe_budget(self) -> str:
        """Return the budget in words, per step, inference or run."""
        return self.budget.describe(name_step(self.space.setup))

    def _describe_cost(self, candidate: ScreenedCandidate) -> str:
        """Return a candidate's energy per step or per run, whichever the budget limits."""
        steps = candidate.steps if self.budget.per == "run" else 1
        period = "run" if self.budget.per == "run" else name_step(self.space.setup)
        low, high = (format_energy(end_j * steps) for end_j in candidate.estimate.interval_j)
        return (
            f"{format_energy(candidate.estimate.energy_j * steps)} per {period} "
            f"({100 * self.level:g} % interval {low} to {high}, {candidate.estimate.provenance})"
        )

    def check_reachable(self, seed: int = 0) -> None:
        """Raise InputError if neither the smallest networks nor random ones meet the budget."""
        rng, found = random.Random(seed), list[ScreenedCandidate]()
        drawn = [self.space.draw(rng) for _ in range(BATCH_SIZE)]
        for batch in (self.space.list_smallest()[:BATCH_SIZE], drawn):
            found += self.screen(batch)
            if any(candidate.is_within_budget for candidate in found):
                return
        best = max(found, key=lambda candidate: (candidate.budget_probability, -candidate.energy_j))
        raise InputError(
            f"no candidate meets {self.describe_budget()} with probability "
            f"{format_share(self.confidence)}: {best.name} comes closest with "
            f"{self._describe_cost(best)}; give a larger budget or smaller networks"
        )

    def to_dict(self) -> Json:
        """Return the space, the budget and the estimator as JSON values."""
        fitted, limit_j = self.fitted_profile, self.limit_j
        return {
            "space": self.space.to_dict(),
            "budget": {**self.budget.to_dict(), "text": str(self.budget), "limit_j": limit_j},
            "confidence": self.confidence,
            "length": self.length.to_dict(),
            "device": fitted.profile.device.name,
            "covers": fitted.profile.covers,
            "provenance": fitted.provenance,
            "estimator": fitted.estimator.name,
            "level": self.level,
        }


def make_screener(
    profile: Profile,
    space: SearchSpace,
    budget: EnergyBudget,
    length: RunLength | None = None,
    *,
    confidence: float = 0.5,
    estimator: str = "auto",
    level: float = 0.95,
) -> BudgetScreener:
    """Return a screener that estimates energy from a profile."""
    from joulecast.estimators import fit_profile

    fitted, length, original_energy_j = fit_profile(profile, estimator), length or RunLength(), None
    if budget.share is not None:
        network, setup = space.original
        estimate = fitted.estimate([network], setup)[0]
        original_energy_j = length.count_steps(setup.samples_per_step) * estimate.energy_j
    return BudgetScreener(space, budget, fitted, length, confidence, level, original_energy_j)


def draw_candidates(
    screener: BudgetScreener, count: int = 1000, seed: int = 0
) -> tuple[tuple[ScreenedCandidate, ...], float]:
    """Draw random candidates and screen them; return also how many seconds that took."""
    rng, begin_s = random.Random(seed), time.perf_counter()
    drawn = [screener.space.draw(rng) for _ in range(count)]
    keys = [tuple(params.values()) for params in drawn]
    distinct = dict(zip(keys, drawn, strict=True))
    screened = dict(zip(distinct, screener.screen([*distinct.values()]), strict=True))
    return tuple(screened[key] for key in keys), time.perf_counter() - begin_s
