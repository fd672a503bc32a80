"""Options of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError

SEARCH_OBJECTIVES = ("pareto", "score")
MAX_CANDIDATES = 32


@dataclass(frozen=True)
class SearchOptions:
    """What a search varies, and how Optuna runs it.

    Attributes:
        confidence: Probability with which a network must meet the budget to be trained. At 0.5
            the estimate itself must.
        vary: Dimensions by name, like ``{"c1": NumberRange(8, 64), "batch": (16, 32)}``, with
            ``NumberRange`` from ``joulecast.uses.search``; every width and depth of the family by
            default.
        trials: Number of networks to train.
        sampler: ``nsga2``, ``nsga3``, ``tpe``, ``gp``, ``random``, the name of a class of
            ``optuna.samplers``, or a sampler.
        objective: ``pareto`` for score against energy, or ``score`` for the score alone, which
            lets the training function report intermediate values and be pruned.
        storage: Optuna storage, like ``sqlite:///search.db``; in memory by default.
        study: Name of the study in the storage. An existing study is continued.
        seed: Seed of the sampler and of the initial weights.
        tries: Largest number of candidates to draw for one trial.
    """

    confidence: float = 0.5
    vary: Mapping[str, Any] | None = None
    trials: int = 50
    sampler: Any = "nsga2"
    objective: str = "pareto"
    storage: Any = None
    study: str = ""
    seed: int = 0
    tries: int = MAX_CANDIDATES

    def __post_init__(self) -> None:
        if self.objective not in SEARCH_OBJECTIVES:
            known = ", ".join(SEARCH_OBJECTIVES)
            raise InputError(f"unknown objective {self.objective!r}: choose from {known}")
        if not 0 < self.confidence < 1:
            raise InputError(
                f"confidence is {self.confidence}: give a probability between 0 and 1, like 0.9"
            )
