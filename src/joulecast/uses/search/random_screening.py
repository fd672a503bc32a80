"""Screen random candidates to see which share of a space meets a budget, without training.

Some hundred candidates are estimated exactly; of more, the rest is interpolated between them. The
largest that keep the budget, which are shown, are then estimated exactly again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.units import format_share
from joulecast.uses.search.dimensions import Value
from joulecast.uses.search.interpolation import fit_interpolator
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.search_space import Params

Json = dict[str, Any]
BATCH_SIZE = 256
"""Candidates estimated together: larger batches are no faster and take more memory."""

LEARNT_COUNT = 192
"""Candidates that others are interpolated between.

On an H200 the energies of cnn5 are then off by 3.0 % (root mean square); with 128 by 3.8 %, with
256, which take a third longer, by 2.9 %.
"""

# More distinct candidates than this are interpolated.
_MAX_EXACT = 2 * LEARNT_COUNT
# Of interpolated candidates within the budget, so many of the largest are estimated exactly.
_CONFIRMED_COUNT = 32


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
        return tuple(sorted(found, key=lambda candidate: -candidate.parameters))

    @property
    def interpolated_count(self) -> int:
        """Number of candidates whose estimates were interpolated."""
        return sum(candidate.is_interpolated for candidate in self.candidates)

    def to_dict(self) -> Json:
        """Return the screening as JSON values."""
        return {
            **describe_screener(self.screener),
            "seed": self.seed,
            "screened": len(self.candidates),
            "within_budget": sum(candidate.is_within_budget for candidate in self.candidates),
            "interpolated": self.interpolated_count,
            "duration_s": self.duration_s,
            "candidates": [_describe_candidate(candidate) for candidate in self.candidates],
        }


def screen_randomly(
    screener: BudgetScreener,
    count: int = 1000,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> RandomScreening:
    """Draw random candidates and screen them, many of them by interpolation.

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
    keys = [tuple(params.values()) for params in drawn]
    distinct: dict[tuple[Value, ...], Params] = dict(zip(keys, drawn, strict=True))
    screened = dict(zip(distinct, _screen_distinct(screener, [*distinct.values()]), strict=True))
    candidates = tuple(screened[key] for key in keys)
    return RandomScreening(screener, candidates, seed, clock() - begin_s)


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
        f"no candidate meets {screener.describe_budget()} with probability "
        f"{format_share(screener.confidence)}: {best.network.name} comes closest with "
        f"{screener.describe_cost(best)}; give a larger budget or smaller networks"
    )


def _screen_distinct(
    screener: BudgetScreener, candidates: Sequence[Params]
) -> list[ScreenedCandidate]:
    """Return candidates with their estimates, of many some exactly and the rest interpolated."""
    if len(candidates) > _MAX_EXACT:
        interpolator = fit_interpolator(screener, candidates[:LEARNT_COUNT])
        rest = interpolator.screen(candidates[LEARNT_COUNT:])
        return _confirm_largest(screener, [*interpolator.learnt, *rest])
    screened: list[ScreenedCandidate] = []
    for start in range(0, len(candidates), BATCH_SIZE):
        screened += screener.screen(candidates[start : start + BATCH_SIZE])
    return screened


def _confirm_largest(
    screener: BudgetScreener, screened: list[ScreenedCandidate]
) -> list[ScreenedCandidate]:
    """Return candidates, the largest within the budget with exact estimates."""
    within = [at for at, one in enumerate(screened) if one.is_within_budget]
    within.sort(key=lambda at: -screened[at].parameters)
    places = [at for at in within[:_CONFIRMED_COUNT] if screened[at].is_interpolated]
    confirmed = screener.screen([screened[at].params for at in places]) if places else ()
    for at, candidate in zip(places, confirmed, strict=True):
        screened[at] = candidate
    return screened


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
    return {
        **candidate.to_dict(),
        "parameters": candidate.parameters,
        "flops": candidate.flops,
    }
