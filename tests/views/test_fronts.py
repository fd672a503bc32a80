"""Pareto fronts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joulecast.views.fronts import find_front

NUMBERS = st.integers(0, 9)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)


@given(PAIRS)
def test_front_is_not_dominated(pairs):
    on = find_front(pairs)
    front = [pair for pair, best in zip(pairs, on, strict=True) if best]
    for pair, best in zip(pairs, on, strict=True):
        dominated = any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in front)
        assert best != dominated
    assert min(pairs) in front


@given(PAIRS, st.randoms())
def test_front_does_not_depend_on_the_order(pairs, random):
    marked = set(zip(pairs, find_front(pairs), strict=True))
    random.shuffle(pairs)
    assert marked == set(zip(pairs, find_front(pairs), strict=True))


def test_front_of_no_points_is_empty():
    assert find_front([]) == ()
