"""Lazy observations: parsed once, when they are read, and equal to the tuple of them."""

import copy
import pickle
from functools import partial

import pytest

from joulecast.records import (
    Device,
    LazyObservations,
    Network,
    Observation,
    Profile,
    Setup,
    Trial,
    summarise_observations,
)

SEEN = tuple(
    Observation(
        Trial(Network(name=f"net {number}"), Setup()),
        float(number),
        device=Device("board", unit="ab"),
        run=f"run {number % 2}",
        cost_s=0.5,
        taken_at_s=10.0 + number,
    )
    for number in range(1, 5)
)


def make_lazy(parsings):
    def parse():
        parsings.append(1)
        return SEEN

    return LazyObservations(len(SEEN), parse)


def test_length_is_known_without_parsing():
    parsings = []
    lazy = make_lazy(parsings)
    assert len(lazy) == 4 and lazy and "4" in repr(lazy)
    assert lazy == lazy
    assert lazy != SEEN[:2]
    assert parsings == []


def test_observations_are_parsed_once():
    parsings = []
    lazy = make_lazy(parsings)
    assert list(lazy) == list(lazy) == list(SEEN)
    assert lazy[1] is SEEN[1] and lazy[-1] is SEEN[-1] and lazy[1:3] == SEEN[1:3]
    assert SEEN[2] in lazy and lazy.index(SEEN[2]) == 2
    assert (*lazy, SEEN[0]) == (*SEEN, SEEN[0])
    assert parsings == [1]


def test_equality_and_hash_are_those_of_the_tuple():
    lazy, other = make_lazy([]), make_lazy([])
    assert lazy == SEEN and lazy == other
    assert Profile(Device(""), "", "", "", SEEN) == Profile(Device(""), "", "", "", lazy)
    assert hash(lazy) == hash(SEEN)
    assert lazy != (*SEEN[:3], SEEN[0]) and lazy != list(SEEN)
    eager = Profile(Device("board"), "", "", "measured", SEEN)
    assert Profile(Device("board"), "", "", "measured", lazy) == eager


def test_profile_of_lazy_observations_converts_to_json():
    lazy = Profile(Device("board"), "", "", "measured", make_lazy([]))
    eager = Profile(Device("board"), "", "", "measured", SEEN)
    assert lazy.to_dict() == eager.to_dict()
    assert Profile.from_dict(lazy.to_dict()).observations == SEEN


def test_copies_are_equal():
    lazy = LazyObservations(4, partial(tuple, SEEN))
    for other in (pickle.loads(pickle.dumps(lazy)), copy.deepcopy(lazy)):  # noqa: S301
        assert other == SEEN


def test_error_of_parsing_is_raised_when_they_are_read():
    def parse():
        raise ValueError("damaged")

    lazy = LazyObservations(3, parse)
    assert len(lazy) == 3
    for read in (list, hash, lambda one: one[0]):
        with pytest.raises(ValueError, match="damaged"):
            read(lazy)


def test_summary_says_what_was_observed():
    summary = summarise_observations(SEEN)
    assert summary.count == 4
    assert summary.units == {"ab": 4}
    assert summary.runs == {"run 1": 2, "run 0": 2}
    assert (summary.device_time_s, summary.latest_at_s) == (2.0, 14.0)
    # Idling has no setup.
    assert summary.setups == ()
    assert summarise_observations(()).latest_at_s == 0.0


def test_summary_that_came_with_observations_is_returned_without_parsing():
    known = summarise_observations(SEEN)
    parsings = []
    lazy = make_lazy(parsings)
    lazy.summary = known
    assert summarise_observations(lazy) is known
    assert parsings == []
    assert summarise_observations(make_lazy(parsings)) == known
    assert parsings == [1]
