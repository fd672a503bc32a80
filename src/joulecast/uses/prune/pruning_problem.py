"""What a strategy is given: a net, its groups, how far they may go, a guide and a budget.

Counts of all groups are a candidate. A candidate's cost is asked for once, and many at a time: that
is what an estimator is quick at. What a group loses is the logarithm of the importance that it
keeps, so that the last channels of a group cost more than its first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from joulecast.estimators import find_chance
from joulecast.kinds.narrow import Group, narrow
from joulecast.records import Network
from joulecast.uses.prune.pruning_budget import EnergyBudget
from joulecast.uses.prune.pruning_objectives import PruningObjective
from joulecast.uses.prune.channel_limits import ChannelLimits

Counts = Mapping[str, int]


@dataclass(frozen=True)
class PruningProblem:
    """See the module.

    Attributes:
        confidence: How probable keeping the budget shall be.
        start: Counts to begin from; all channels where there are none.
    """

    network: Network
    groups: tuple[Group, ...]
    limits: ChannelLimits
    guide: PruningObjective
    budget: EnergyBudget
    confidence: float = 0.5
    seed: int = 0
    start: Counts = field(default_factory=dict)
    costs: dict[tuple[int, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def narrow(self, counts: Counts) -> Network:
        """The network that is left."""
        return narrow(self.network, self.groups, counts)

    def cost(self, many: Sequence[Counts]) -> list[float]:
        """What a step of each candidate costs."""
        keys = [self._key(counts) for counts in many]
        missing = {key: at for at, key in enumerate(keys) if key not in self.costs}
        if missing:
            found = self.guide.cost([self.narrow(many[at]) for at in missing.values()])
            self.costs.update(zip(missing, map(float, found), strict=True))
        return [self.costs[key] for key in keys]

    @property
    def first(self) -> dict[str, int]:
        """Where the search begins."""
        return {**self.limits.whole, **self.start}

    def limit(self) -> float:
        """The most that a step may cost."""
        return self.budget.limit(self.cost([self.limits.whole])[0])

    def target(self, counts: Counts) -> float:
        """The most that candidates like this one may cost to keep the budget so probably."""
        z = NormalDist().inv_cdf(self.confidence)
        return self.limit() * math.exp(-z * self.spread(counts))

    def odds(self, counts: Counts) -> float:
        """The probability that a candidate keeps the budget."""
        room = math.log(self.limit() / self.cost([counts])[0])
        return find_chance(room, self.spread(counts) ** 2)

    def spread(self, counts: Counts) -> float:
        """One deviation of the logarithm of what the budget bounds."""
        return self.guide.spread(self.network, self.narrow(counts), self.budget)

    def keeps(self, counts: Counts) -> bool:
        """Whether a candidate keeps the budget as probably as it shall."""
        cost = self.cost([counts])[0]
        return cost <= self.limit() and cost <= self.target(counts)

    def worth(self, counts: Counts) -> float:
        """Sum over groups of the logarithm of the importance that is kept."""
        return sum(self.keep_log(group, counts[group.name]) for group in self.groups)

    def keep_log(self, group: Group, count: int) -> float:
        """The logarithm of the share of its importance that a group keeps."""
        return math.log(max(kept_importance_share(group, count), 1e-12))

    def _key(self, counts: Counts) -> tuple[int, ...]:
        return tuple(counts[group.name] for group in self.groups)


def kept_importance_share(group: Group, count: int) -> float:
    """The share of a group's importance in its most important channels."""
    ranked = sorted(group.importance, reverse=True)
    return sum(ranked[: count // group.step]) / sum(ranked)
