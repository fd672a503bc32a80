"""Fronts: what no other one beats. The only place that says what beating is.

one beats another: no more in both things that less is better of, and less in one of them
"""

from __future__ import annotations

from collections.abc import Sequence


def find_front(points: Sequence[tuple[float, float]]) -> tuple[bool, ...]:
    """Which of some pairs are on the front; less is better in both, and equal pairs stand by."""
    front: set[tuple[float, float]] = set()
    least: float | None = None
    # Whoever beats a pair stands before it in this order, so that the least so far is enough.
    for pair in sorted(set(points)):
        if least is None or pair[1] < least:
            front.add(pair)
            least = pair[1]
    return tuple(point in front for point in points)
