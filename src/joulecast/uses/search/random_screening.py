"""Which share of a space fits a budget, without training anything.

How large a net is can be counted; how good it will be cannot: a survey ranks nothing by quality.
"""

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
BATCH = 256
"""Candidates of one question: larger ones are no faster and take more memory."""


@dataclass(frozen=True)
class RandomScreening:
    """Random candidates of a space and what they would cost.

    Attributes:
        verdicts: Of all candidates, in the order they were drawn.
        seconds: What drawing and judging them took.
    """

    screen: BudgetScreener
    verdicts: tuple[ScreenedCandidate, ...]
    seed: int
    seconds: float

    @property
    def fitting(self) -> tuple[ScreenedCandidate, ...]:
        """Those within the budget, the largest net first."""
        found = [verdict for verdict in self.verdicts if verdict.within]
        return tuple(sorted(found, key=lambda verdict: -count_work(verdict)[0]))

    def to_dict(self) -> Json:
        return {
            **describe_screen(self.screen),
            "seed": self.seed,
            "screened": len(self.verdicts),
            "within_budget": sum(verdict.within for verdict in self.verdicts),
            "seconds": self.seconds,
            "candidates": [_describe(verdict) for verdict in self.verdicts],
        }


def survey(
    screen: BudgetScreener,
    count: int = 1000,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> RandomScreening:
    """Draw random candidates evenly and judge them, many at a time.

    Args:
        screen: The space, the budget and whose profile answers.
        count: How many candidates.
        seed: Which ones.
        clock: Tells seconds.
    """
    if count < 1:
        raise InputError(f"{count} candidates: give at least 1")
    rng, begin_s = random.Random(seed), clock()
    drawn = [screen.space.draw(rng) for _ in range(count)]
    verdicts: list[ScreenedCandidate] = []
    for start in range(0, count, BATCH):
        verdicts += screen.judge(drawn[start : start + BATCH])
    return RandomScreening(screen, tuple(verdicts), seed, clock() - begin_s)


def check_reachable(screen: BudgetScreener, seed: int = 0) -> None:
    """Complain where no candidate keeps the budget.

    Raises:
        InputError: Neither the smallest nets nor random ones keep it; it says what the best takes.
    """
    rng = random.Random(seed)
    smallest = screen.judge(screen.space.list_smallest()[:BATCH])
    if any(verdict.within for verdict in smallest):
        return
    found = [*smallest, *screen.judge([screen.space.draw(rng) for _ in range(BATCH)])]
    if any(verdict.within for verdict in found):
        return
    best = max(found, key=lambda verdict: (verdict.chance, -verdict.energy_j))
    least = format_share(screen.confidence)
    raise InputError(
        f"nothing in this space keeps {screen.budget} with {least}: {best.network.name} is nearest "
        f"with {screen.say_cost(best)}; give a larger budget or smaller nets"
    )


def describe_screen(screen: BudgetScreener) -> Json:
    """What was asked, of whom, for programs."""
    profile = screen.opened.profile
    return {
        "space": screen.space.to_dict(),
        "budget": {**screen.budget.to_dict(), "text": str(screen.budget), "joules": screen.limit_j},
        "confidence": screen.confidence,
        "length": screen.length.to_dict(),
        "device": profile.device.name,
        "covers": profile.covers,
        "basis": screen.opened.basis,
        "estimator": screen.opened.method.name,
        "level": screen.level,
    }


def _describe(verdict: ScreenedCandidate) -> Json:
    params, flops = count_work(verdict)
    return {**verdict.to_dict(), "parameters": params, "flops": flops}
