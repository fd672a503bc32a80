"""The paper's method: subtract, fit, add up, and report what was never measured."""

import math
import random
from dataclasses import fields, replace

import numpy as np
import pytest

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.curves import (
    VariantPoint,
    estimate_block,
    fit_curves,
    fit_rates,
    read_point,
)
from joulecast.estimators.subtractive.estimator import (
    SubtractiveEstimator,
    _compare_with_data,
    _fit_process,
    list_candidates,
)
from joulecast.estimators.subtractive.options import (
    DEVIATIONS,
    OURS,
    PAPER,
    SubtractiveOptions,
    change_options,
)
from joulecast.families import draw_family, make_family
from joulecast.gp.regression import fit_gaussian_process
from joulecast.operators import layer_work, make_layer
from joulecast.records import Execution, Observation, Setup, StepTotals, Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import InputError
from joulecast.testing.estimators import (
    FAMILY,
    SETUP,
    EstimatorContract,
    draw_networks,
    make_observations,
    observe,
    run_short_campaign,
)
from joulecast.variants import block_widths, curve_key, read_variant, split_network
from joulecast.variants.curves import plan_curves

TARGET = Target(make_family(FAMILY), SETUP)
ORDER = ["output", "input", "hidden"]
PAPER_ESTIMATOR = SubtractiveEstimator("ampere")


class AdditiveDevice:
    """A device whose costs add up; its time is a tenth of its energy."""

    def true_cost(self, trial):
        energy_j = self.energy_j(trial.network)
        return type("Cost", (), {"energy_j": energy_j, "duration_s": energy_j / 10})

    def energy_j(self, network):
        """Return one joule per block, and a little for every width."""
        return sum(
            placed.calls * (1.0 + 0.02 * sum(block_widths(placed.block)))
            for placed in split_network(network)
        )


@pytest.fixture(scope="module")
def additive():
    """Return the observations of a campaign on the additive device."""
    return run_short_campaign(SubtractiveEstimator(), TARGET, 45, AdditiveDevice())


@pytest.fixture(scope="module")
def device():
    return make_simulated_device(11, noise=0.0)


@pytest.fixture(scope="module")
def fitted():
    return SubtractiveEstimator().fit(make_observations())


@pytest.fixture(scope="module")
def campaign(device):
    """Return the whole campaign of the paper's method on a device without noise."""
    return run_short_campaign(PAPER_ESTIMATOR, TARGET, 300, device)


def predict(fitted, *networks, **options):
    return fitted.predict(networks, [SETUP] * len(networks), **options)


def true_energies(device, networks, setup=SETUP):
    return np.array([device.true_cost(Trial(network, setup)).energy_j for network in networks])


def change_layer(network, at, **change):
    layers = list(network.layers)
    layers[at] = replace(layers[at], **change)
    return replace(network, layers=tuple(layers))


class TestSubtractive(EstimatorContract):
    name = "subtractive"

    def make_estimator(self):
        # Every fit of the contract is made anew.
        _fit_process.cache_clear()
        return SubtractiveEstimator(self.name)


class TestBlockSubtractive(TestSubtractive):
    name = "subtractive-blocks"


class TestPaper(TestSubtractive):
    name = "ampere"


def test_blocks_need_fewer_measurements_and_err_less(device):
    """Of ten curves of layers, six are left: what a block does inside is not subtracted."""
    setup, rng = Setup(batch=64), random.Random(2)
    target = Target(make_family("transformer:width=64,depth=3"), setup)
    networks = [draw_family("transformer", lambda low, high: rng.randint(low, min(high, 16)))]
    networks += [make_family(f"transformer:width={width},depth=2") for width in (12, 28, 48, 60)]
    truth, errors = true_energies(device, networks, setup), {}
    for estimator in (SubtractiveEstimator(), SubtractiveEstimator("subtractive-blocks")):
        fitted = estimator.fit(run_short_campaign(estimator, target, 20, device))
        found = fitted.predict(networks, [setup] * len(networks), per_layer=True)
        assert [len(rows) for rows in found.layers] == [len(one.layers) for one in networks]
        errors[estimator.name] = float(np.mean(np.abs(found.energy_j / truth - 1)))
    assert errors["subtractive-blocks"] < min(0.1, errors["subtractive"])


def test_additive_costs_are_recovered(additive):
    networks = draw_networks(10)
    found = predict(SubtractiveEstimator().fit(additive), *networks)
    truth = [AdditiveDevice().energy_j(network) for network in networks]
    assert found.energy_j == pytest.approx(truth, rel=0.02)
    assert found.duration_s == pytest.approx(found.energy_j / 10, rel=0.02)
    assert found.unseen_share == (0.0,) * 10


def test_intervals_cover_networks_on_a_simulated_device(fitted, device):
    networks = draw_networks(30, seed=5)
    found, truth = predict(fitted, *networks), true_energies(device, networks)
    assert np.mean(np.abs(found.energy_j / truth - 1)) < 0.1
    assert (np.abs(found.energy_j - truth) < 1.96 * found.energy_sd_j).mean() > 0.85


TOTALS = StepTotals(1.0, 1.0, 1)


def change_seen(network=(), setup=(), **change):
    """Return an observation whose network, setup or other values are changed."""
    seen = make_observations()[0]
    network = replace(seen.trial.network, **dict(network))
    trial = replace(seen.trial, network=network, setup=replace(SETUP, **dict(setup)))
    return replace(seen, trial=trial, energy_j=50 * seen.energy_j, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "own net"},
        {"network": {"totals": replace(TOTALS, unattributed_flops_share=0.02)}},
        {"network": {"totals": replace(TOTALS, unattributed_bytes_share=0.02)}},
        {"network": {"buildable": False}},
        {"setup": {"loss": "own"}},
    ],
    ids=str,
)
def test_networks_whose_energy_is_not_that_of_their_layers_are_not_used(fitted, change):
    wrong, estimator, networks = change_seen(**change), SubtractiveEstimator(), draw_networks(3)
    after = estimator.fit([*make_observations(), wrong])
    assert not estimator.uses(wrong)
    assert (predict(after, *networks).energy_j == predict(fitted, *networks).energy_j).all()
    # Nor does it replace a point that has to be measured.
    assert estimator.propose(TARGET, [wrong]) == estimator.propose(TARGET, [])


def test_bounds_are_proposed_first_in_the_order_of_subtraction():
    spans = {curve_key(found.block, SETUP): found for found in plan_curves(TARGET.network)}
    corners = sum(2 ** len(found.lows) for found in spans.values())
    seen = run_short_campaign(SubtractiveEstimator(), TARGET, corners, make_simulated_device(11))
    subjects = [read_variant(one.trial.network)[0] for one in seen]
    bounds = [ORDER.index(block.role) for block in subjects]
    assert bounds == sorted(bounds)
    for block in subjects:
        found = spans[curve_key(block, SETUP)]
        ends = zip(block_widths(block), found.lows, found.highs, strict=True)
        assert all(width in (low, high) for width, low, high in ends)


def test_what_was_measured_with_another_setup_is_proposed_again(additive):
    other = replace(TARGET, setup=replace(SETUP, batch=64))
    first, again = (SubtractiveEstimator().propose(other, seen) for seen in ([], additive))
    assert again == first and again.points == 0 and again.trial is not None


def test_uncertainty_decreases_until_every_curve_is_known(additive):
    assert len({seen.trial.key for seen in additive}) == len(additive), "nothing comes twice"
    early, late = (SubtractiveEstimator().propose(TARGET, additive[:n]) for n in (20, None))
    assert late.uncertainty_share < early.uncertainty_share
    assert (early.points, late.points) == (20, len(additive))
    easy = SubtractiveEstimator().propose(replace(TARGET, uncertainty_share=0.6), additive)
    assert easy.trial is None and easy.uncertainty_share < 0.6
    assert "known within 60 %" in easy.reason


def follow_proposals(target, measure, limit):
    """Answer proposals until there is none; no trial is proposed twice."""
    seen = []
    while len(seen) < limit:
        trial = SubtractiveEstimator().propose(target, seen).trial
        if trial is None:
            break
        seen.append(measure(trial))
    assert len({one.trial.key for one in seen}) == len(seen)
    return seen


def test_durations_suffice_for_the_acquisition_time(device):
    by_time = replace(TARGET, acquisition="time", uncertainty_share=0.0)
    seen = follow_proposals(by_time, lambda trial: observe(device, trial, with_energy=False), 24)
    assert SubtractiveEstimator().propose(by_time, seen).points == 24
    # A campaign for energy cannot use them.
    assert SubtractiveEstimator().propose(TARGET, seen).points == 0


def test_refused_trials_are_left_out_and_the_bound_decreases(device):
    limit = 12  # the device refuses wider layers

    def measure(trial):
        fits = max(block_widths(read_variant(trial.network)[0])) <= limit
        return observe(device, trial) if fits else Observation(trial)

    seen = follow_proposals(TARGET, measure, 60)
    measured = [read_variant(one.trial.network)[0] for one in seen if one.energy_j]
    planned = {curve_key(found.block, SETUP) for found in plan_curves(TARGET.network)}
    assert {curve_key(block, SETUP) for block in measured} == planned
    assert len(seen) - len(measured) < 40
    # A curve that is always refused is given up.
    refused = follow_proposals(TARGET, Observation, 300)
    assert len(refused) <= 4 * len(planned)


def test_only_whole_eager_steps_of_variants_are_used():
    seen = make_observations()[0]
    assert SubtractiveEstimator().uses(seen)
    changes = {"stage": "forward"}, {"mode": "graph"}, {"copies": 2}, {"upstream": "random"}
    others = [replace(seen.trial, execution=Execution(**change)) for change in changes]
    for trial in (*others, Trial(make_family(FAMILY), SETUP)):
        assert not SubtractiveEstimator().uses(replace(seen, trial=trial))


def test_energy_of_many_steps_counts_per_step():
    seen = make_observations()[4]
    trial = replace(seen.trial, execution=Execution(steps=10))
    energies = {"energy_j": 10 * seen.energy_j, "energy_sd_j": 10 * seen.energy_sd_j}
    one, ten = (
        read_point(seen, "energy"),
        read_point(replace(seen, trial=trial, **energies), "energy"),
    )
    assert (ten.value, ten.variance) == pytest.approx((one.value, one.variance))


def test_what_was_not_profiled_is_estimated_from_rates(fitted):
    """A wider layer than profiled is extrapolated, one of an unknown kind costs its work."""
    network, unseen = make_family(FAMILY), make_layer("layer_norm", shape=(24,))
    more = replace(network, layers=(*network.layers[:3], unseen, *network.layers[3:]))
    far = make_family("lenet5:40,60,24,16")
    networks = (network, make_family("lenet5:4,6,24,64"), more, far)
    found = predict(fitted, *networks, joint=True, per_layer=True)
    seen = [[row.seen for row in rows] for rows in found.layers]
    assert seen[1:3] == [[True, True, True, False, True], [True, True, True, False, True, True]]
    own_j = found.layers[2][3].energy_j
    assert own_j > 0 and found.energy_j[2] == pytest.approx(found.energy_j[0] + own_j)
    assert found.energy_j[1] > found.energy_j[0] and 0 < found.unseen_share[1] < 1
    assert min(np.diag(found.energy_cov)[1:]) > found.energy_cov[0, 0]
    # Rates are worth less the more of an estimate rests on them.
    assert (
        found.energy_sd_j[3] / found.energy_j[3] > 0.15 > found.energy_sd_j[0] / found.energy_j[0]
    )


def test_networks_that_share_layers_have_correlated_errors(fitted):
    names = ("lenet5:4,6,24,10", "lenet5:4,6,24,11", "lenet5:1,1,2,2")
    cov = predict(fitted, *map(make_family, names), joint=True).energy_cov
    sds = np.sqrt(np.diag(cov))
    assert (cov / np.outer(sds, sds))[0, 1] > (cov / np.outer(sds, sds))[0, 2]


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
def test_layer_whose_curve_is_noise_is_not_free(fitted, energy):
    network = make_family(FAMILY)
    found = predict(blur(fitted, energy), network, joint=True, per_layer=True)
    for placed, row in zip(split_network(network), found.layers[0], strict=True):
        if placed.block.role == "hidden":
            from_rates = estimate_block(fitted.rates["energy"], placed.block, SETUP)
            assert 0 < row.energy_j <= from_rates.value
    assert found.energy_sd_j[0] > predict(fitted, network).energy_sd_j[0]


CALLED = [{}, {"tied": True}, {"calls": 3}, {"calls": 3, "tied": True}]


def test_weights_are_updated_once_per_step_unless_every_call_costs_the_same(fitted):
    networks = [change_layer(make_family(FAMILY), 2, **change) for change in CALLED]
    plain = find_estimator("subtractive:updates").fit(make_observations())
    (once, tied, calls, tied_calls), (own, _, own_calls, _) = (
        [rows[2].energy_j for rows in predict(one, *networks, per_layer=True).layers]
        for one in (fitted, plain)
    )
    assert 0 < tied < once
    assert calls == pytest.approx(once + 2 * tied)
    assert tied_calls == pytest.approx(3 * tied)
    assert own_calls == pytest.approx(3 * own)


BLOCKS = [placed.block for placed in split_network(make_family(FAMILY))]


def make_points(blocks=BLOCKS, setup=SETUP, j_per_byte=2e-9):
    """Return blocks whose energy is proportional to the bytes they move."""
    points = []
    for block in blocks:
        size = sum(layer_work(layer, setup).total.size_bytes for layer in block.layers)
        points.append(VariantPoint(block, (), setup, j_per_byte * size, 0.0))
    return points


def test_rates_of_the_most_specific_group_recover_costs_proportional_to_bytes():
    other, linear = Setup(batch=20), [one for one in BLOCKS if one.layers[0].kind == "linear"]
    points = [*make_points(), *make_points(linear * 4), *make_points(linear * 4, other, 8e-9)]
    rates = fit_rates(points)
    for point in points:
        found = estimate_block(rates, point.block, point.setup)
        if point.block in linear:
            assert found.value == pytest.approx(point.value, rel=1e-3)
        assert 0 < found.sd_share < 1
    assert estimate_block(rates, linear[0], Setup(batch=40)).group.startswith("kind:")
    # The update takes a share of the cost.
    for setup, has_update in ((SETUP, True), (replace(SETUP, phase="inference"), False)):
        share = estimate_block(rates, BLOCKS[2], setup).update_share
        assert (0 < share < 1) == has_update and (share == 0.0) != has_update


@pytest.mark.parametrize(("name", "weighs_noise"), [("ampere", False), ("subtractive", True)])
def test_rates_weigh_points_as_curves_do(name, weighs_noise):
    """Without noise in its curves, the paper's method does not know how noisy a point is."""
    seen, estimator = make_observations(), SubtractiveEstimator(name)
    noisy = [
        replace(one, energy_sd_j=0.3 * one.energy_j) if at % 2 and one.energy_j else one
        for at, one in enumerate(seen)
    ]
    rates = [estimator.fit(observations).rates["energy"] for observations in (seen, noisy)]
    assert (rates[0] != rates[1]) == weighs_noise


def list_points(observations, options=PAPER):
    return [read_point(one, "energy", options.partition) for one in observations]


def test_the_paper_has_none_of_our_deviations():
    for name in DEVIATIONS:
        assert getattr(OURS, name) != getattr(PAPER, name), name
    assert {field.name for field in fields(SubtractiveOptions)} == {"kernel", *DEVIATIONS}
    assert SubtractiveEstimator().options == OURS and PAPER_ESTIMATOR.options == PAPER
    assert change_options(OURS, DEVIATIONS) == PAPER
    assert change_options(PAPER, DEVIATIONS) == OURS
    assert SubtractiveEstimator().repeats_doubtful and not PAPER_ESTIMATOR.repeats_doubtful


def test_single_deviations_are_part_of_the_name():
    estimator = find_estimator("subtractive:stop:order")
    assert estimator.name == "subtractive:stop:order"
    assert estimator.options == replace(OURS, stop="variance", order=False)
    assert find_estimator("ampere:stop").options == replace(PAPER, stop="sd")
    assert find_estimator("subtractive-blocks:stop").options.layers is False
    with pytest.raises(InputError, match=r"no deviation 'stopp'.*stop, limit"):
        find_estimator("subtractive:stopp")
    with pytest.raises(InputError, match="no estimator 'additive:stop'"):
        find_estimator("additive:stop")
    with pytest.raises(InputError, match="unknown rule"):
        SubtractiveOptions(stop="never")


def test_one_curve_is_finished_before_the_next_begins(campaign):
    ours = run_short_campaign(SubtractiveEstimator(), TARGET, 40, make_simulated_device(11))
    for points, is_sorted in ((list_points(campaign), True), (list_points(ours, OURS), False)):
        roles = [point.block.role for point in points]
        assert (roles == sorted(roles, key=ORDER.index)) == is_sorted


def test_a_curve_starts_at_both_bounds_and_has_a_limited_number_of_points(campaign):
    curves = {}
    for point in list_points(campaign):
        curves.setdefault(curve_key(point.block, SETUP), []).append(block_widths(point.block))
    assert len(curves) == len(plan_curves(TARGET.network, PAPER.partition))
    for low, high, *others in curves.values():
        assert len(others) <= PAPER.limit - 2
        assert all(a <= b for a, b in zip(low, high, strict=True))
    final = PAPER_ESTIMATOR.propose(TARGET, campaign)
    assert final.trial is None and "every curve is known within 5 %" in final.reason


def test_mixed_corners_are_ours():
    hidden = [one for one in plan_curves(TARGET.network) if len(one.lows) == 2]
    counts = []
    for estimator in map(find_estimator, ("subtractive", "subtractive:corners")):
        seen = run_short_campaign(estimator, TARGET, 60, make_simulated_device(11))
        reasons = [estimator.propose(TARGET, seen[:at]).reason for at in range(len(seen))]
        counts.append(sum("bound" in reason for reason in reasons))
    assert counts[0] - counts[1] == 2 * len(hidden)


def test_the_variance_is_compared_with_the_data_as_numbers():
    """500 batches of 1 J with a standard deviation of 1 %: 25 J² are 5 % of 500 J."""
    values = np.array([0.5, 1.5])
    assert _compare_with_data(0.01, values, "sd") == pytest.approx(0.01)
    assert _compare_with_data(0.01, values, "variance") == pytest.approx(0.05)
    assert _compare_with_data(0.1, values, "variance share") == pytest.approx(0.04)


def test_candidates_are_every_channel_count():
    found = next(one for one in plan_curves(make_family("lenet5")) if one.highs == (6, 16))
    assert len(list_candidates(found, is_coarse=False)) == 6 * 16
    wide = next(one for one in plan_curves(make_family("cnn5")) if one.highs == (256, 512))
    assert len(list_candidates(wide)) == 24 * 24
    assert len(list_candidates(wide, is_coarse=False)) == 128 * 128


def test_the_output_alone_computes_no_gradient_of_its_input(campaign):
    alone = [one.trial.network for one in campaign if len(one.trial.network.layers) == 1]
    assert alone and not any(network.layers[0].input_grad for network in alone)
    whole = next(one.trial.network for one in campaign if len(one.trial.network.layers) > 2)
    assert whole.layers[-1].input_grad, "after another layer it does"
    blocks = PAPER.partition.read_variant(whole)
    assert not any(layer.input_grad for layer in blocks[-1].layers), "one curve for both"


def test_variance_of_what_is_subtracted_is_carried_over():
    seen = make_observations()
    with_it, without = (
        fit_curves(seen, "energy", fit_gaussian_process, OURS.partition, carried)
        for carried in (True, False)
    )
    key = next(key for key, curve in with_it.items() if curve.points[0].block.role == "hidden")
    assert (with_it[key].process.variances > without[key].process.variances).all()
    # Curves that were subtracted from others differ a little too.
    assert with_it[key].process.values == pytest.approx(without[key].process.values, rel=0.01)


def test_a_noisy_curve_counts_as_it_is():
    """Subtraction may leave less than nothing; the paper adds it up all the same."""
    lowered = [
        replace(one, energy_j=0.2 * one.energy_j) if len(one.trial.network.layers) == 3 else one
        for one in make_observations()[:30]
    ]
    ours, paper = (
        predict(find_estimator(name).fit(lowered), make_family(FAMILY), per_layer=True).layers[0]
        for name in ("subtractive", "subtractive:blend")
    )
    assert min(row.energy_j for row in ours) >= 0 > min(row.energy_j for row in paper)


def test_beyond_the_profiled_widths_the_process_itself_counts(fitted):
    own = find_estimator("subtractive:extrapolation").fit(make_observations())
    ours, paper = (predict(one, make_family("lenet5:8,12,48,32")) for one in (fitted, own))
    assert paper.unseen_share[0] > 0.5 and ours.unseen_share[0] > 0.5
    assert not math.isclose(ours.energy_j[0], paper.energy_j[0], rel_tol=0.01)


def test_the_papers_method_estimates_within_its_10_percent(campaign, device):
    """On a device whose costs nearly add up."""
    networks = [make_family("lenet5:2,3,9,7"), make_family("lenet5:4,5,20,9")]
    found = predict(PAPER_ESTIMATOR.fit(campaign), *networks)
    assert found.energy_j == pytest.approx(true_energies(device, networks), rel=0.1)
