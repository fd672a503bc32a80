"""Screen candidates: estimate their cost and the probability that they meet the budget.

All candidates of a round are estimated together, which takes hardly longer than one. For a budget
that is a share of the original, the probability comes from the joint covariance, because the errors
of both networks are correlated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.budgets import EnergyBudget, RunLength
from joulecast.errors import InputError
from joulecast.estimators import AUTO, Estimates, FittedProfile, fit_profile
from joulecast.estimators.base import Floats
from joulecast.kinds import network_work
from joulecast.records import Estimate, Network, Profile, Setup, describe_inference, name_step
from joulecast.units import format_energy, format_share
from joulecast.uses.search.search_space import Params, SearchSpace

Json = dict[str, Any]
Interval = tuple[float, float]


@dataclass(frozen=True)
class ScreenedCandidate:
    """A candidate with its estimated cost, before it is trained.

    Attributes:
        space: The space that it is from.
        estimate: Estimate of one step.
        steps: Steps of the run; 1 if the run has no length.
        budget_probability: Probability that the budget is met.
        is_within_budget: Whether that probability reaches the required confidence.
        parameters: Number of parameters.
        flops: FLOPs of one step.
        is_interpolated: Whether all of that was interpolated between other candidates.
    """

    params: Params
    space: SearchSpace
    estimate: Estimate
    steps: int
    budget_probability: float
    is_within_budget: bool
    parameters: int
    flops: float
    is_interpolated: bool = False

    @property
    def network(self) -> Network:
        """The network."""
        return self.space.build(self.params)[0]

    @property
    def name(self) -> str:
        """Name of the network."""
        return self.space.name_network(self.params)

    @property
    def setup(self) -> Setup:
        """How it is trained or run."""
        return self.space.make_setup(self.params)

    @property
    def energy_j(self) -> float:
        """Energy of all steps."""
        return self.estimate.energy_j * self.steps

    @property
    def interval_j(self) -> Interval:
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
            "interpolated": self.is_interpolated,
            "unseen_share": self.estimate.unseen_share,
            "provenance": self.estimate.provenance,
        }


@dataclass(frozen=True)
class BudgetScreener:
    """A search space, a budget and the estimator that decides which candidates meet it.

    Attributes:
        length: Length of a training run.
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

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(
                f"confidence is {self.confidence}: give a probability between 0 and 1, like 0.9"
            )

    @property
    def limit_j(self) -> float:
        """The budget in joules, per step or per run as the budget says."""
        return self.budget.limit(self.original_energy_j or 0.0)

    def compute_run_limit_j(self, steps: int) -> float:
        """Return the budget in joules for all steps of a run."""
        return self.limit_j * (steps if self.budget.per == "step" else 1)

    def screen(self, candidates: Sequence[Params]) -> tuple[ScreenedCandidate, ...]:
        """Return every candidate with its estimate, made in one batch."""
        return self.screen_with_variances(candidates)[0]

    def screen_with_variances(
        self, candidates: Sequence[Params]
    ) -> tuple[tuple[ScreenedCandidate, ...], Floats]:
        """Return every candidate, and the variance that decides whether it meets the budget.

        It is the variance of the logarithm of its energy, or of the ratio to the energy of the
        original if the budget is a share of that.
        """
        built = [self.space.build(params) for params in candidates]
        steps = [self.length.count_steps(setup.samples_per_step) for _, setup in built]
        if self.budget.share is not None:
            estimates = self._estimate([*built, self.space.original], joint=True)
            variance = estimates.log_ratio_variance(len(built), range(len(built)))
            probabilities = self._compare_to_original(estimates, steps)
        else:
            estimates = self._estimate(built)
            variance = estimates.log_variance
            limits_j = [self.compute_step_limit_j(count) for count in steps]
            probabilities = estimates.probability_within(limits_j)
        works = [network_work(*pair) for pair in built]
        screened = tuple(
            ScreenedCandidate(
                params,
                self.space,
                estimate,
                count,
                float(probability),
                bool(probability >= self.confidence),
                work.params,
                work.total.flops,
            )
            for params, work, estimate, count, probability in zip(
                candidates, works, estimates[: len(built)], steps, probabilities, strict=True
            )
        )
        return screened, variance

    def count_steps(self, params: Params) -> int:
        """Return the steps of a candidate's run; 1 if the run has no length."""
        batch = int(params.get("batch", self.space.setup.batch))
        return self.length.count_steps(replace(self.space.setup, batch=batch).samples_per_step)

    def compute_step_limit_j(self, steps: int) -> float:
        """Return the budget in joules for one step of a run of so many steps."""
        return self.limit_j / (steps if self.budget.per == "run" else 1)

    def estimate_jointly(self, candidates: Sequence[Params]) -> Estimates:
        """Return estimates of one step of each candidate, with their joint covariance."""
        return self._estimate([self.space.build(params) for params in candidates], joint=True)

    def explain_rejection(self, candidate: ScreenedCandidate) -> str:
        """Return one sentence that says why a candidate is not trained."""
        probability = format_share(candidate.budget_probability)
        return (
            f"{candidate.network.name} would need {self.describe_cost(candidate)} and meets "
            f"{self.describe_budget()} with probability {probability}, not "
            f"{format_share(self.confidence)}"
        )

    def describe_budget(self) -> str:
        """Return the budget in words, per step, inference or run."""
        return self.budget.describe(name_step(self.space.setup))

    def describe_cost(self, candidate: ScreenedCandidate) -> str:
        """Return a candidate's energy per step or per run, whichever the budget limits."""
        steps = candidate.steps if self.budget.per == "run" else 1
        period = "run" if self.budget.per == "run" else name_step(self.space.setup)
        low, high = (format_energy(end_j * steps) for end_j in candidate.estimate.interval_j)
        return (
            f"{format_energy(candidate.estimate.energy_j * steps)} per {period} "
            f"({100 * self.level:g} % interval {low} to {high}, "
            f"{candidate.estimate.provenance})"
        )

    def _estimate(self, built: Sequence[tuple[Network, Setup]], joint: bool = False) -> Estimates:
        networks, setups = [network for network, _ in built], [setup for _, setup in built]
        return self.fitted_profile.estimate(
            networks, setups, self.level, joint=joint, details=False
        )

    def _compare_to_original(self, estimates: Estimates, steps: Sequence[int]) -> Floats:
        """Return the probability that each run takes at most its share of the last one."""
        original = len(steps)
        original_steps = self.length.count_steps(self.space.setup.samples_per_step)
        ratios = [(self.budget.share or 0.0) * original_steps / count for count in steps]
        return estimates.probability_ratio_within(original, range(original), ratios)


def make_screener(
    profile: Profile,
    space: SearchSpace,
    budget: EnergyBudget,
    length: RunLength | None = None,
    *,
    confidence: float = 0.5,
    estimator: str = AUTO,
    level: float = 0.95,
) -> BudgetScreener:
    """Return a screener that estimates energy from a profile.

    Args:
        profile: Profile of the device.
        space: What may vary.
        budget: Limit of the energy.
        length: Length of a training run.
        confidence: Probability with which a candidate must meet the budget.
        estimator: Method that estimates energy.
        level: Probability of each interval.

    Raises:
        MissingError: The profile is empty, or the estimator cannot use what it contains.
    """
    fitted_profile, length = fit_profile(profile, estimator), length or RunLength()
    original_energy_j = None
    if budget.share is not None:
        network, setup = space.original
        estimate = fitted_profile.estimate([network], setup)[0]
        original_energy_j = length.count_steps(setup.samples_per_step) * estimate.energy_j
    return BudgetScreener(
        space, budget, fitted_profile, length, confidence, level, original_energy_j
    )
