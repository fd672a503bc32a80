"""What is left over is given back, and no count stays that costs more than a larger one.

Cutting in wide moves ends somewhat below the budget, and some counts of channels run slower than
slightly larger ones (in half precision, multiples of 8 are often cheaper). So larger counts are
looked at until none is worth it: one that costs no more is always taken, since pruning must never
raise energy; one that costs more is taken as long as the budget is kept, best value first.
"""

from __future__ import annotations

from joulecast.uses.prune.pruning_problem import Counts, PruningProblem

Move = tuple[str, int]
_MOST_ROUNDS = 24
_FURTHER = (1, 2, 4, 8, 16, 32)
_NEAR_MULTIPLE = 8
# Joules that count as none when gains are compared, as a share of the limit.
_NOTHING = 1e-6


def refine_counts(task: PruningProblem, counts: Counts, spend: bool) -> Counts:
    """Counts that are nowhere smaller; with ``spend``, what the budget leaves is used up."""
    refused: set[Move] = set()
    target = task.target(counts)
    for _ in range(_MOST_ROUNDS):
        moves = _list_moves(task, counts, target * spend, refused)
        while moves:
            grown = {**counts, **dict(moves)}
            if task.cost([grown])[0] <= max(target, task.cost([counts])[0]) and task.keeps(grown):
                break
            if len(moves) == 1:
                refused.update(moves)
            moves = moves[: len(moves) // 2]
        if not moves and not (refused and _list_moves(task, counts, target * spend, refused)):
            break
        if moves:
            # How sure a net is depends a little on which one it is.
            counts, target = grown, task.target(grown)
    return counts


def _list_moves(task: PruningProblem, counts: Counts, target: float, refused: set[Move]) -> list[Move]:
    """Larger counts, one a group, best value first, as many as the target leaves room for."""
    wider = [(name, count) for name in counts for count in _list_larger(task, name, counts[name])]
    now, *then = task.cost([counts, *({**counts, name: count} for name, count in wider)])
    groups = {group.name: group for group in task.groups}
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(wider, then, strict=True):
        if cost > max(now, target) or (name, count) in refused:
            continue
        gain = task.keep_log(groups[name], count) - task.keep_log(groups[name], counts[name])
        value = gain / max(cost - now, _NOTHING * task.limit())
        best[name] = max(best.get(name, (0.0, 0.0, 0)), (value, cost - now, count))
    moves, left = [], target - now
    for name, (_, more, count) in sorted(best.items(), key=lambda item: item[1], reverse=True):
        if more <= max(left, 0.0):
            moves.append((name, count))
            left -= more
    return moves


def _list_larger(task: PruningProblem, name: str, count: int) -> list[int]:
    """Counts to try above one: near ones, the next multiple of eight, and all."""
    larger = task.limits.above(name, count)
    near = [larger[at - 1] for at in _FURTHER if at <= len(larger)]
    round_up = -(-(count + 1) // _NEAR_MULTIPLE) * _NEAR_MULTIPLE
    return sorted({*near, *larger[-1:], *(one for one in larger if one == round_up)})
