"""Order points of several labels so that every prefix of the order is a good design.

Greedily, the next point p of label l is the one with the largest

    w_l^⅓ · d(p) · (s_p / max s)^½

with w_l the share of the work that a label carries, s_p that of the point, and d(p) the distance to
the nearest point of the same label that was taken: a weighted greedy k-centre design. The first
point of a label is its most central one. It counts as if it were FIRST_DISTANCE away, and its label
as if it carried at least some work, so that even rare labels come early, but after a dozen
points of the label that carries most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

FIRST_DISTANCE = 15.0
_LEAST_FIRST_WEIGHT = 0.1
# Mean log distance from the pieces of other networks to the nearest of 500 / 1,000 / 2,000 trials,
# weighted by work, on 297 networks that chose nothing (seeds 31 to 33): 2.47 / 1.78 / 1.50. With
# powers ½ and 0, no weight for single points: 2.43 / 2.07 / 1.62. Twelve pairs were compared on
# seeds 7 and 8; those near this one differ by less than 0.1.
_LABEL_POWER = 1 / 3
_POINT_POWER = 0.5


@dataclass(frozen=True)
class DesignPoint:
    """A point of a design.

    Attributes:
        index: Which of the given points it is.
        rank: How many points of its label come before it.
    """

    index: int
    rank: int


def order_points(
    labels: Sequence[str], points: Sequence[tuple[float, ...]], shares: Sequence[float]
) -> tuple[DesignPoint, ...]:
    """Return all points in the order of the design.

    Args:
        labels: Label of each point.
        points: Coordinates of each point, on scales that are comparable.
        shares: Share of the work that each point carries.
    """
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(label, []).append(index)
    weights = {
        label: sum(shares[index] for index in own) ** _LABEL_POWER for label, own in groups.items()
    }
    least = _LEAST_FIRST_WEIGHT * max(weights.values(), default=0.0)
    sequences = []
    for label in sorted(groups):
        own = np.array(groups[label])
        x = np.array([points[index] for index in own])
        order, gains = _order_label(x, np.array([shares[index] for index in own]))
        gains *= weights[label]
        gains[0] = FIRST_DISTANCE * max(weights[label], least)
        sequences.append(_LabelSequence(own[order], gains))
    return tuple(_merge(sequences))


@dataclass(frozen=True)
class _LabelSequence:
    """The points of one label in their order.

    Attributes:
        indices: Which of the given points they are.
        gains: What each was worth when it was taken.
    """

    indices: npt.NDArray[np.int_]
    gains: Floats


def _order_label(x: Floats, weights: Floats) -> tuple[npt.NDArray[np.int_], Floats]:
    """Return the order of one label's points, and what each was worth when it was taken."""
    mass = (weights / max(float(weights.max()), 1e-300)) ** _POINT_POWER
    centre = np.average(x, axis=0, weights=np.maximum(weights, 1e-300))
    order = np.empty(len(x), dtype=int)
    gains = np.empty(len(x))
    distance = np.full(len(x), np.inf)
    is_taken = np.zeros(len(x), dtype=bool)
    taken = int(np.argmin(((x - centre) ** 2).sum(axis=1)))
    gain = 0.0  # the caller knows what a first point is worth
    for rank in range(len(x)):
        order[rank], gains[rank] = taken, gain
        distance = np.minimum(distance, np.sqrt(((x - x[taken]) ** 2).sum(axis=1)))
        is_taken[taken] = True
        score = np.where(is_taken, -1.0, distance * mass)
        taken = int(np.argmax(score))
        gain = float(score[taken])
    return order, gains


def _merge(sequences: Sequence[_LabelSequence]) -> list[DesignPoint]:
    """Return the points of all labels, the most valuable first; each label keeps its order."""
    heap = [(-float(one.gains[0]), at, 0) for at, one in enumerate(sequences)]
    heapq.heapify(heap)
    found = []
    while heap:
        _, at, rank = heapq.heappop(heap)
        one = sequences[at]
        found.append(DesignPoint(int(one.indices[rank]), rank))
        if rank + 1 < len(one.indices):
            heapq.heappush(heap, (-float(one.gains[rank + 1]), at, rank + 1))
    return found
