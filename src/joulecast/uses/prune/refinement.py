"""Grow channel counts after a strategy has chosen them.

Large moves end somewhat below the budget, and some counts run slower than slightly larger ones (in
half precision, multiples of 8 are often cheaper). So larger counts are tried until none improves:
one that costs no more is always taken, since pruning must never raise energy; one that costs more
is taken while the budget allows it, highest value per cost first.
"""

from __future__ import annotations

from joulecast.uses.prune.pruning_problem import Counts, PruningProblem, compute_log_importance

Move = tuple[str, int]
_MAX_ROUNDS = 24
_OFFSETS = (1, 2, 4, 8, 16, 32)
_CHANNEL_MULTIPLE = 8
# Cost differences below this share of the limit count as zero when values per cost are compared.
_MIN_COST_SHARE = 1e-6


def refine_counts(problem: PruningProblem, counts: Counts, spend: bool) -> Counts:
    """Return counts that are nowhere smaller.

    Args:
        problem: Groups, objective and budget.
        counts: Counts that a strategy has chosen.
        spend: Whether to also take larger counts that cost more, up to the budget.
    """
    rejected: set[Move] = set()
    target = problem.compute_cost_target(counts)
    for _ in range(_MAX_ROUNDS):
        moves = _list_moves(problem, counts, target * spend, rejected)
        while moves:
            grown = {**counts, **dict(moves)}
            highest = max(target, problem.compute_cost(counts))
            if problem.compute_cost(grown) <= highest and problem.is_within_budget(grown):
                break
            if len(moves) == 1:
                rejected.update(moves)
            moves = moves[: len(moves) // 2]
        if not moves and not (rejected and _list_moves(problem, counts, target * spend, rejected)):
            break
        if moves:
            # The uncertainty depends slightly on the network, so the target moves with it.
            counts, target = grown, problem.compute_cost_target(grown)
    return counts


def _list_moves(
    problem: PruningProblem, counts: Counts, target: float, rejected: set[Move]
) -> list[Move]:
    """Return at most one larger count per group, best first, as many as the target allows."""
    wider = [
        (name, count) for name in counts for count in _list_larger(problem, name, counts[name])
    ]
    candidates = [{**counts, name: count} for name, count in wider]
    now, *costs = problem.compute_costs([counts, *candidates])
    groups = {group.name: group for group in problem.groups}
    smallest = _MIN_COST_SHARE * problem.cost_limit
    best: dict[str, tuple[float, float, int]] = {}
    for (name, count), cost in zip(wider, costs, strict=True):
        if cost > max(now, target) or (name, count) in rejected:
            continue
        gain = compute_log_importance(groups[name], count)
        gain -= compute_log_importance(groups[name], counts[name])
        value = gain / max(cost - now, smallest)
        best[name] = max(best.get(name, (0.0, 0.0, 0)), (value, cost - now, count))
    moves, left = [], target - now
    for name, (_, extra, count) in sorted(best.items(), key=lambda item: item[1], reverse=True):
        if extra <= max(left, 0.0):
            moves.append((name, count))
            left -= extra
    return moves


def _list_larger(problem: PruningProblem, name: str, count: int) -> list[int]:
    """Return larger counts to try: nearby ones, the next multiple of eight, and the full count."""
    larger = problem.limits.list_above(name, count)
    near = [larger[at - 1] for at in _OFFSETS if at <= len(larger)]
    multiple = -(-(count + 1) // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE
    return sorted({*near, *larger[-1:], *(one for one in larger if one == multiple)})
