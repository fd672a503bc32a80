"""Strategies that choose which channels to prune.

    marginal   repeatedly prune where the least importance is lost per joule saved
    uniform    prune the same share of every group
    random     draw many candidates within the budget and take the one that keeps most importance
               (Li et al., CVPR 2022, used by the AMPERE paper)

A strategy is given a PruningProblem whose smallest network meets the budget, and returns counts
that meet it too.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from joulecast.uses.prune.pruning_problem import Counts, PruningProblem, compute_log_importance

# A move removes about this share of a group; wider moves are tried as well.
_MOVE_SHARE = 1 / 16
_MOVE_FACTORS = (1, 3)
# Share of the groups that move at the same time while the target is far.
_SIMULTANEOUS_SHARE = 0.25
_MAX_ROUNDS = 400
_UNIFORM_LEVELS = 97
_RANDOM_CANDIDATES = 400
_MAX_CHECKED = 24


class Strategy(Protocol):
    """A rule that chooses channel counts within a budget."""

    name: str

    def choose(self, problem: PruningProblem) -> Counts:
        """Return a count for every group."""


class UniformStrategy:
    """Prunes the same share of every group."""

    name = "uniform"

    def choose(self, problem: PruningProblem) -> Counts:
        """Return the largest uniform share that meets the budget."""
        levels = [at / (_UNIFORM_LEVELS - 1) for at in range(_UNIFORM_LEVELS - 1, -1, -1)]
        return _find_first_within(problem, (_scale_counts(problem, level) for level in levels))


class RandomStrategy:
    """Takes the best of many random candidates."""

    name = "random"

    def choose(self, problem: PruningProblem) -> Counts:
        """Return the random candidate within the budget that keeps most importance."""
        rng = random.Random(problem.seed)
        drawn = [_draw_counts(problem, rng) for _ in range(_RANDOM_CANDIDATES)]
        ranked = sorted(drawn, key=problem.compute_value, reverse=True)
        return _find_first_within(problem, ranked)


class MarginalStrategy:
    """Prunes where the least importance is lost per joule saved."""

    name = "marginal"

    def choose(self, problem: PruningProblem) -> Counts:
        """Return the first counts within the budget on the way down from the initial ones."""
        counts = problem.initial_counts
        # The uncertainty of a pruned network hardly depends on which channels were removed.
        reference = counts if problem.start else UniformStrategy().choose(problem)
        target = problem.compute_cost_target(reference)
        for _ in range(_MAX_ROUNDS):
            if problem.compute_cost(counts) <= target:
                if problem.is_within_budget(counts):
                    return counts
                target = min(problem.compute_cost_target(counts), 0.999 * target)
            moved = _move(problem, counts, target) or _move(problem, counts, target, far=True)
            if moved is None:
                break
            counts = moved
        return UniformStrategy().choose(problem)


STRATEGIES: dict[str, type[Strategy]] = {
    one.name: one for one in (MarginalStrategy, UniformStrategy, RandomStrategy)
}


def _scale_counts(problem: PruningProblem, level: float) -> Counts:
    """Return counts between the smallest (level 0) and the full ones (level 1)."""
    limits, smallest = problem.limits, problem.limits.smallest
    return {
        name: limits.round_up(name, smallest[name] + level * (full - smallest[name]))
        for name, full in limits.full.items()
    }


def _draw_counts(problem: PruningProblem, rng: random.Random) -> Counts:
    """Return random counts around a random level, so that some candidates meet any budget."""
    level = rng.random()
    shares = {name: 1.0 - level * rng.random() for name in problem.limits.full}
    return {
        name: problem.limits.round_up(name, shares[name] * full)
        for name, full in problem.limits.full.items()
    }


def _find_first_within(problem: PruningProblem, candidates: Iterable[Counts]) -> Counts:
    """Return the first candidate within the budget; the variance of only a few is computed."""
    many = list(candidates)
    limit = problem.cost_limit
    costs = problem.compute_costs(many)
    within = [one for one, cost in zip(many, costs, strict=True) if cost <= limit]
    checked = 0
    while within and checked < _MAX_CHECKED:
        target = problem.compute_cost_target(within[0])
        if problem.compute_cost(within[0]) <= target:
            return within[0]
        # Candidates that cost clearly more than this target would fail as well.
        within = [one for one in within[1:] if problem.compute_cost(one) <= target * 1.001]
        checked += 1
    return problem.limits.smallest


def _move(
    problem: PruningProblem, counts: dict[str, int], target: float, far: bool = False
) -> dict[str, int] | None:
    """Return counts after the best moves, as many at once as the target still needs."""
    list_lower = _list_far if far else _list_near
    moves = [(name, count) for name in counts for count in list_lower(problem, name, counts[name])]
    if not moves:
        return None
    candidates = [{**counts, name: count} for name, count in moves]
    now, *costs = problem.compute_costs([counts, *candidates])
    groups = {group.name: group for group in problem.groups}
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(moves, costs, strict=True):
        # Some counts run slower than larger ones: a cut that saves nothing is not made.
        if cost < now:
            lost = compute_log_importance(groups[name], counts[name])
            lost -= compute_log_importance(groups[name], count)
            move = (lost / (now - cost), now - cost, count)
            best[name] = min(best.get(name, move), move)
    if not best:
        return None
    ranked = sorted(best.items(), key=lambda item: item[1])
    chosen, left = {}, now
    for name, (_, saved, count) in ranked[: max(1, int(_SIMULTANEOUS_SHARE * len(ranked)))]:
        chosen[name] = count
        left -= saved
        if left <= target:
            break
    together = {**counts, **chosen}
    if len(chosen) > 1 and problem.compute_cost(together) >= now:
        name, (_, _, count) = ranked[0]
        return {**counts, name: count}
    return together


def _list_near(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return lower counts to try: the next one, a sixteenth of the group less, and further."""
    lower = problem.limits.list_below(name, count)
    full = problem.limits.full[name]
    goals = [count - full * _MOVE_SHARE * factor for factor in _MOVE_FACTORS]
    moves = [next((one for one in lower if one <= goal), None) for goal in goals]
    return sorted({one for one in (*moves, *lower[:1]) if one is not None}, reverse=True)


def _list_far(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return counts far below ``count``, for when no nearby one saves anything."""
    lower = problem.limits.list_below(name, count)
    return [lower[at] for at in range(0, len(lower), max(1, len(lower) // 6))] + list(lower[-1:])
