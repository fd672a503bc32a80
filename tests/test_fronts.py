"""What beats what: one rule for every front."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joulecast.fronts import find_front

NUMBERS = st.integers(0, 9)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)


@given(PAIRS)
def test_a_front_is_what_nothing_beats(pairs):
    on = find_front(pairs)
    front = [pair for pair, best in zip(pairs, on, strict=True) if best]
    for pair, best in zip(pairs, on, strict=True):
        beaten = any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in front)
        assert best != beaten
    assert min(pairs) in front


@given(PAIRS, st.randoms())
def test_a_front_does_not_depend_on_the_order(pairs, random):
    marked = set(zip(pairs, find_front(pairs), strict=True))
    random.shuffle(pairs)
    assert marked == set(zip(pairs, find_front(pairs), strict=True))


def test_nothing_has_no_front():
    assert find_front([]) == ()
