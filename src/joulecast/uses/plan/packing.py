"""How much of a machine a task has while it runs there, so that tasks at once have at most one.

By their number every task has 1 / at_once. By memory it has its share of it. And where one is so
large that only small ones fit beside it, it has all and those have nothing, for any limit of small:

    share > 1 - small    1                two of these never fit, nor one with a middling one
    share >= small       1 / at_once      all of them middling: no more than at_once
    share < small        0

Sums of duration times such a share never exceed the time that a machine has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from joulecast.uses.plan.problem import Cost, Machine

_LIMITS = 4
_HALF = 0.5


def list_shares(machine: Machine, costs: Sequence[Cost]) -> list[list[float]]:
    """Ways of saying what tasks have of a machine: each a share a task."""
    ways = [[1.0 / machine.at_once] * len(costs)]
    if machine.at_once == 1 or not 0 < machine.memory_bytes < math.inf:
        return ways
    sizes = [machine.share_memory(cost) for cost in costs]
    ways += [sizes, *([_split(size, small, machine) for size in sizes] for small in _limit(sizes))]
    return ways


def _limit(sizes: Sequence[float]) -> list[float]:
    """Limits of small that tell tasks apart."""
    ordered = sorted({size for size in sizes if size <= _HALF})
    chosen = [ordered[len(ordered) * at // _LIMITS] for at in range(_LIMITS)] if ordered else []
    return sorted({*chosen, _HALF})


def _split(size: float, small: float, machine: Machine) -> float:
    if size > 1.0 - small:
        return 1.0
    return 1.0 / machine.at_once if size >= small else 0.0
