"""Where to measure next: both ends of every curve first, then wherever a curve is least sure.

    corners   low … low, high … high, then the mixed ones; output curves, then input, then hidden
    then      of all curves that are not known yet, the widths of largest standard deviation, in
              joules of the target's step: a curve counts as often as the step counts on it

A curve is known when its largest standard deviation is below a share (5 %) of its profiled values.
An observation without any number stands for a trial that the device refused: it is not proposed
again, nor anything at least as wide in every width. What is refused at the smallest widths is tried
a little wider; a curve that is refused again and again is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.base import Proposal, Target
from joulecast.estimators.subtractive.curves import Curve, as_rows, read_parts
from joulecast.records import Observation, Trial
from joulecast.variants import (
    CurveRange,
    curve_key,
    describe_part,
    make_variant,
    part_widths,
    plan_curves,
    resize_part,
    width_names,
)

Widths = tuple[int, ...]

# How many values of each width are candidates, by number of widths.
_GRID = {1: 256, 2: 24, 3: 8}
# Refusals before a curve of which nothing was measured is left alone.
_PATIENCE = 4


@dataclass(frozen=True)
class Quest:
    """A curve of the target: its range, what was tried on it, and what the device refused."""

    key: str
    range: CurveRange
    tried: frozenset[Widths]
    refused: frozenset[Widths]

    def is_open(self, widths: Widths) -> bool:
        """Whether a point may be measured."""
        if widths in self.tried or widths in self.refused or self.is_hopeless:
            return False
        walls = self.refused - {self.range.lows}
        return not any(all(map(int.__ge__, widths, wall)) for wall in walls)

    @property
    def is_hopeless(self) -> bool:
        """Whether the device has refused whatever was tried."""
        return len(self.refused) >= _PATIENCE and not self.tried


@dataclass(frozen=True)
class Doubt:
    """Where a curve is least sure: its largest deviation, and the widths worth measuring if any."""

    quest: Quest
    sd: float
    share: float
    widths: Widths | None = None


def choose_next(
    target: Target, observations: Sequence[Observation], curves: Mapping[str, Curve]
) -> Proposal:
    """The most useful trial, or the reason why there is none."""
    quests = _list_quests(target, observations)
    doubts = [_find_doubt(quest, curves.get(quest.key), target) for quest in quests]
    proposal = _choose(target, quests, doubts)
    share = max((doubt.share for doubt in doubts), default=0.0)
    return replace(
        proposal, uncertainty_share=share, points=sum(len(quest.tried) for quest in quests)
    )


def _choose(target: Target, quests: Sequence[Quest], doubts: Sequence[Doubt]) -> Proposal:
    for quest in quests:
        for corner in _list_corners(quest):
            return _propose(target, quest, corner, "bound")
    for worst in sorted(doubts, key=lambda doubt: -doubt.sd * doubt.quest.range.calls):
        if worst.widths is not None:
            return _propose(target, worst.quest, worst.widths, f"off by {worst.share:.0%}")
    if all(doubt.share < target.uncertainty_share for doubt in doubts):
        return Proposal(None, 0.0, f"every curve is known within {target.uncertainty_share:.0%}")
    return Proposal(None, 0.0, "nothing is left to measure")


def _list_quests(target: Target, observations: Iterable[Observation]) -> list[Quest]:
    tried: dict[str, set[Widths]] = {}
    refused: dict[str, set[Widths]] = {}
    for seen in observations:
        parts = read_parts(seen) if seen.trial.setup == target.setup else None
        if parts is None:
            continue
        missing = seen.energy_j is None and seen.duration_s is None
        unguided = target.acquisition != "time" and seen.energy_j is None
        book = refused if missing else tried
        if missing or not unguided:
            key = curve_key(parts[0], target.setup)
            book.setdefault(key, set()).add(part_widths(parts[0]))
    quests = []
    for found in plan_curves(target.network):
        key = curve_key(found.part, target.setup)
        done, bad = frozenset(tried.get(key, ())), frozenset(refused.get(key, ()))
        quests.append(Quest(key, found, done, bad))
    return quests


def _list_corners(quest: Quest) -> Iterator[Widths]:
    """Bounds that are still open: all low, all high, then the mixed ones."""
    choices = sorted(
        itertools.product((0, 1), repeat=len(quest.range.lows)), key=lambda c: (len(set(c)) > 1, c)
    )
    for choice in choices:
        corner = _shift_corner(quest, choice)
        if quest.is_open(corner):
            yield corner


def _shift_corner(quest: Quest, choice: Sequence[int]) -> Widths:
    """A corner of the range, or what stands for it where the device refused it."""
    lows, highs, steps = quest.range.lows, quest.range.highs, quest.range.steps
    corner = tuple(high if up else low for up, low, high in zip(choice, lows, highs, strict=True))
    while not quest.is_open(corner) and corner not in quest.tried:
        if any(choice):
            moved = tuple(
                size // 2 // step * step for size, step in zip(corner, steps, strict=True)
            )
        else:
            moved = tuple(2 * size for size in corner)
        nearer = tuple(map(max, map(min, moved, highs), lows))
        if nearer == corner:
            return corner
        corner = nearer
    return corner


def list_candidates(found: CurveRange) -> list[Widths]:
    """A grid over the widths of a curve, in whole steps, both ends included."""
    per_width = _GRID.get(len(found.steps), 4)
    axes = []
    for low, high, step in zip(found.lows, found.highs, found.steps, strict=True):
        places = np.linspace(low // step, max(low, high) // step, per_width).round().astype(int)
        axes.append([int(place) * step for place in np.unique(places)])
    return list(itertools.product(*axes))


def _find_doubt(quest: Quest, curve: Curve | None, target: Target) -> Doubt:
    if curve is None:
        return Doubt(quest, 0.0, 1.0)
    candidates = list_candidates(quest.range)
    sds = curve.gp.standard_deviations(as_rows(candidates))
    share = float(sds.max()) / (curve.level or 1.0)
    places = [i for i, widths in enumerate(candidates) if quest.is_open(widths)]
    if share < target.uncertainty_share or not places:
        return Doubt(quest, float(sds.max()), share)
    worst = max(places, key=lambda i: float(sds[i]))
    return Doubt(quest, float(sds[worst]), share, candidates[worst])


def _propose(target: Target, quest: Quest, widths: Widths, why: str) -> Proposal:
    part = resize_part(quest.range.part, widths)
    trial = Trial(make_variant(part, target.network), target.setup)
    names = width_names(part)
    at = ", ".join(f"{name} {size}" for name, size in zip(names, widths, strict=True))
    return Proposal(trial, 0.0, f"{describe_part(part)} at {at or 'its size'} ({why})")
