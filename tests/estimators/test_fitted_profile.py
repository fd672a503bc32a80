"""Asking a profile: what a person sees of an estimator."""

from dataclasses import replace

import pytest

from joulecast.errors import InputError, MissingError
from joulecast.estimators import ESTIMATORS, estimate_network, find_estimator, fit_profile
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import peak_memory
from joulecast.records import Device, Network, Profile
from joulecast.testing.estimators import SETUP, draw_networks, make_observations


@pytest.fixture(scope="module")
def profile():
    return Profile(Device("board"), "simulated", "device", "simulated", make_observations())


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_an_estimate_says_what_it_rests_on(profile, name):
    network = draw_networks(1)[0]
    answer = estimate_network(profile, network, SETUP, name)
    low, high = answer.interval_j
    assert 0 < low < answer.energy_j < high
    assert (answer.estimator, answer.device, answer.covers) == (name, "board", "device")
    assert answer.provenance == "simulated"
    assert answer.duration_s > 0
    assert answer.peak_memory_bytes == peak_memory(network, SETUP)
    assert len(answer.layers) == len(network.layers)


def test_a_higher_level_is_a_longer_interval(profile):
    network = draw_networks(1)[0]
    half, most = (estimate_network(profile, network, SETUP, level=p) for p in (0.5, 0.99))
    assert half.energy_j == most.energy_j
    assert most.interval_j[0] < half.interval_j[0] < half.interval_j[1] < most.interval_j[1]


def test_the_stored_fit_answers_until_more_was_seen(profile):
    method = find_estimator("subtractive")
    stored = method.fit(profile.observations)
    assert fit_profile(replace(profile, fits={"subtractive": stored}), method) is stored
    without = replace(profile, fits={"subtractive": stored}, observations=())
    assert fit_profile(without, method) is stored
    fewer = method.fit(profile.observations[:20])
    assert fit_profile(replace(profile, fits={"subtractive": fewer}), method) == stored


def test_what_cannot_be_asked(profile):
    network = draw_networks(1)[0]
    with pytest.raises(MissingError, match="joulecast profile"):
        estimate_network(replace(profile, observations=()), network, SETUP)
    with pytest.raises(InputError, match="subtractive"):
        estimate_network(profile, network, SETUP, "tea leaves")
    with pytest.raises(InputError, match=r"0\.95"):
        estimate_network(profile, network, SETUP, level=95.0)
    with pytest.raises(InputError, match="layers"):
        estimate_network(profile, Network(), SETUP)


def test_intervals_never_go_below_nothing():
    narrow, wide = lognormal_interval(10.0, 0.01, 0.95), lognormal_interval(10.0, 400.0, 0.95)
    assert narrow == pytest.approx((10 - 0.196, 10 + 0.196), rel=1e-3)
    assert 0 < wide[0] < narrow[0] < narrow[1] < wide[1]
    assert lognormal_interval(0.0, 4.0, 0.95) == pytest.approx((0.0, 3.92), rel=1e-3)


def test_a_profile_that_came_with_the_package_is_of_another_unit(profile):
    network = draw_networks(1)[0]
    own = estimate_network(profile, network, SETUP)
    other = estimate_network(replace(profile, shipped=True), network, SETUP)
    assert other.energy_j == own.energy_j
    assert other.interval_j[0] < own.interval_j[0] and other.interval_j[1] > own.interval_j[1]
    assert sum(other.uncertainty_sources.values()) == pytest.approx(sum(own.uncertainty_sources.values()), abs=0.02)
    assert any("unit" in words for words in other.uncertainty_sources)
