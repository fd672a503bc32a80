"""Options of pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.errors import InputError

STRATEGY_NAMES = ("marginal", "uniform", "random")
OBJECTIVES = ("energy", "flops")
IMPORTANCES = ("magnitude", "taylor")


@dataclass(frozen=True)
class PruneOptions:
    """How to choose the channels to prune.

    Attributes:
        strategy: ``marginal``, ``uniform`` or ``random``.
        objective: Quantity to minimise: ``energy``, or ``flops`` as a baseline. With ``flops`` the
            budget is a share of the FLOPs.
        confidence: Probability with which the pruned network must meet the budget. At 0.5 the
            estimate itself must.
        importance: How channels are ranked: ``magnitude`` of the weights, or ``taylor`` by
            gradients. ``prune_network`` is given groups that are already ranked.
        floor: Channels that remain in every group: a share if below 1, otherwise a number.
        keep: Patterns of layer names that are not pruned.
        multiple: Round channel counts to a multiple of this.
        seed: Seed of the random strategy.
        start: ``counts`` of an earlier result to continue from.
        estimator: Method that estimates energy.
        level: Probability of the intervals in the result.
    """

    strategy: str = "marginal"
    objective: str = "energy"
    confidence: float = 0.5
    importance: str = "magnitude"
    floor: float = 0.1
    keep: tuple[str, ...] = ()
    multiple: int = 1
    seed: int = 0
    start: Mapping[str, int] | None = None
    estimator: str = "auto"
    level: float = 0.95

    def __post_init__(self) -> None:
        _check_choice("strategy", self.strategy, STRATEGY_NAMES)
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("importance", self.importance, IMPORTANCES)
        if not 0.0 < self.confidence < 1.0:
            raise InputError(
                f"confidence is {self.confidence}: give a probability between 0 and 1, like 0.9"
            )
        if not self.floor >= 0:
            raise InputError(f"floor is {self.floor}: give a share like 0.1, or a number like 8")
        if self.multiple < 1:
            raise InputError(f"multiple is {self.multiple}: give a whole number of at least 1")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}: choose from {', '.join(choices)}")
