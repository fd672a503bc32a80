"""Test the paper's method: subtract, fit, add up, and report what was never measured."""

import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.curves import read_point
from joulecast.estimators.subtractive.estimator import (
    BlockSubtractiveEstimator,
    PaperEstimator,
    SubtractiveEstimator,
    _fit_process,
)
from joulecast.families import draw_family, make_family
from joulecast.records import Execution, Observation, Setup, StepTotals, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import (
    FAMILY,
    SETUP,
    EstimatorContract,
    draw_networks,
    make_observations,
    observe,
    run_short_campaign,
)
from joulecast.variants import block_widths, curve_key, read_variant
from joulecast.variants.curves import plan_curves

TARGET = Target(make_family(FAMILY), SETUP)


class TestSubtractive(EstimatorContract):
    estimator = SubtractiveEstimator

    def make_estimator(self):
        # Every fit of the contract is made anew.
        _fit_process.cache_clear()
        return self.estimator()


class TestBlockSubtractive(TestSubtractive):
    estimator = BlockSubtractiveEstimator


class TestPaper(TestSubtractive):
    estimator = PaperEstimator


def test_blocks_need_fewer_measurements_and_err_less():
    """Of ten curves of layers, six are left: what a block does inside is not subtracted."""
    setup, device = Setup(batch=64), make_simulated_device(11, noise=0.0)
    target = Target(make_family("transformer:width=64,depth=3"), setup)
    rng = random.Random(2)
    networks = [draw_family("transformer", lambda low, high: rng.randint(low, min(high, 16)))]
    networks += [make_family(f"transformer:width={width},depth=2") for width in (12, 28, 48, 60)]
    truth = np.array([device.true_cost(Trial(network, setup)).energy_j for network in networks])
    errors = {}
    for estimator in (SubtractiveEstimator(), BlockSubtractiveEstimator()):
        seen = run_short_campaign(estimator, target, 20, device)
        fitted = estimator.fit(seen)
        found = fitted.predict(networks, [setup] * len(networks), per_layer=True)
        assert [len(rows) for rows in found.layers] == [len(one.layers) for one in networks]
        errors[estimator.name] = float(np.mean(np.abs(found.energy_j / truth - 1)))
    assert errors["subtractive-blocks"] < 0.1
    assert errors["subtractive-blocks"] < errors["subtractive"]


def test_additive_costs_are_recovered(additive, additive_device):
    networks = draw_networks(10)
    estimator = SubtractiveEstimator()
    found = estimator.fit(additive).predict(networks, [SETUP] * len(networks))
    truth = [additive_device.energy_j(network) for network in networks]
    assert found.energy_j == pytest.approx(truth, rel=0.02)
    assert found.duration_s == pytest.approx(found.energy_j / 10, rel=0.02)
    assert found.unseen_share == (0.0,) * 10


def test_intervals_cover_networks_on_a_simulated_device():
    estimator, device = SubtractiveEstimator(), make_simulated_device(11, noise=0.0)
    networks = draw_networks(30, seed=5)
    found = estimator.fit(make_observations()).predict(networks, [SETUP] * len(networks))
    truth = np.array([device.true_cost(Trial(network, SETUP)).energy_j for network in networks])
    inside = np.abs(found.energy_j - truth) < 1.96 * found.energy_sd_j
    assert np.mean(np.abs(found.energy_j / truth - 1)) < 0.1
    assert inside.mean() > 0.85


def test_setups_are_fitted_separately():
    device = make_simulated_device(11)
    target = replace(TARGET, setup=Setup(batch=64))
    other = run_short_campaign(SubtractiveEstimator(), target, 20, device)
    estimator, networks = SubtractiveEstimator(), draw_networks(3)
    alone = estimator.fit(make_observations()).predict(networks, [SETUP] * len(networks))
    both = estimator.fit([*make_observations(), *other]).predict(networks, [SETUP] * len(networks))
    assert both.energy_j == pytest.approx(alone.energy_j)


def make_foreign_observations():
    """Yield variants' networks whose energy is not that of their layers, for various reasons."""
    seen = make_observations()[0]
    wrong = replace(seen, energy_j=50 * seen.energy_j, duration_s=50 * seen.duration_s)
    network, setup = wrong.trial.network, wrong.trial.setup
    unattributed = StepTotals(1.0, 1.0, 1, unattributed_flops_share=0.02)
    moved = replace(unattributed, unattributed_flops_share=0.0, unattributed_bytes_share=0.02)
    yield replace(wrong, source="own net")
    for other in (replace(network, totals=unattributed), replace(network, totals=moved)):
        yield replace(wrong, trial=replace(wrong.trial, network=other))
    yield replace(wrong, trial=replace(wrong.trial, network=replace(network, buildable=False)))
    yield replace(wrong, trial=replace(wrong.trial, setup=replace(setup, loss="own")))


def test_networks_that_joulecast_did_not_build_are_not_used():
    estimator, networks, known = SubtractiveEstimator(), draw_networks(3), make_observations()
    before = estimator.fit(known).predict(networks, [SETUP] * len(networks))
    for foreign in make_foreign_observations():
        after = estimator.fit([*known, foreign]).predict(networks, [SETUP] * len(networks))
        assert not estimator.uses(foreign)
        assert (after.energy_j == before.energy_j).all()
        # Nor does it replace a point that has to be measured.
        assert estimator.propose(TARGET, [foreign]) == estimator.propose(TARGET, [])


def test_bounds_are_proposed_first_in_the_order_of_subtraction():
    seen = run_short_campaign(SubtractiveEstimator(), TARGET, 30, make_simulated_device(11))
    corners = sum(2 ** len(found.lows) for found in plan_curves(TARGET.network))
    subjects = [read_variant(one.trial.network)[0] for one in seen]
    order = ["output", "input", "hidden"]
    bounds = [order.index(block.role) for block in subjects[:corners]]
    assert bounds == sorted(bounds)
    spans = {curve_key(found.block, SETUP): found for found in plan_curves(TARGET.network)}
    for block in subjects[:corners]:
        found = spans[curve_key(block, SETUP)]
        ends = zip(block_widths(block), found.lows, found.highs, strict=True)
        assert all(width in (low, high) for width, low, high in ends)


def test_nothing_is_proposed_twice_and_uncertainty_decreases(additive):
    keys = [seen.trial.key for seen in additive]
    assert len(set(keys)) == len(keys)
    early, late = (SubtractiveEstimator().propose(TARGET, additive[:n]) for n in (20, None))
    assert late.uncertainty_share < early.uncertainty_share
    assert (early.points, late.points) == (20, len(additive))


def test_campaign_stops_when_every_curve_is_known(additive):
    easy = replace(TARGET, uncertainty_share=0.6)
    proposal = SubtractiveEstimator().propose(easy, additive)
    assert proposal.trial is None
    assert "known within 60 %" in proposal.reason
    assert proposal.uncertainty_share < 0.6


def test_durations_suffice_for_the_acquisition_time():
    by_time = replace(TARGET, acquisition="time", uncertainty_share=0.0)
    seen = []
    for _ in range(24):
        proposal = SubtractiveEstimator().propose(by_time, seen)
        seen.append(observe(make_simulated_device(11), proposal.trial, with_energy=False))
    assert len({one.trial.key for one in seen}) == 24
    assert SubtractiveEstimator().propose(by_time, seen).points == 24
    # A campaign for energy cannot use them.
    assert SubtractiveEstimator().propose(TARGET, seen).points == 0


def test_refused_trials_are_left_out_and_the_bound_decreases():
    estimator, seen = SubtractiveEstimator(), []
    limit = 12  # the device refuses wider layers
    for _ in range(60):
        trial = estimator.propose(TARGET, seen).trial
        if trial is None:
            break
        subject = read_variant(trial.network)[0]
        fits = max(block_widths(subject)) <= limit
        seen.append(observe(make_simulated_device(11), trial) if fits else Observation(trial))
    assert len({one.trial.key for one in seen}) == len(seen)
    measured = [one for one in seen if one.energy_j]
    widest = {}
    for one in measured:
        subject = read_variant(one.trial.network)[0]
        key = curve_key(subject, SETUP)
        widest[key] = max(widest.get(key, 0), *block_widths(subject))
    assert set(widest) == {curve_key(found.block, SETUP) for found in plan_curves(TARGET.network)}
    assert all(width <= limit for width in widest.values())
    assert len(seen) - len(measured) < 40


def test_curve_that_is_always_refused_is_given_up():
    estimator, seen = SubtractiveEstimator(), []
    for _ in range(300):
        trial = estimator.propose(TARGET, seen).trial
        if trial is None:
            break
        seen.append(Observation(trial))
    assert trial is None
    assert len(seen) <= 4 * len(plan_curves(TARGET.network))


def test_only_whole_eager_steps_of_variants_are_used():
    seen = make_observations()[0]
    assert SubtractiveEstimator().uses(seen)
    changes = {"stage": "forward"}, {"mode": "graph"}, {"copies": 2}, {"upstream": "random"}
    others = [replace(seen.trial, execution=Execution(**change)) for change in changes]
    for trial in (*others, Trial(make_family(FAMILY), SETUP)):
        assert not SubtractiveEstimator().uses(replace(seen, trial=trial))


def test_energy_of_many_steps_counts_per_step():
    seen = make_observations()[4]
    many = replace(
        seen,
        trial=replace(seen.trial, execution=Execution(steps=10)),
        energy_j=10 * seen.energy_j,
        energy_sd_j=10 * seen.energy_sd_j,
    )
    one, ten = read_point(seen, "energy"), read_point(many, "energy")
    assert ten.value == pytest.approx(one.value)
    assert ten.variance == pytest.approx(one.variance)
