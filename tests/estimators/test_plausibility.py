"""Durations far from those of similar trials are implausible, unless a fit judges."""

from dataclasses import replace

import numpy as np

from joulecast.estimators.plausibility import FIT_Z, list_implausible, score_by_neighbours
from joulecast.kinds import make_layer
from joulecast.records import Observation, Setup
from joulecast.simulation import make_simulated_device
from joulecast.variants import Part, make_isolated_trial

DEVICE = make_simulated_device(3, noise=0.0)


def observe_linears(count=40, kind="linear"):
    """Return isolated linear layers of growing widths with their true durations."""
    found = []
    for place in range(count):
        width = 64 + 24 * place
        part = Part("hidden", (make_layer(kind, cin=width, cout=2 * width),))
        trial = make_isolated_trial(part, Setup(batch=64 + place), "graph")
        found.append(Observation(trial, duration_s=DEVICE.true_cost(trial).duration_s))
    return found


def test_slow_observation_stands_out_and_others_do_not():
    observations = observe_linears()
    assert not list_implausible(observations)
    slow = replace(observations[17], duration_s=4 * observations[17].duration_s)
    observations[17] = slow
    assert list_implausible(observations) == [slow]


def test_worst_comes_first():
    observations = observe_linears()
    for place, factor in ((5, 4.0), (30, 9.0)):
        one = observations[place]
        observations[place] = replace(one, duration_s=factor * one.duration_s)
    assert list_implausible(observations) == [observations[30], observations[5]]


def test_few_similar_trials_tell_nothing():
    observations = observe_linears(count=5)
    observations[2] = replace(observations[2], duration_s=100 * observations[2].duration_s)
    assert not score_by_neighbours(observations).any()


def test_trials_without_a_duration_tell_nothing():
    observations = [replace(one, duration_s=None) for one in observe_linears()]
    assert not score_by_neighbours(observations).any()


def test_fit_that_judges_is_asked():
    class Judge:
        def score_observations(self, observations):
            return np.array([0.0, 2 * FIT_Z, 3 * FIT_Z])

    observations = observe_linears(count=3)
    assert list_implausible(observations, Judge()) == [observations[2], observations[1]]
    assert list_implausible(observations, object()) == []
