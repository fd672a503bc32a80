"""Many questions at once: each answer is the single one, and errors go together."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.estimators import estimate_network, find_estimator, open_profile
from joulecast.estimators.additive.encode import UNIT_SPREAD
from joulecast.records import OWN_NET, Device, Network, Observation, Profile, Setup, Trial
from joulecast.testing.estimators import draw_networks, make_observations

SETUPS = (Setup(batch=10), Setup(batch=20), Setup(batch=10, optimizer="adamw"))
NETS = draw_networks(4, seed=5)
PAIRS = [(net, setup) for net in NETS for setup in SETUPS]


@pytest.fixture(scope="module")
def profile() -> Profile:
    seen = make_observations()
    fits = {name: find_estimator(name).fit(seen) for name in ("additive", "flops")}
    return Profile(Device("test"), "sim", "device", "simulated", seen, fits)


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_asking_together_is_asking_alone(profile, name):
    together = open_profile(profile, name).ask(PAIRS)
    for (network, setup), one in zip(PAIRS, together.each, strict=True):
        alone = estimate_network(profile, network, setup, name)
        assert one.energy_j == pytest.approx(alone.energy_j)
        assert one.interval_j == pytest.approx(alone.interval_j)
        assert one.duration_s == pytest.approx(alone.duration_s)
        assert (one.duration_interval_s is None) == (name == "flops")
        if one.duration_interval_s:
            assert one.duration_interval_s[0] < one.duration_s < one.duration_interval_s[1]
        assert [layer.name for layer in one.layers] == [layer.name for layer in alone.layers]
        assert one.unseen_share == pytest.approx(alone.unseen_share)
        assert one.provenance == alone.provenance == "simulated"


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_the_joint_covariance_has_the_variances(profile, name):
    found = open_profile(profile, name).ask(PAIRS, joint=True)
    assert found.cov is not None
    assert np.diag(found.cov) == pytest.approx(found.variance, rel=1e-6)
    assert np.linalg.eigvalsh(found.cov).min() > -1e-9 * found.variance.max()


def test_details_can_be_left_out(profile):
    whole, brief = (open_profile(profile).ask(PAIRS, details=wanted) for wanted in (True, False))
    for one, other in zip(whole.each, brief.each, strict=True):
        assert one.layers and one.peak_memory_bytes > 0
        assert replace(one, layers=(), peak_memory_bytes=0) == other


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_means_can_be_had_alone(profile, name):
    opened = open_profile(profile, name)
    assert opened.ask_means(PAIRS) == pytest.approx(opened.ask(PAIRS).energy_j, rel=1e-12)


def test_means_of_nothing_are_refused(profile):
    with pytest.raises(InputError, match="layers"):
        open_profile(profile).ask_means([(Network(()), SETUPS[0])])


def test_means_know_runs_that_were_seen(profile):
    """A net that somebody ran renews its own estimate, asked in either way."""
    opened = open_profile(profile)
    said = opened.ask([(NETS[0], SETUPS[0])]).each[0]
    own = Observation(
        Trial(NETS[0], SETUPS[0]),
        energy_j=1.5 * said.energy_j,
        energy_sd_j=0.0,
        duration_s=said.duration_s,
        duration_sd_s=0.0,
        count=3,
        provenance="simulated",
        source=OWN_NET,
    )
    renewed = open_profile(replace(profile, observations=(*profile.observations, own), fits={}))
    pairs = [(net, SETUPS[0]) for net in NETS]
    means = renewed.ask_means(pairs)
    assert means == pytest.approx(renewed.ask(pairs).energy_j, rel=1e-12)
    assert means[0] > 1.2 * opened.ask_means(pairs)[0]


def test_a_chance_agrees_with_the_interval(profile):
    found = open_profile(profile).ask(PAIRS, level=0.8)
    for side, chance in ((0, 0.1), (1, 0.9)):
        ends = [one.interval_j[side] for one in found.each]
        assert found.chance_within(ends) == pytest.approx([chance] * len(ends), abs=1e-6)
    assert found.chance_within(found.energy_j) == pytest.approx([0.5] * len(PAIRS))


def test_a_net_costs_what_it_costs_itself(profile):
    """Against itself nothing is in doubt: the chance is none, or whole."""
    net = (NETS[0], SETUPS[0])
    found = open_profile(profile).ask([net, net, PAIRS[4]], joint=True)
    less, more = found.chance_ratio_within(0, [1, 1], [0.99, 1.01])
    assert less < 1e-6 and more > 1 - 1e-6
    back, forth = found.chance_ratio_within(0, [2], [1.0]), found.chance_ratio_within(2, [0], [1.0])
    assert back[0] + forth[0] == pytest.approx(1.0)


def test_draws_have_the_medians_and_the_spread(profile):
    found = open_profile(profile).ask(PAIRS[:3], level=0.9, joint=True)
    drawn = found.draw(20_000, seed=1)
    assert np.median(drawn, axis=0) == pytest.approx(found.energy_j, rel=0.02)
    for column, one in zip(drawn.T, found.each, strict=True):
        inside = (column > one.interval_j[0]) & (column < one.interval_j[1])
        assert inside.mean() == pytest.approx(0.9, abs=0.015)
    assert np.array_equal(drawn, found.draw(20_000, seed=1))


def test_all_chances_come_from_one_covariance(profile):
    """Alone, as a ratio and as draws: the same variances of logarithms, however large they are."""
    narrow = open_profile(profile).ask(PAIRS[:4], joint=True)
    grown = 1.0 / narrow.vary().max()
    found = replace(narrow, variance=grown * narrow.variance, cov=grown * narrow.cov)
    assert np.diag(found.log_cov) == pytest.approx(found.vary(), rel=1e-6)
    logs = np.log(found.draw(40_000, seed=2))
    assert np.cov(logs.T) == pytest.approx(found.log_cov, rel=0.03, abs=0.01)
    ratios = (logs[:, 1:] - logs[:, :1]).var(axis=0)
    assert found.vary_ratios(0, [1, 2, 3]) == pytest.approx(ratios, rel=0.03)
    limits = [0.8 * found.energy_j[0] / found.energy_j[3]]
    assert found.chance_below(3, found, 0, limits[0]) == found.chance_ratio_within(0, [3], limits)


def test_a_stranger_shares_no_error(profile):
    mine, theirs = (open_profile(profile).ask(PAIRS[:2], joint=True) for _ in range(2))
    ratio = 1.02 * mine.energy_j[0] / mine.energy_j[1]
    room = np.log(1.02) / np.sqrt(mine.vary()[:2].sum())
    assert mine.chance_below(0, theirs, 1, ratio) == pytest.approx(NormalDist().cdf(room))
    assert mine.chance_below(0, mine, 1, ratio) > mine.chance_below(0, theirs, 1, ratio) > 0.5


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_the_same_question_has_the_same_answer_to_the_last_digit(profile, name):
    pairs = [*PAIRS, *PAIRS[:3], PAIRS[0]]
    found = open_profile(profile, name).ask(pairs, joint=True)
    assert found.same == (*range(len(PAIRS)), 0, 1, 2, 0)
    drawn = found.draw(50)
    for at, first in enumerate(found.same):
        assert found.each[at] == found.each[first]
        assert np.array_equal(drawn[:, at], drawn[:, first])
        assert found.vary_ratios(first, [at])[0] == 0.0
    renamed = replace(NETS[0], layers=tuple(replace(one, name="x") for one in NETS[0].layers))
    names = open_profile(profile, name).ask([PAIRS[0], (renamed, PAIRS[0][1])]).each[1].layers
    assert {layer.name for layer in names} == {"x"}


def test_another_unit_widens_joules_and_not_ratios(profile):
    own = open_profile(profile).ask(PAIRS[:2], joint=True)
    shipped = open_profile(replace(profile, shipped=True)).ask(PAIRS[:2], joint=True)
    extra = shipped.variance - own.variance
    assert extra == pytest.approx(UNIT_SPREAD**2 * (own.energy_j**2 + own.variance))
    ratios = [one.chance_ratio_within(0, [1], [1.5])[0] for one in (own, shipped)]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-9)
    limit = 1.1 * own.energy_j
    assert (shipped.chance_within(limit) < own.chance_within(limit)).all()


def test_what_cannot_be_answered_says_so(profile):
    opened = open_profile(profile)
    with pytest.raises(InputError, match="level is 1"):
        opened.ask(PAIRS, level=1.0)
    with pytest.raises(InputError, match="empty network"):
        opened.ask([(Network(), Setup())])
    alone = opened.ask(PAIRS[:2])
    for ask in (lambda: alone.draw(3), lambda: alone.chance_ratio_within(0, [1], [1.0])):
        with pytest.raises(InputError, match="joint=True"):
            ask()
