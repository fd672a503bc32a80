"""Which channels go: three strategies behind one verb.

    marginal   again and again where the least importance is lost per joule saved
    uniform    the same share of every group
    random     the candidate that keeps most importance of many drawn at random within the budget
               (Li et al., CVPR 2022, which the AMPERE paper prunes with)

A strategy is given a Task of which the smallest net keeps the budget, and gives counts that do.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from joulecast.uses.prune.pruning_problem import Counts, PruningProblem

# A move takes about this share of a group; wider moves are tried beside it.
_MOVE_SHARE = 1 / 16
_WIDER = (1, 3)
# Of all groups this share moves at a time while there is far to go.
_AT_ONCE = 0.25
_MOST_ROUNDS = 400
_LEVELS = 97
_DRAWS = 400
_MOST_CHECKED = 24


class Strategy(Protocol):
    """Chooses counts that keep the budget."""

    name: str

    def choose(self, task: PruningProblem) -> Counts:
        """Counts of all groups."""


class Uniform:
    """The same share of every group."""

    name = "uniform"

    def choose(self, task: PruningProblem) -> Counts:
        """The largest share that keeps the budget."""
        levels = [at / (_LEVELS - 1) for at in range(_LEVELS - 1, -1, -1)]
        return _take_first(task, (_scale(task, level) for level in levels))


class Random:
    """Many candidates at random; the best of those that keep the budget."""

    name = "random"

    def choose(self, task: PruningProblem) -> Counts:
        """By the importance that they keep."""
        rng = random.Random(task.seed)
        drawn = [_draw(task, rng) for _ in range(_DRAWS)]
        return _take_first(task, sorted(drawn, key=task.worth, reverse=True))


class Marginal:
    """Where importance lost per joule saved is least."""

    name = "marginal"

    def choose(self, task: PruningProblem) -> Counts:
        """Until the budget is kept."""
        counts = task.first
        # How unsure a smaller net is hardly depends on which channels went.
        target = task.target(counts if task.start else Uniform().choose(task))
        for _ in range(_MOST_ROUNDS):
            if task.cost([counts])[0] <= target:
                if task.keeps(counts):
                    return counts
                target = min(task.target(counts), 0.999 * target)
            moved = _move(task, counts, target) or _move(task, counts, target, far=True)
            if moved is None:
                break
            counts = moved
        return Uniform().choose(task)


STRATEGIES: dict[str, type[Strategy]] = {one.name: one for one in (Marginal, Uniform, Random)}


def _scale(task: PruningProblem, level: float) -> Counts:
    """Every group between its fewest channels and all of them."""
    least = task.limits.least
    return {
        name: task.limits.fit(name, least[name] + level * (most - least[name]))
        for name, most in task.limits.whole.items()
    }


def _draw(task: PruningProblem, rng: random.Random) -> Counts:
    """Random shares of all groups, around a random level so that every budget is met by some."""
    level = rng.random()
    shares = {name: 1.0 - level * rng.random() for name in task.limits.whole}
    return {
        name: task.limits.fit(name, shares[name] * most) for name, most in task.limits.whole.items()
    }


def _take_first(task: PruningProblem, candidates: Iterable[Counts]) -> Counts:
    """The first that keeps the budget; only the nearest are asked how sure that is."""
    many = list(candidates)
    limit = task.limit()
    within = [c for c, cost in zip(many, task.cost(many), strict=True) if cost <= limit]
    checked = 0
    while within and checked < _MOST_CHECKED:
        target = task.target(within[0])
        if task.cost([within[0]])[0] <= target:
            return within[0]
        # Whatever costs more than would be sure enough here need not be asked.
        within = [c for c in within[1:] if task.cost([c])[0] <= target * 1.001]
        checked += 1
    return task.limits.least


def _move(
    task: PruningProblem, counts: dict[str, int], target: float, far: bool = False
) -> dict[str, int] | None:
    """The moves that lose least for what they save, as many at once as are still needed."""
    goals = _list_far if far else _list_moves
    moves = [(name, count) for name in counts for count in goals(task, name, counts[name])]
    if not moves:
        return None
    now, *then = task.cost([counts, *({**counts, name: count} for name, count in moves)])
    groups = {group.name: group for group in task.groups}
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(moves, then, strict=True):
        # Fewer channels that cost no less are not cut: some counts run slower than larger ones.
        if cost < now:
            group = groups[name]
            lost = task.keep_log(group, counts[name]) - task.keep_log(group, count)
            found = (lost / (now - cost), now - cost, count)
            best[name] = min(best.get(name, found), found)
    if not best:
        return None
    ranked = sorted(best.items(), key=lambda item: item[1])
    most = max(1, int(_AT_ONCE * len(ranked)))
    taken, left = {}, now
    for name, (_, saved, count) in ranked[:most]:
        taken[name] = count
        left -= saved
        if left <= target:
            break
    together = {**counts, **taken}
    if len(taken) > 1 and task.cost([together])[0] >= now:
        name, (_, _, count) = ranked[0]
        return {**counts, name: count}
    return together


def _list_moves(task: PruningProblem, name: str, count: int) -> list[int]:
    """Counts to try below one: a sixteenth of the group less, and further."""
    lower = task.limits.below(name, count)
    wanted = [count - task.limits.whole[name] * _MOVE_SHARE * wide for wide in _WIDER]
    moves = [next((one for one in lower if one <= goal), None) for goal in wanted]
    return sorted({one for one in (*moves, *lower[:1]) if one is not None}, reverse=True)


def _list_far(task: PruningProblem, name: str, count: int) -> list[int]:
    """Counts far below one, where none nearby saves anything."""
    lower = task.limits.below(name, count)
    return [lower[at] for at in range(0, len(lower), max(1, len(lower) // 6))] + list(lower[-1:])
