"""What is left over is given back, and no count stays that costs more than a larger one.

Cutting in wide moves ends somewhat below the budget, and some counts of channels run slower than
slightly larger ones (in half precision, multiples of 8 are often cheaper). So larger counts are
looked at until none is worth it: one that costs no more is always taken, since pruning must never
raise energy; one that costs more is taken as long as the budget is kept, best value first.
"""

from __future__ import annotations

from joulecast.uses.prune.task import Counts, Task

_MOST_ROUNDS = 40
_FURTHER = (1, 2, 4, 8, 16, 32, 64, 128)
_NEAR_MULTIPLE = 8
# Less than this share of the limit is not worth another round.
_SMALL_CHANGE = 0.0005


def finish(task: Task, counts: Counts, spend: bool) -> Counts:
    """Counts that are nowhere smaller; with ``spend``, what the budget leaves is used up."""
    target = task.target(counts)
    for _ in range(_MOST_ROUNDS):
        grown = _grow(task, counts, target if spend else 0.0)
        if grown is None:
            return counts
        if not task.keeps(grown):
            # How sure it is changed on the way: aim a little lower.
            target = min(task.target(grown), 0.999 * target)
            if task.cost([counts])[0] > target:
                return counts
            continue
        counts = grown
    return counts


def _grow(task: Task, counts: Counts, target: float) -> Counts | None:
    """The best larger count of one group: a free one, else the most importance for its cost."""
    moves = [(name, count) for name in counts for count in _list_larger(task, name, counts[name])]
    now, *then = task.cost([counts, *({**counts, name: count} for name, count in moves)])
    groups = {group.name: group for group in task.groups}
    limit = task.limit()
    best: tuple[float, Counts] | None = None
    for (name, count), cost in zip(moves, then, strict=True):
        gain = task.keep_log(groups[name], count) - task.keep_log(groups[name], counts[name])
        if cost > max(now, target):
            continue
        value = gain / max(cost - now, _SMALL_CHANGE * limit * 1e-3)
        if best is None or value > best[0]:
            best = value, {**counts, name: count}
    return best[1] if best else None


def _list_larger(task: Task, name: str, count: int) -> list[int]:
    """Counts to try above one: near ones, the next multiple of eight, and all."""
    larger = task.limits.above(name, count)
    near = [larger[at - 1] for at in _FURTHER if at <= len(larger)]
    round_up = -(-(count + 1) // _NEAR_MULTIPLE) * _NEAR_MULTIPLE
    return sorted({*near, *larger[-1:], *(one for one in larger if one == round_up)})
