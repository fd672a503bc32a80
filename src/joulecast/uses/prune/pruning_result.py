"""Records of a pruned network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.budgets import EnergyBudget
from joulecast.records import Estimate, Network
from joulecast.records.codec import Record

Json = dict[str, Any]


@dataclass(frozen=True)
class LayerChange(Record):
    """A layer before and after pruning.

    Attributes:
        channels_before: Output channels; 0 if the layer has none of its own.
        energy_before_j: Estimated energy of a step; 0 without a profile.
    """

    name: str
    kind: str
    channels_before: int
    channels_after: int
    energy_before_j: float
    energy_after_j: float


@dataclass(frozen=True)
class PruningResult:
    """A network pruned to a budget.

    Attributes:
        pruned: The network with fewer channels.
        counts: Channels left in each group.
        objective: Quantity that was minimised, ``energy`` or ``flops``.
        cost_before: Cost of a step of the original network, in ``unit``.
        budget_probability: Probability that the energy budget is met; None without a profile.
        importance_share: Share of importance kept, averaged over groups.
        candidate_count: Number of candidates whose cost was computed.
        before: Estimate of the original network; None without a profile.
        not_prunable: Layers that could not be pruned, with the reason.
    """

    network: Network
    pruned: Network
    counts: Mapping[str, int]
    budget: EnergyBudget
    strategy: str
    objective: str
    unit: str
    cost_before: float
    cost_after: float
    budget_probability: float | None
    confidence: float
    importance_share: float
    candidate_count: int
    layers: tuple[LayerChange, ...]
    before: Estimate | None = None
    after: Estimate | None = None
    not_prunable: tuple[str, ...] = ()

    def to_dict(self) -> Json:
        """Return the result as JSON values."""
        return {
            "net": self.network.name,
            "budget": self.budget.text or str(self.budget),
            "strategy": self.strategy,
            "objective": self.objective,
            "unit": self.unit,
            "cost_before": self.cost_before,
            "cost_after": self.cost_after,
            "before": self.before.to_dict() if self.before else None,
            "after": self.after.to_dict() if self.after else None,
            "budget_probability": self.budget_probability,
            "confidence": self.confidence,
            "importance_share": self.importance_share,
            "candidates": self.candidate_count,
            "counts": dict(self.counts),
            "layers": [layer.to_dict() for layer in self.layers],
            "not_prunable": list(self.not_prunable),
        }
