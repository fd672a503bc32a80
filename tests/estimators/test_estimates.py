"""Test the joint distribution of several estimates: probabilities, ratios and draws."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.estimators import find_estimator, fit_profile
from joulecast.records import Device, Profile, Setup
from joulecast.testing.estimators import draw_networks, make_observations

SETUPS = (Setup(batch=10), Setup(batch=20), Setup(batch=10, optimizer="adamw"))
NETS = draw_networks(4, seed=5)
NETWORKS = [network for network in NETS for _ in SETUPS]
NETWORK_SETUPS = [setup for _ in NETS for setup in SETUPS]


@pytest.fixture(scope="module")
def profile():
    seen = make_observations()
    fits = {name: find_estimator(name).fit(seen).to_dict() for name in ("additive", "flops")}
    return Profile(Device("test"), "sim", "device", "simulated", seen, fits)


def estimate(profile, count=12, name="additive", **options):
    return fit_profile(profile, name).estimate(NETWORKS[:count], NETWORK_SETUPS[:count], **options)


def test_estimates_are_a_sequence(profile):
    found = estimate(profile, 3)
    assert len(found) == 3
    assert list(found) == [found[0], found[1], found[2]] == list(found[:3])
    assert found.select([2, 0, 2]).first_occurrence == (0, 1, 0)


def test_probability_agrees_with_the_interval(profile):
    found = estimate(profile, level=0.8)
    for side, probability in ((0, 0.1), (1, 0.9)):
        ends = [one.interval_j[side] for one in found]
        assert found.probability_within(ends) == pytest.approx([probability] * len(ends), abs=1e-6)
    assert found.probability_within(found.energy_j) == pytest.approx([0.5] * len(found))


def test_network_has_no_uncertainty_relative_to_itself(profile):
    networks, setups = [NETS[0], NETS[0], NETWORKS[4]], [SETUPS[0], SETUPS[0], NETWORK_SETUPS[4]]
    found = fit_profile(profile).estimate(networks, setups, joint=True)
    less, more = found.probability_ratio_within(0, [1, 1], [0.99, 1.01])
    assert less < 1e-6 and more > 1 - 1e-6
    one = found.probability_ratio_within(0, [2], [1.0])
    other = found.probability_ratio_within(2, [0], [1.0])
    assert one[0] + other[0] == pytest.approx(1.0)


def test_draws_have_the_medians_and_the_intervals(profile):
    found = estimate(profile, 3, level=0.9, joint=True)
    drawn = found.draw(20_000, seed=1)
    assert np.median(drawn, axis=0) == pytest.approx(found.energy_j, rel=0.02)
    for column, one in zip(drawn.T, found, strict=True):
        inside = (column > one.interval_j[0]) & (column < one.interval_j[1])
        assert inside.mean() == pytest.approx(0.9, abs=0.015)
    assert np.array_equal(drawn, found.draw(20_000, seed=1))


def test_all_probabilities_follow_from_one_covariance(profile):
    """Single energies, ratios and draws have the same log variances, however large they are."""
    narrow = estimate(profile, 4, joint=True)
    factor = 1.0 / narrow.log_variance.max()
    found = replace(narrow, variance=factor * narrow.variance, cov=factor * narrow.cov)
    assert np.diag(found.log_covariance) == pytest.approx(found.log_variance, rel=1e-6)
    logs = np.log(found.draw(40_000, seed=2))
    assert np.cov(logs.T) == pytest.approx(found.log_covariance, rel=0.03, abs=0.01)
    ratios = (logs[:, 1:] - logs[:, :1]).var(axis=0)
    assert found.log_ratio_variance(0, [1, 2, 3]) == pytest.approx(ratios, rel=0.03)
    ratio = 0.8 * found.energy_j[0] / found.energy_j[3]
    expected = found.probability_ratio_within(0, [3], [ratio])
    assert found.probability_less(3, found, 0, ratio) == expected


def test_estimates_of_another_device_share_no_error(profile):
    own, others = (estimate(profile, 2, joint=True) for _ in range(2))
    ratio = 1.02 * own.energy_j[0] / own.energy_j[1]
    margin = np.log(1.02) / np.sqrt(own.log_variance[:2].sum())
    expected = NormalDist().cdf(margin)
    assert own.probability_less(0, others, 1, ratio) == pytest.approx(expected)
    assert own.probability_less(0, own, 1, ratio) > expected > 0.5


def test_ratios_and_draws_need_the_joint_covariance(profile):
    found = estimate(profile, 2)
    for need in (lambda: found.draw(3), lambda: found.probability_ratio_within(0, [1], [1.0])):
        with pytest.raises(InputError, match="joint=True"):
            need()
