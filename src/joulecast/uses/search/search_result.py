"""The records of a result: every trial that was trained, and the front among them.

The front is told twice: by the estimates themselves, and by draws of what all nets may really cost,
their errors going together: in how many of them each net is on the front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulecast.fronts import find_front
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.random_screening import describe_screen

Json = dict[str, Any]
_DRAWS = 400


@dataclass(frozen=True)
class TrainedTrial:
    """A trial that was trained.

    Attributes:
        number: Which trial of the study.
        score: What the training function returned; more is better.
        on_front: No other trial has as good a score for fewer joules, by the estimates.
        front_chance: Probability of that, as far as joules are in doubt; scores are taken as they
            are.
    """

    number: int
    score: float
    verdict: ScreenedCandidate
    on_front: bool = False
    front_chance: float = 0.0

    def to_dict(self) -> Json:
        own = {
            "trial": self.number,
            "score": self.score,
            "on_front": self.on_front,
            "front_chance": self.front_chance,
        }
        return {**own, **self.verdict.to_dict()}


@dataclass(frozen=True)
class SearchResult:
    """What a search has found so far.

    Attributes:
        study: The study's name in its storage.
        points: Every trial that was trained, in order.
        screened: Candidates whose cost was estimated.
        ruled_out: How many of them were not trained since they would cost too much.
        pruned: Trials that ended there, since the sampler proposed nothing else.
        failed: Trials whose training failed, or gave no finite score.
    """

    study: str
    screen: BudgetScreener
    points: tuple[TrainedTrial, ...]
    screened: int
    ruled_out: int
    pruned: int
    failed: int
    sampler: str = ""

    @property
    def front(self) -> tuple[TrainedTrial, ...]:
        """Trials on the front, the cheapest first."""
        best = [point for point in self.points if point.on_front]
        return tuple(sorted(best, key=lambda point: point.verdict.energy_j))

    def to_dict(self) -> Json:
        return {
            **describe_screen(self.screen),
            "study": self.study,
            "sampler": self.sampler,
            "screened": self.screened,
            "ruled_out": self.ruled_out,
            "pruned": self.pruned,
            "failed": self.failed,
            "trials": [point.to_dict() for point in self.points],
            "front": [point.to_dict() for point in self.front],
        }


def hide_password(url: str) -> str:
    """A storage's URL as it may be shown."""
    return re.sub(r"(://[^:/@]+):[^@]*@", r"\1:***@", url)


def make_trained_trials(screen: BudgetScreener, trained: Sequence[tuple[int, float, Json]]) -> tuple[TrainedTrial, ...]:
    """Trials with where they stand: number, score and the values that each was trained at."""
    if not trained:
        return ()
    candidates = [params for _, _, params in trained]
    verdicts = screen.judge(candidates)
    points = [
        TrainedTrial(number, score, verdict)
        for (number, score, _), verdict in zip(trained, verdicts, strict=True)
    ]
    on = find_front([(-point.score, point.verdict.energy_j) for point in points])
    chances = _weigh(screen, points, candidates)
    return tuple(
        replace(point, on_front=best, front_chance=chance)
        for point, best, chance in zip(points, on, chances, strict=True)
    )


def _weigh(screen: BudgetScreener, points: Sequence[TrainedTrial], candidates: Sequence[Json]) -> list[float]:
    """In how many draws of all nets' joules each is on the front."""
    steps = np.array([point.verdict.steps for point in points])
    drawn = screen.ask_jointly(candidates).draw(_DRAWS) * steps
    losses = [-point.score for point in points]
    fronts = [find_front(list(zip(losses, row, strict=True))) for row in drawn.tolist()]
    return [float(share) for share in np.mean(fronts, axis=0)]
