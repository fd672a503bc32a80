"""Records of a search: trained networks and their Pareto front.

The front is given twice: for the mean energies, and as the share of joint draws of all energies in
which a network is on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulecast.fronts import find_front
from joulecast.uses.search.random_screening import describe_screener
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.search_space import Params

Json = dict[str, Any]
_DRAWS = 400


@dataclass(frozen=True)
class TrainedTrial:
    """A trial whose network was trained.

    Attributes:
        number: Number of the trial in the study.
        score: Value that the training function returned; higher is better.
        is_on_front: Whether no other trial has at least this score for less estimated energy.
        front_probability: Probability of that under the uncertainty of the energies; scores are
            taken as exact.
    """

    number: int
    score: float
    candidate: ScreenedCandidate
    is_on_front: bool = False
    front_probability: float = 0.0

    def to_dict(self) -> Json:
        """Return the trial as JSON values."""
        return {
            "trial": self.number,
            "score": self.score,
            "on_front": self.is_on_front,
            "front_probability": self.front_probability,
            **self.candidate.to_dict(),
        }


@dataclass(frozen=True)
class SearchResult:
    """The state of a study.

    Attributes:
        study: Name of the study in its storage.
        trials: Trials whose network was trained, in order.
        screened_count: Candidates whose cost was estimated.
        ruled_out_count: Candidates that were not trained because they exceed the budget.
        pruned_count: Trials that ended early: the sampler proposed no candidate within the budget,
            or the training function stopped.
        failed_count: Trials whose training failed or gave no finite score.
    """

    study: str
    screener: BudgetScreener
    trials: tuple[TrainedTrial, ...]
    screened_count: int
    ruled_out_count: int
    pruned_count: int
    failed_count: int
    sampler: str = ""

    @property
    def front(self) -> tuple[TrainedTrial, ...]:
        """Trials on the Pareto front, the least energy first."""
        best = [trial for trial in self.trials if trial.is_on_front]
        return tuple(sorted(best, key=lambda trial: trial.candidate.energy_j))

    def to_dict(self) -> Json:
        """Return the result as JSON values."""
        return {
            **describe_screener(self.screener),
            "study": self.study,
            "sampler": self.sampler,
            "screened": self.screened_count,
            "ruled_out": self.ruled_out_count,
            "pruned": self.pruned_count,
            "failed": self.failed_count,
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.to_dict() for trial in self.front],
        }


def make_trained_trials(
    screener: BudgetScreener, trained: Sequence[tuple[int, float, Params]]
) -> tuple[TrainedTrial, ...]:
    """Return trials with their estimates and their place relative to the front.

    Args:
        screener: Estimates the energy of each trial.
        trained: Number, score and values of each trial.
    """
    if not trained:
        return ()
    params = [values for _, _, values in trained]
    trials = [
        TrainedTrial(number, score, candidate)
        for (number, score, _), candidate in zip(trained, screener.screen(params), strict=True)
    ]
    on_front = find_front([(-trial.score, trial.candidate.energy_j) for trial in trials])
    probabilities = _compute_front_probabilities(screener, trials)
    return tuple(
        replace(trial, is_on_front=is_on_front, front_probability=probability)
        for trial, is_on_front, probability in zip(trials, on_front, probabilities, strict=True)
    )


def _compute_front_probabilities(
    screener: BudgetScreener, trials: Sequence[TrainedTrial]
) -> list[float]:
    """Return the share of joint draws in which each trial is on the front."""
    steps = np.array([trial.candidate.steps for trial in trials])
    estimates = screener.estimate_jointly([trial.candidate.params for trial in trials])
    energies_j = estimates.draw(_DRAWS) * steps
    losses = [-trial.score for trial in trials]
    fronts = [find_front(list(zip(losses, row, strict=True))) for row in energies_j.tolist()]
    return [float(share) for share in np.mean(fronts, axis=0)]
