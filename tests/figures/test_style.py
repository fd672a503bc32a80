"""Estimators have fixed colours, and no colour is used twice."""

from hypothesis import given
from hypothesis import strategies as st

from joulecast.views.style import COLOURS, SPARE_COLOURS, choose_colours, choose_markers


@given(st.lists(st.sampled_from([*COLOURS, "guided", "random", "other"]), unique=True))
def test_estimator_has_the_same_colour_in_every_plot(names):
    colours = choose_colours(names)
    assert {name: colours[name] for name in names if name in COLOURS} == {
        name: COLOURS[name] for name in names if name in COLOURS
    }
    assert len(set(colours.values())) == len(names)
    assert list(choose_markers(names)) == names


def test_no_colour_is_defined_twice():
    colours = [*COLOURS.values(), *SPARE_COLOURS]
    assert len(set(colours)) == len(colours)
