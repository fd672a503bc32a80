"""Find Pareto fronts of pairs in which smaller is better.

A pair dominates another if it is at most as large in both numbers and smaller in one.
"""

from __future__ import annotations

from collections.abc import Sequence


def find_front(points: Sequence[tuple[float, float]]) -> tuple[bool, ...]:
    """Return which points no other point dominates; equal points are both on the front."""
    front: set[tuple[float, float]] = set()
    smallest: float | None = None
    # Sorted, every point comes after all that dominate it, so the smallest so far decides.
    for point in sorted(set(points)):
        if smallest is None or point[1] < smallest:
            front.add(point)
            smallest = point[1]
    return tuple(point in front for point in points)
