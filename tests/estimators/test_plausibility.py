"""Durations far from those of similar trials are implausible, unless a fit judges."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.plausibility import (
    FIT_Z,
    agree,
    drop_contradicted,
    list_implausible,
    score_by_neighbours,
)
from joulecast.families import make_family
from joulecast.operators import make_layer
from joulecast.records import OWN_NET, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.variants import Block, make_isolated_trial

DEVICE = make_simulated_device(3, noise=0.0)


def observe_linears(count=40, kind="linear"):
    """Return isolated linear layers of growing widths with their true durations."""
    found = []
    for place in range(count):
        width = 64 + 24 * place
        block = Block("hidden", (make_layer(kind, cin=width, cout=2 * width),))
        trial = make_isolated_trial(block, Setup(batch=64 + place), "graph")
        found.append(Observation(trial, duration_s=DEVICE.true_cost(trial).duration_s))
    return found


def test_slow_observations_stand_out_and_the_worst_comes_first():
    observations = observe_linears()
    assert not list_implausible(observations)
    for place, factor in ((5, 4.0), (30, 9.0)):
        one = observations[place]
        observations[place] = replace(one, duration_s=factor * one.duration_s)
    assert list_implausible(observations) == [observations[30], observations[5]]


def test_few_similar_trials_tell_nothing():
    observations = observe_linears(count=5)
    observations[2] = replace(observations[2], duration_s=100 * observations[2].duration_s)
    assert not score_by_neighbours(observations).any()
    untimed = [replace(one, duration_s=None) for one in observe_linears()]
    assert not score_by_neighbours(untimed).any()


def test_fit_that_judges_is_asked():
    class Judge:
        def score_observations(self, observations):
            return np.array([0.0, 2 * FIT_Z, 3 * FIT_Z])

    observations = observe_linears(count=3)
    assert list_implausible(observations, Judge()) == [observations[2], observations[1]]
    assert list_implausible(observations, object()) == []


TRIAL = Trial(make_family("lenet5:4,6,24,16"), Setup(batch=10))
OTHER = Trial(make_family("lenet5:4,6,24,17"), Setup(batch=10))


def observe(duration_s, energy_j=None, trial=TRIAL, **facts):
    return Observation(trial, energy_j=energy_j, duration_s=duration_s, **facts)


@pytest.mark.parametrize(
    ("durations_s", "believed"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.2], [1.0, 1.2]),
        ([4.0, 1.0, 1.1], [1.0, 1.1]),
        ([1.0, 1.1, 4.0], [1.0, 1.1]),
        ([4.0, 1.0], [1.0]),
        ([1.0, 4.0], [4.0]),
        ([4.0, 1.0, 9.0], [9.0]),
        ([4.0, 4.1, 1.0, 1.1], [1.0, 1.1]),
    ],
)
def test_majority_is_believed_then_the_latest(durations_s, believed):
    found = drop_contradicted([observe(duration_s) for duration_s in durations_s])
    assert [one.duration_s for one in found] == believed


def test_energies_are_compared_too():
    found = drop_contradicted([observe(1.0, 5.0), observe(1.0, 50.0), observe(1.1, 5.1)])
    assert [one.energy_j for one in found] == [5.0, 5.1]
    assert agree(observe(1.0), observe(1.0, 50.0))
    assert not agree(observe(1.0, 5.0), observe(1.0, 50.0))


def test_other_trials_sources_and_imported_runs_are_kept():
    kept = [
        observe(1.0),
        observe(9.0, trial=OTHER),
        observe(9.0, trial=replace(TRIAL, setup=Setup(batch=11))),
        observe(9.0, source=OWN_NET),
        observe(9.0, provenance="imported"),
        Observation(Trial(Network(), Setup()), energy_j=1.0, duration_s=1.0),
    ]
    assert drop_contradicted(kept) == tuple(kept)


def test_order_is_kept_and_refused_trials_are_left_out():
    refused = Observation(OTHER, refusal="it does not fit")
    kept = [observe(1.0, trial=OTHER), observe(2.0), observe(2.1)]
    assert drop_contradicted([refused, *kept]) == tuple(kept)
