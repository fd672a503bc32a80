"""Choose which trials of an atlas come next.

The order of ``list_trials`` is a design: every prefix of it is spread well over kinds and sizes,
whatever is observed. Once enough is known, a score can replace it: how much a trial reduces the
expected error over a population of networks, for its device time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulecast.atlas.trials import AtlasTrial
from joulecast.records import Observation

ScoreTrials = Callable[[Sequence[AtlasTrial], Sequence[Observation]], Sequence[float]]
"""Return the value of each trial, given what was observed: larger ones are measured first."""

BASE_TRIALS = 400
"""Trials of the design that are measured before a score is asked: one of most labels."""


def order_remaining(
    trials: Sequence[AtlasTrial],
    observations: Sequence[Observation],
    score: ScoreTrials | None = None,
) -> list[AtlasTrial]:
    """Return trials in the order in which they are to be measured.

    Args:
        trials: What is left, in the order of the design.
        observations: What was measured before.
        score: Values trials; without one, or before the base design is measured, the design
            decides. Anchors always come first.
    """
    if score is None or len(observations) < BASE_TRIALS:
        return list(trials)
    anchors = [one for one in trials if one.reason == "anchor"]
    others = [one for one in trials if one.reason != "anchor"]
    values = score(others, observations)
    # Of equally valuable trials, the design decides.
    order = sorted(range(len(others)), key=lambda at: -values[at])
    return [*anchors, *(others[at] for at in order)]
