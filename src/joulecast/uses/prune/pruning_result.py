"""The records of a pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.records import Estimate, Network
from joulecast.uses.prune.pruning_budget import EnergyBudget

Json = dict[str, Any]


@dataclass(frozen=True)
class LayerChange:
    """A layer before and after.

    Attributes:
        channels_before: What it gives; 0 where it has no channels of its own.
        energy_before_j: By the estimate; 0 where none was made.
    """

    name: str
    kind: str
    channels_before: int
    channels_after: int
    energy_before_j: float
    energy_after_j: float

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class PruningResult:
    """A net cut to a budget.

    Attributes:
        counts: Channels that are left in each group.
        before: The estimates; None where FLOPs guided and no profile was given.
        kept_probability: That the budget of joules is kept; None where there is no estimate.
        importance_share: What is left of the channels' importance: the mean over all groups.
        cost_before: A step by the guide, in ``unit``.
        looked_at: How many candidates were.
    """

    network: Network
    smaller: Network
    counts: Mapping[str, int]
    budget: EnergyBudget
    strategy: str
    guide: str
    unit: str
    cost_before: float
    cost_after: float
    kept_probability: float | None
    confidence: float
    importance_share: float
    looked_at: int
    layers: tuple[LayerChange, ...]
    before: Estimate | None = None
    after: Estimate | None = None
    whole: tuple[str, ...] = ()

    def to_dict(self) -> Json:
        return {
            "net": self.network.name,
            "budget": self.budget.text or str(self.budget),
            "strategy": self.strategy,
            "guide": self.guide,
            "unit": self.unit,
            "cost_before": self.cost_before,
            "cost_after": self.cost_after,
            "before": self.before.to_dict() if self.before else None,
            "after": self.after.to_dict() if self.after else None,
            "kept_probability": self.kept_probability,
            "confidence": self.confidence,
            "importance_share": self.importance_share,
            "candidates": self.looked_at,
            "counts": dict(self.counts),
            "layers": [layer.to_dict() for layer in self.layers],
            "whole": list(self.whole),
        }
