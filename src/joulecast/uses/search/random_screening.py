"""Screen random candidates to see which share of a space meets a budget, without training."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.units import format_share
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate, count_work

Json = dict[str, Any]
BATCH_SIZE = 256
"""Candidates estimated together: larger batches are no faster and take more memory."""


@dataclass(frozen=True)
class RandomScreening:
    """Random candidates of a space and their estimated cost.

    Attributes:
        candidates: All candidates, in the order they were drawn.
        duration_s: Time it took to draw and estimate them.
    """

    screener: BudgetScreener
    candidates: tuple[ScreenedCandidate, ...]
    seed: int
    duration_s: float

    @property
    def within_budget(self) -> tuple[ScreenedCandidate, ...]:
        """Candidates that meet the budget, the one with most parameters first."""
        found = [candidate for candidate in self.candidates if candidate.is_within_budget]
        return tuple(sorted(found, key=lambda candidate: -count_work(candidate)[0]))

    def to_dict(self) -> Json:
        """Return the screening as JSON values."""
        return {
            **describe_screener(self.screener),
            "seed": self.seed,
            "screened": len(self.candidates),
            "within_budget": sum(candidate.is_within_budget for candidate in self.candidates),
            "duration_s": self.duration_s,
            "candidates": [_describe_candidate(candidate) for candidate in self.candidates],
        }


def screen_randomly(
    screener: BudgetScreener,
    count: int = 1000,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> RandomScreening:
    """Draw random candidates and screen them in batches.

    Args:
        screener: Space, budget and estimator.
        count: Number of candidates.
        seed: Seed of the draws.
        clock: Returns the time in seconds.
    """
    if count < 1:
        raise InputError(f"the number of candidates is {count}: give at least 1")
    rng, begin_s = random.Random(seed), clock()
    drawn = [screener.space.draw(rng) for _ in range(count)]
    candidates: list[ScreenedCandidate] = []
    for start in range(0, count, BATCH_SIZE):
        candidates += screener.screen(drawn[start : start + BATCH_SIZE])
    return RandomScreening(screener, tuple(candidates), seed, clock() - begin_s)


def check_reachable(screener: BudgetScreener, seed: int = 0) -> None:
    """Check that some candidate meets the budget.

    Raises:
        InputError: Neither the smallest networks nor random ones do; the message names the one
            that comes closest.
    """
    rng = random.Random(seed)
    smallest = screener.screen(screener.space.list_smallest()[:BATCH_SIZE])
    if any(candidate.is_within_budget for candidate in smallest):
        return
    drawn = [screener.space.draw(rng) for _ in range(BATCH_SIZE)]
    found = [*smallest, *screener.screen(drawn)]
    if any(candidate.is_within_budget for candidate in found):
        return
    best = max(found, key=lambda candidate: (candidate.budget_probability, -candidate.energy_j))
    raise InputError(
        f"no candidate meets {screener.budget} with probability "
        f"{format_share(screener.confidence)}: {best.network.name} comes closest with "
        f"{screener.describe_cost(best)}; give a larger budget or smaller networks"
    )


def describe_screener(screener: BudgetScreener) -> Json:
    """Return the space, the budget and the estimator as JSON values."""
    profile = screener.fitted_profile.profile
    return {
        "space": screener.space.to_dict(),
        "budget": {
            **screener.budget.to_dict(),
            "text": str(screener.budget),
            "limit_j": screener.limit_j,
        },
        "confidence": screener.confidence,
        "length": screener.length.to_dict(),
        "device": profile.device.name,
        "covers": profile.covers,
        "provenance": screener.fitted_profile.provenance,
        "estimator": screener.fitted_profile.estimator.name,
        "level": screener.level,
    }


def _describe_candidate(candidate: ScreenedCandidate) -> Json:
    params, flops = count_work(candidate)
    return {**candidate.to_dict(), "parameters": params, "flops": flops}
