"""Test the paper's method: subtract, fit, add up, and report what was never measured."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.curves import fit_curves, read_point
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator, _fit_process
from joulecast.estimators.subtractive.rates import estimate_part
from joulecast.families import make_family
from joulecast.gp.regression import fit_gaussian_process
from joulecast.kinds import make_layer
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
from joulecast.variants import curve_key, part_widths, plan_curves, read_variant, split_network

TARGET = Target(make_family(FAMILY), SETUP)


class TestSubtractive(EstimatorContract):
    def make_estimator(self):
        # Every fit of the contract is made anew.
        _fit_process.cache_clear()
        return SubtractiveEstimator()


def additive_cost(network):
    """Return a cost that adds up exactly: one joule per part, and a little for every width."""
    return sum(
        placed.calls * (1.0 + 0.02 * sum(part_widths(placed.part)))
        for placed in split_network(network)
    )


class AdditiveDevice:
    """A device whose costs add up; its time is a tenth of its energy."""

    def true_cost(self, trial):
        energy_j = additive_cost(trial.network)
        return type("Cost", (), {"energy_j": energy_j, "duration_s": energy_j / 10})


@pytest.fixture(scope="module")
def additive():
    return run_short_campaign(SubtractiveEstimator(), TARGET, 45, AdditiveDevice())


def test_additive_costs_are_recovered(additive):
    networks = draw_networks(10)
    estimator = SubtractiveEstimator()
    found = estimator.fit(additive).predict(networks, [SETUP] * len(networks))
    truth = [additive_cost(network) for network in networks]
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


def test_bounds_are_proposed_first_in_the_order_of_subtraction():
    seen = run_short_campaign(SubtractiveEstimator(), TARGET, 30, make_simulated_device(11))
    corners = sum(2 ** len(found.lows) for found in plan_curves(TARGET.network))
    subjects = [read_variant(one.trial.network)[0] for one in seen]
    order = ["output", "input", "hidden"]
    bounds = [order.index(part.role) for part in subjects[:corners]]
    assert bounds == sorted(bounds)
    spans = {curve_key(found.part, SETUP): found for found in plan_curves(TARGET.network)}
    for part in subjects[:corners]:
        found = spans[curve_key(part, SETUP)]
        ends = zip(part_widths(part), found.lows, found.highs, strict=True)
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
        fits = max(part_widths(subject)) <= limit
        seen.append(observe(make_simulated_device(11), trial) if fits else Observation(trial))
    assert len({one.trial.key for one in seen}) == len(seen)
    measured = [one for one in seen if one.energy_j]
    widest = {}
    for one in measured:
        subject = read_variant(one.trial.network)[0]
        key = curve_key(subject, SETUP)
        widest[key] = max(widest.get(key, 0), *part_widths(subject))
    assert set(widest) == {curve_key(found.part, SETUP) for found in plan_curves(TARGET.network)}
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
    for execution in (
        Execution(stage="forward"),
        Execution(mode="graph"),
        Execution(copies=2),
        Execution(upstream="random"),
    ):
        assert not SubtractiveEstimator().uses(
            replace(seen, trial=replace(seen.trial, execution=execution))
        )
    whole = Trial(make_family(FAMILY), SETUP)
    assert not SubtractiveEstimator().uses(replace(seen, trial=whole))


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


def test_subtraction_adds_variance(additive):
    curves = fit_curves(additive, "energy", fit_gaussian_process)
    hidden = [curve for curve in curves.values() if curve.part.role == "hidden"]
    for curve in hidden:
        # The variance of the variant itself, (0.36 %)² of its energy, is the minimum.
        own = (1.25 * 0.005 / 3**0.5 * curve.process.values) ** 2
        assert (curve.process.variances > own).all()


def test_layer_wider_than_profiled_is_extrapolated_and_unseen():
    estimator = SubtractiveEstimator()
    fitted = estimator.fit(make_observations())
    narrow, wide = make_family(FAMILY), make_family("lenet5:4,6,24,64")
    found = fitted.predict([narrow, wide], [SETUP] * 2, joint=True, per_layer=True)
    assert [row.seen for row in found.layers[1]] == [True, True, True, False, True]
    assert found.energy_j[1] > found.energy_j[0]
    assert found.energy_cov[1, 1] > found.energy_cov[0, 0]
    assert 0 < found.unseen_share[1] < 1


def test_unseen_kind_is_estimated_from_rates():
    estimator = SubtractiveEstimator()
    network = make_family(FAMILY)
    unseen = make_layer("layer_norm", shape=(24,))
    layers = (*network.layers[:3], unseen, *network.layers[3:])
    found = estimator.fit(make_observations()).predict(
        [network, replace(network, layers=layers)], [SETUP] * 2, joint=True, per_layer=True
    )
    rows = found.layers[1]
    assert [row.seen for row in rows] == [True, True, True, False, True, True]
    assert rows[3].energy_j > 0
    assert found.energy_j[1] == pytest.approx(found.energy_j[0] + rows[3].energy_j)
    assert found.energy_cov[1, 1] > found.energy_cov[0, 0]


def test_networks_that_share_layers_have_correlated_errors():
    estimator = SubtractiveEstimator()
    one, two = make_family("lenet5:4,6,24,10"), make_family("lenet5:4,6,24,11")
    other = make_family("lenet5:1,1,2,2")
    cov = (
        estimator.fit(make_observations())
        .predict([one, two, other], [SETUP] * 3, joint=True)
        .energy_cov
    )
    sds = np.sqrt(np.diag(cov))
    correlation = cov / np.outer(sds, sds)
    assert correlation[0, 1] > correlation[0, 2]


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
    odd = replace(seen, energy_j=50 * seen.energy_j, duration_s=50 * seen.duration_s)
    network, setup = odd.trial.network, odd.trial.setup
    stray = StepTotals(1.0, 1.0, 1, unattributed_flops_share=0.02)
    moved = replace(stray, unattributed_flops_share=0.0, unattributed_bytes_share=0.02)
    yield replace(odd, source="own net")
    for other in (replace(network, totals=stray), replace(network, totals=moved)):
        yield replace(odd, trial=replace(odd.trial, network=other))
    yield replace(odd, trial=replace(odd.trial, network=replace(network, buildable=False)))
    yield replace(odd, trial=replace(odd.trial, setup=replace(setup, loss="own")))


def test_networks_that_joulecast_did_not_build_are_not_used():
    estimator, networks, known = SubtractiveEstimator(), draw_networks(3), make_observations()
    before = estimator.fit(known).predict(networks, [SETUP] * len(networks))
    for foreign in make_foreign_observations():
        after = estimator.fit([*known, foreign]).predict(networks, [SETUP] * len(networks))
        assert not estimator.uses(foreign)
        assert (after.energy_j == before.energy_j).all()
        # Nor does it replace a point that has to be measured.
        assert estimator.propose(TARGET, [foreign]) == estimator.propose(TARGET, [])


def blur(fitted, energy):
    """Return a fit whose hidden curves are ``energy`` and noise as large as their old values."""
    curves = {}
    for key, curve in fitted.curves.items():
        gp = dict(curve["energy"])
        if curve["role"] == "hidden":
            scale = float(np.mean(np.abs(gp["values"])))
            gp |= {"values": [energy] * len(gp["values"]), "mean": energy, "scale": scale}
            gp["variances"] = [scale**2] * len(gp["values"])
        curves[key] = {**curve, "energy": gp}
    return replace(fitted, curves=curves)


@pytest.mark.parametrize("energy", [-1e-6, 0.0, 1e-9])
def test_layer_whose_curve_is_noise_is_not_free(energy):
    estimator, network = SubtractiveEstimator(), make_family(FAMILY)
    fitted = estimator.fit(make_observations())
    found = blur(fitted, energy).predict([network], [SETUP], joint=True, per_layer=True)
    for placed, row in zip(split_network(network), found.layers[0], strict=True):
        from_rates = estimate_part(fitted.rates["energy"], placed.part, SETUP)
        if placed.part.role == "hidden":
            assert 0 < row.energy_j <= from_rates.value
    assert found.energy_sd_j[0] > fitted.predict([network], [SETUP]).energy_sd_j[0]


def test_weights_are_updated_once_per_step():
    estimator, network = SubtractiveEstimator(), make_family(FAMILY)
    fitted = estimator.fit(make_observations())
    layers = list(network.layers)

    def find_cost(**change):
        changed = (*layers[:2], replace(layers[2], **change), *layers[3:])
        found = fitted.predict([replace(network, layers=changed)], [SETUP], per_layer=True)
        return found.layers[0][2].energy_j

    once, tied = find_cost(), find_cost(tied=True)
    assert 0 < tied < once
    assert find_cost(calls=3) == pytest.approx(once + 2 * tied)
    assert find_cost(calls=3, tied=True) == pytest.approx(3 * tied)
