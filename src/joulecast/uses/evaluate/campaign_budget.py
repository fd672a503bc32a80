"""Limit the device time of a campaign.

The budget is a rule over the stored observations instead of a clock. It therefore holds across
interruptions, and a smaller budget can be evaluated later from the first observations of a larger
one. Idle measurements and refused trials do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.records import Observation

Json = dict[str, Any]


class BudgetedEstimator:
    """An estimator that proposes nothing once its campaign has used its device time."""

    def __init__(self, estimator: Estimator, seconds: float) -> None:
        self.name = estimator.name
        self.version = estimator.version
        self.uses_anchors = estimator.uses_anchors
        self.repeats_doubtful = getattr(estimator, "repeats_doubtful", True)
        self._estimator = estimator
        self._seconds = seconds

    def uses(self, observation: Observation) -> bool:
        """Return whether the estimator can learn from an observation."""
        return self._estimator.uses(observation)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the estimator's proposal until the budget is spent; probes are not limited."""
        if target.acquisition != "probe" and is_budget_spent(observations, self._seconds):
            return Proposal(None, 0.0, f"the budget of {self._seconds:.0f} s is spent")
        return self._estimator.propose(target, observations, fitted)

    def fit(self, observations: Sequence[Observation], fitted: Fitted | None = None) -> Fitted:
        """Fit the estimator."""
        return self._estimator.fit(observations, fitted)

    def load(self, data: Json) -> Fitted:
        """Restore a fit from its JSON."""
        return self._estimator.load(data)


def sum_work_s(observations: Iterable[Observation]) -> float:
    """Return the device time of a campaign."""
    return sum(one.cost_s for one in observations if _is_work(one))


def is_budget_spent(observations: Iterable[Observation], seconds: float) -> bool:
    """Return whether one more observation of mean duration would exceed the budget."""
    costs_s = [one.cost_s for one in observations if _is_work(one)]
    return bool(costs_s) and sum(costs_s) + fmean(costs_s) > seconds


def cut_to_budget(observations: Sequence[Observation], seconds: float) -> tuple[Observation, ...]:
    """Return the observations that a campaign with this budget would have made."""
    costs_s: list[float] = []
    for place, one in enumerate(observations):
        if _is_work(one):
            if costs_s and sum(costs_s) + fmean(costs_s) > seconds:
                return tuple(observations[:place])
            costs_s.append(one.cost_s)
    return tuple(observations)


def _is_work(observation: Observation) -> bool:
    """Return whether a network ran: the device was not idle and did not refuse the trial."""
    return bool(observation.trial.network.layers) and observation.duration_s is not None
