"""The problem that a pruning strategy solves: importance against cost under a budget.

A candidate is a channel count for every group. Costs of candidates are cached and computed in
batches, because an estimator is much faster on many networks at once. The value of a candidate is
the sum over groups of ln(share of importance kept), so that the last channels of a group are worth
more than the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joulecast.budgets import EnergyBudget
from joulecast.gp.lognormal import lognormal_quantile, probability_below
from joulecast.kinds.channel_groups import ChannelGroup, narrow_network
from joulecast.records import Network
from joulecast.uses.prune.channel_limits import ChannelLimits
from joulecast.uses.prune.pruning_objectives import PruningObjective

Counts = Mapping[str, int]


@dataclass(frozen=True)
class PruningProblem:
    """A network, its prunable groups, an objective and a budget.

    Attributes:
        confidence: Probability with which a candidate must stay within the budget.
        start: Counts to start from; all channels if empty.
        known_costs: Cache of candidate costs.
    """

    network: Network
    groups: tuple[ChannelGroup, ...]
    limits: ChannelLimits
    objective: PruningObjective
    budget: EnergyBudget
    confidence: float = 0.5
    seed: int = 0
    start: Counts = field(default_factory=dict)
    known_costs: dict[tuple[int, ...], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def initial_counts(self) -> dict[str, int]:
        """The counts that the search starts from."""
        return {**self.limits.full, **self.start}

    @property
    def cost_limit(self) -> float:
        """The highest cost of a step that the budget allows."""
        return self.budget.limit(self.compute_cost(self.limits.full))

    def narrow_network(self, counts: Counts) -> Network:
        """Return the network with these channel counts."""
        return narrow_network(self.network, self.groups, counts)

    def compute_cost(self, counts: Counts) -> float:
        """Return the cost of one step of a candidate."""
        return self.compute_costs([counts])[0]

    def compute_costs(self, candidates: Sequence[Counts]) -> list[float]:
        """Return the cost of one step of each candidate."""
        keys = [self._make_key(counts) for counts in candidates]
        missing = {key: at for at, key in enumerate(keys) if key not in self.known_costs}
        if missing:
            networks = [self.narrow_network(candidates[at]) for at in missing.values()]
            costs = self.objective.compute_costs(networks)
            self.known_costs.update(zip(missing, map(float, costs), strict=True))
        return [self.known_costs[key] for key in keys]

    def compute_cost_target(self, counts: Counts) -> float:
        """Return the highest cost at which candidates like this one reach the confidence."""
        log_sd = self.compute_log_sd(counts)
        return lognormal_quantile(self.cost_limit, log_sd, 1.0 - self.confidence)

    def compute_log_sd(self, counts: Counts) -> float:
        """Return the standard deviation of the logarithm of the quantity the budget limits."""
        return self.objective.compute_log_sd(self.network, self.narrow_network(counts), self.budget)

    def compute_budget_probability(self, counts: Counts) -> float:
        """Return the probability that a candidate stays within the budget."""
        log_margin = math.log(self.cost_limit / self.compute_cost(counts))
        return probability_below(log_margin, self.compute_log_sd(counts) ** 2)

    def is_within_budget(self, counts: Counts) -> bool:
        """Return whether a candidate stays within the budget with the required confidence."""
        cost = self.compute_cost(counts)
        return cost <= self.cost_limit and cost <= self.compute_cost_target(counts)

    def compute_value(self, counts: Counts) -> float:
        """Return the sum over groups of the logarithm of the importance share kept."""
        return sum(compute_log_importance(one, counts[one.name]) for one in self.groups)

    def _make_key(self, counts: Counts) -> tuple[int, ...]:
        return tuple(counts[group.name] for group in self.groups)


def compute_log_importance(group: ChannelGroup, count: int) -> float:
    """Return the logarithm of the importance share that ``count`` channels keep."""
    return math.log(max(kept_importance_share(group, count), 1e-12))


def kept_importance_share(group: ChannelGroup, count: int) -> float:
    """Return the share of a group's importance in its ``count`` most important channels."""
    ranked = sorted(group.importance, reverse=True)
    return sum(ranked[: count // group.step]) / sum(ranked)
