"""The paper's method: subtract, fit, add up, and know what it does not know."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.curves import learn_curves, read_shown
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.estimators.subtractive.rates import guess_cost
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
        return SubtractiveEstimator()


def additive_cost(network):
    """A law that adds up exactly: one joule a part, and a little for every width."""
    return sum(
        place.calls * (1.0 + 0.02 * sum(part_widths(place.part)))
        for place in split_network(network)
    )


class AdditiveWorld:
    """A device that keeps the law; its time is a tenth of its energy."""

    def true_cost(self, trial):
        energy_j = additive_cost(trial.network)
        return type("Cost", (), {"energy_j": energy_j, "duration_s": energy_j / 10})


@pytest.fixture(scope="module")
def additive():
    return run_short_campaign(SubtractiveEstimator(), TARGET, 45, AdditiveWorld())


def test_it_recovers_a_law_that_adds_up(additive):
    networks = draw_networks(10)
    estimator = SubtractiveEstimator()
    answer = estimator.fit(additive).predict(networks, [SETUP] * len(networks))
    truth = [additive_cost(network) for network in networks]
    assert answer.energy_j == pytest.approx(truth, rel=0.02)
    assert answer.duration_s == pytest.approx(answer.energy_j / 10, rel=0.02)
    assert answer.unseen_share == (0.0,) * 10


def test_in_a_simulated_world_intervals_hold_what_nets_take():
    estimator, world = SubtractiveEstimator(), make_simulated_device(11, noise=0.0)
    networks = draw_networks(30, seed=5)
    answer = estimator.fit(make_observations()).predict(networks, [SETUP] * len(networks))
    truth = np.array([world.true_cost(Trial(network, SETUP)).energy_j for network in networks])
    inside = np.abs(answer.energy_j - truth) < 1.96 * np.sqrt(np.diag(answer.energy_cov))
    assert np.mean(np.abs(answer.energy_j / truth - 1)) < 0.1
    assert inside.mean() > 0.85


def test_bounds_come_first_and_in_the_order_of_subtraction():
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


def test_nothing_is_proposed_twice_and_doubt_shrinks(additive):
    keys = [seen.trial.key for seen in additive]
    assert len(set(keys)) == len(keys)
    early, late = (SubtractiveEstimator().propose(TARGET, additive[:n]) for n in (20, None))
    assert late.uncertainty_share < early.uncertainty_share
    assert (early.points, late.points) == (20, len(additive))


def test_it_stops_when_every_curve_is_known(additive):
    easy = replace(TARGET, uncertainty_share=0.6)
    proposal = SubtractiveEstimator().propose(easy, additive)
    assert proposal.trial is None
    assert "known within 60%" in proposal.reason
    assert proposal.uncertainty_share < 0.6


def test_time_guides_where_energy_cannot_be_read():
    by_time = replace(TARGET, acquisition="time", uncertainty_share=0.0)
    seen = []
    for _ in range(24):
        proposal = SubtractiveEstimator().propose(by_time, seen)
        seen.append(observe(make_simulated_device(11), proposal.trial, energy=False))
    assert len({one.trial.key for one in seen}) == 24
    assert SubtractiveEstimator().propose(by_time, seen).points == 24
    # To a campaign that wants energy, time probes are no points yet.
    assert SubtractiveEstimator().propose(TARGET, seen).points == 0


def test_what_the_device_refuses_is_left_out_and_the_bound_shrinks():
    estimator, seen = SubtractiveEstimator(), []
    limit = 12  # no channel or feature beyond this fits on the device
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


def test_a_curve_that_is_always_refused_is_given_up():
    estimator, seen = SubtractiveEstimator(), []
    for _ in range(300):
        trial = estimator.propose(TARGET, seen).trial
        if trial is None:
            break
        seen.append(Observation(trial))
    assert trial is None
    assert len(seen) <= 4 * len(plan_curves(TARGET.network))


def test_only_whole_eager_steps_of_variants_count():
    seen = make_observations()[0]
    assert SubtractiveEstimator().uses(seen)
    for how in (
        Execution(stage="forward"),
        Execution(mode="graph"),
        Execution(copies=2),
        Execution(upstream="random"),
    ):
        assert not SubtractiveEstimator().uses(
            replace(seen, trial=replace(seen.trial, execution=how))
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
    one, ten = read_shown(seen, "energy"), read_shown(many, "energy")
    assert ten.value == pytest.approx(one.value)
    assert ten.variance == pytest.approx(one.variance)


def test_what_is_subtracted_adds_its_variance(additive):
    curves = learn_curves(additive, "energy", fit_gaussian_process)
    hidden = [curve for curve in curves.values() if curve.part.role == "hidden"]
    for curve in hidden:
        # What a variant itself was uncertain by, 0.36 % of some joules, is the least there can be.
        own = (1.25 * 0.005 / 3**0.5 * curve.gp.values) ** 2
        assert (curve.gp.variances > own).all()


def test_a_layer_wider_than_profiled_is_carried_on_and_unseen():
    estimator = SubtractiveEstimator()
    fitted = estimator.fit(make_observations())
    narrow, wide = make_family(FAMILY), make_family("lenet5:4,6,24,64")
    answer = fitted.predict([narrow, wide], [SETUP] * 2)
    assert [row.seen for row in answer.layers[1]] == [True, True, True, False, True]
    assert answer.energy_j[1] > answer.energy_j[0]
    assert answer.energy_cov[1, 1] > answer.energy_cov[0, 0]
    assert 0 < answer.unseen_share[1] < 1


def test_a_kind_that_was_never_profiled_is_guessed_and_says_so():
    estimator = SubtractiveEstimator()
    network = make_family(FAMILY)
    strange = make_layer("layer_norm", shape=(24,))
    layers = (*network.layers[:3], strange, *network.layers[3:])
    answer = estimator.fit(make_observations()).predict([network, replace(network, layers=layers)], [SETUP] * 2)
    rows = answer.layers[1]
    assert [row.seen for row in rows] == [True, True, True, False, True, True]
    assert rows[3].energy_j > 0
    assert answer.energy_j[1] == pytest.approx(answer.energy_j[0] + rows[3].energy_j)
    assert answer.energy_cov[1, 1] > answer.energy_cov[0, 0]


def test_networks_that_share_layers_err_together():
    estimator = SubtractiveEstimator()
    one, two = make_family("lenet5:4,6,24,10"), make_family("lenet5:4,6,24,11")
    other = make_family("lenet5:1,1,2,2")
    cov = estimator.fit(make_observations()).predict([one, two, other], [SETUP] * 3).energy_cov
    sds = np.sqrt(np.diag(cov))
    correlation = cov / np.outer(sds, sds)
    assert correlation[0, 1] > correlation[0, 2]


def test_setups_are_never_mixed():
    world = make_simulated_device(11)
    target = replace(TARGET, setup=Setup(batch=64))
    other = run_short_campaign(SubtractiveEstimator(), target, 20, world)
    estimator, networks = SubtractiveEstimator(), draw_networks(3)
    alone = estimator.fit(make_observations()).predict(networks, [SETUP] * len(networks))
    both = estimator.fit([*make_observations(), *other]).predict(networks, [SETUP] * len(networks))
    assert both.energy_j == pytest.approx(alone.energy_j)


def strange_observations():
    """A variant's network under which something else ran, as each of them shows itself."""
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


def test_what_joulecast_did_not_build_teaches_nothing():
    estimator, networks, known = SubtractiveEstimator(), draw_networks(3), make_observations()
    before = estimator.fit(known).predict(networks, [SETUP] * len(networks))
    for strange in strange_observations():
        after = estimator.fit([*known, strange]).predict(networks, [SETUP] * len(networks))
        assert not estimator.uses(strange)
        assert (after.energy_j == before.energy_j).all()
        # Nor does it stand in for a point that is still to be measured.
        assert estimator.propose(TARGET, [strange]) == estimator.propose(TARGET, [])


def blur(fitted, energy):
    """A fit whose hidden curves are ``energy`` joules and noise as large as their old values."""
    curves = {}
    for key, curve in fitted["curves"].items():
        gp = dict(curve["energy"])
        if curve["role"] == "hidden":
            scale = float(np.mean(np.abs(gp["values"])))
            gp |= {"values": [energy] * len(gp["values"]), "mean": energy, "scale": scale}
            gp["variances"] = [scale**2] * len(gp["values"])
        curves[key] = {**curve, "energy": gp}
    return {**fitted, "curves": curves}


@pytest.mark.parametrize("energy", [-1e-6, 0.0, 1e-9])
def test_a_layer_that_drowns_in_noise_is_not_free(energy):
    estimator, network = SubtractiveEstimator(), make_family(FAMILY)
    fitted = estimator.fit(make_observations())
    answer = blur(fitted, energy).predict([network], [SETUP])
    for place, row in zip(split_network(network), answer.layers[0], strict=True):
        guess, _, _ = guess_cost(fitted["rates"]["energy"], place.part, SETUP)
        if place.part.role == "hidden":
            assert 0 < row.energy_j <= guess
    assert answer.energy_cov[0, 0] > fitted.predict([network], [SETUP]).energy_cov[0, 0]


def test_weights_are_updated_once_however_often_they_are_called():
    estimator, network = SubtractiveEstimator(), make_family(FAMILY)
    fitted = estimator.fit(make_observations())
    layers = list(network.layers)

    def cost(**change):
        changed = (*layers[:2], replace(layers[2], **change), *layers[3:])
        answer = fitted.predict([replace(network, layers=changed)], [SETUP])
        return answer.layers[0][2].energy_j

    once, tied = cost(), cost(tied=True)
    assert 0 < tied < once
    assert cost(calls=3) == pytest.approx(once + 2 * tied)
    assert cost(calls=3, tied=True) == pytest.approx(3 * tied)
