"""What is kept of an evaluation: observations told apart by run tags, and what they took.

    1a2b….test1             a window of a test net, first pass       1a2b….test2   second pass
    1a2b….additive          what the campaign of ``additive`` saw
    1a2b….additive.probe    the probes that ``additive`` wanted for the test nets

A campaign is shown its own observations only. Its budget is a rule over what is kept and not over a
clock, so that it holds across interruptions, costs nothing once it is spent, and a smaller budget
can be judged later from the beginning of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.records import Observation

Json = dict[str, Any]

PASSES = ("test1", "test2")


class EvaluationLog:
    """The observations of one evaluation; what is added is stored before it is remembered."""

    def __init__(
        self,
        name: str,
        observations: Iterable[Observation],
        keep: Callable[[Observation], None] | None = None,
    ) -> None:
        """Open it.

        Args:
            name: The evaluation's own.
            observations: All that the store has of the device.
            keep: Stores an observation for good; None where nothing will be added.
        """
        self.name = name
        self._keep = keep
        self._seen = [seen for seen in observations if seen.run.startswith(f"{name}.")]

    def tag(self, who: str) -> str:
        """The run that observations made for somebody carry."""
        return f"{self.name}.{who}"

    def add(self, observation: Observation) -> None:
        """Store an observation, then remember it."""
        if self._keep is not None:
            self._keep(observation)
        self._seen.append(observation)

    def list_all(self) -> tuple[Observation, ...]:
        """Everything, in the order it was made."""
        return tuple(self._seen)

    def list_of(self, who: str) -> tuple[Observation, ...]:
        """What was seen for somebody, in the order it was made."""
        return tuple(seen for seen in self._seen if seen.run == self.tag(who))


class CampaignObservations:
    """A book as the store of a single campaign; fits are left to whoever judges."""

    def __init__(self, book: EvaluationLog, who: str) -> None:
        self._book = book
        self._who = who

    def add_observation(self, observation: Observation) -> None:
        """Keep an observation for good."""
        self._book.add(observation)

    def observations(self, profile_key: str) -> Sequence[Observation]:
        """What this campaign has seen, and nothing else."""
        return self._book.list_of(self._who)

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Nothing: a fit to a part of what a device knows must not replace that of its profile."""


class BudgetedEstimator:
    """An estimator that asks for nothing more once its campaign has taken its seconds."""

    def __init__(self, method: Estimator, seconds: float) -> None:
        self.name = method.name
        self.version = method.version
        self._method = method
        self._seconds = seconds

    def uses(self, observation: Observation) -> bool:
        """As the estimator itself."""
        return self._method.uses(observation)

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Propose what the estimator itself does, until the budget is spent.

        Probes do not count against the budget.
        """
        if target.acquisition != "probe" and is_budget_spent(observations, self._seconds):
            return Proposal(None, 0.0, f"the budget of {self._seconds:.0f} s is spent")
        return self._method.propose(target, observations)

    def fit(self, observations: Sequence[Observation]) -> Fitted:
        """Fit the estimator itself."""
        return self._method.fit(observations)

    def load(self, data: Json) -> Fitted:
        """Restore a fit of the estimator itself."""
        return self._method.load(data)


def sum_work_s(observations: Iterable[Observation]) -> float:
    """Seconds that a campaign had the device work; waiting is not counted, and is short."""
    return sum(seen.cost_s for seen in observations if _is_work(seen))


def is_budget_spent(observations: Iterable[Observation], seconds: float) -> bool:
    """Whether one more observation that takes as long as the others is too much."""
    costs_s = [seen.cost_s for seen in observations if _is_work(seen)]
    return bool(costs_s) and sum(costs_s) + fmean(costs_s) > seconds


def cut_to_budget(observations: Sequence[Observation], seconds: float) -> tuple[Observation, ...]:
    """What a campaign with this budget would have seen: the beginning of a longer one."""
    costs_s: list[float] = []
    for place, seen in enumerate(observations):
        if _is_work(seen):
            if costs_s and sum(costs_s) + fmean(costs_s) > seconds:
                return tuple(observations[:place])
            costs_s.append(seen.cost_s)
    return tuple(observations)


def _is_work(seen: Observation) -> bool:
    """Whether something ran: neither a device that waits nor a trial that was refused."""
    return bool(seen.trial.network.layers) and seen.duration_s is not None
