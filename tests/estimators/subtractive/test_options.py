"""Every deviation from the paper can be switched, and does what it says."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.curves import fit_curves, read_point
from joulecast.estimators.subtractive.estimator import (
    PaperEstimator,
    SubtractiveEstimator,
    list_candidates,
)
from joulecast.estimators.subtractive.options import (
    DEVIATIONS,
    OURS,
    PAPER,
    SubtractiveOptions,
    change_options,
)
from joulecast.families import make_family
from joulecast.gp.regression import fit_gaussian_process
from joulecast.records import Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import InputError
from joulecast.testing.estimators import (
    FAMILY,
    SETUP,
    make_observations,
    observe,
    run_short_campaign,
)
from joulecast.variants.curves import plan_curves

TARGET = Target(make_family(FAMILY), SETUP)


@pytest.fixture(scope="module")
def campaign():
    """Return the whole campaign of the paper's method on a device without noise."""
    return run_short_campaign(PaperEstimator(), TARGET, 300, make_simulated_device(11, noise=0.0))


def list_points(observations, options=PAPER):
    return [read_point(one, "energy", options.partition) for one in observations]


def test_the_paper_has_none_of_our_deviations():
    for name in DEVIATIONS:
        assert getattr(OURS, name) != getattr(PAPER, name), name
    assert {field.name for field in fields(SubtractiveOptions)} == {"kernel", *DEVIATIONS}
    assert SubtractiveEstimator().options == OURS and PaperEstimator().options == PAPER
    assert change_options(OURS, DEVIATIONS) == PAPER
    assert change_options(PAPER, DEVIATIONS) == OURS
    assert SubtractiveEstimator().repeats_doubtful and not PaperEstimator().repeats_doubtful


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
    keys = [(point.block.role, point.block.layers[0].kind) for point in list_points(campaign)]
    roles = [role for role, _ in keys]
    assert roles == sorted(roles, key=["output", "input", "hidden"].index)
    ours = run_short_campaign(SubtractiveEstimator(), TARGET, 40, make_simulated_device(11))
    mixed = [point.block.role for point in list_points(ours, OURS)]
    assert mixed != sorted(mixed, key=["output", "input", "hidden"].index)


def test_a_curve_starts_at_both_bounds_and_has_a_limited_number_of_points(campaign):
    curves = {}
    for point in list_points(campaign):
        part = point.block
        layer = part.layers[0]
        key = part.role, layer.kind, layer.sizes.get("space")
        sizes = tuple(layer.sizes[name] for name in ("cin", "cout") if name in layer.sizes)
        curves.setdefault(key, []).append(sizes)
    planned = plan_curves(TARGET.network, PAPER.partition.split, PAPER.partition.make_variant)
    assert len(curves) == len(planned)
    for sizes in curves.values():
        assert len(sizes) <= PAPER.limit
        low, high = sizes[:2]
        assert all(a <= b for a, b in zip(low, high, strict=True))
    final = PaperEstimator().propose(TARGET, campaign)
    assert final.trial is None and "every curve is known within 5 %" in final.reason


def test_mixed_corners_are_ours():
    hidden = [one for one in plan_curves(TARGET.network) if len(one.lows) == 2]
    counts = {}
    for estimator in ("subtractive", "subtractive:corners"):
        seen = run_short_campaign(find_estimator(estimator), TARGET, 60, make_simulated_device(11))
        reasons = []
        for at in range(len(seen)):
            reasons.append(find_estimator(estimator).propose(TARGET, seen[:at]).reason)
        counts[estimator] = sum("bound" in reason for reason in reasons)
    assert counts["subtractive"] - counts["subtractive:corners"] == 2 * len(hidden)


def test_the_variance_is_compared_with_the_data_as_numbers():
    """500 batches of 1 J with a standard deviation of 1 %: 25 J² are 5 % of 500 J."""
    from joulecast.estimators.subtractive.estimator import _compare_with_data

    class Curve:
        mean_abs_value = 1.0
        process = type("Process", (), {"values": np.array([0.5, 1.5])})

    assert _compare_with_data(0.01, Curve, "sd") == pytest.approx(0.01)
    assert _compare_with_data(0.01, Curve, "variance") == pytest.approx(0.05)
    assert _compare_with_data(0.1, Curve, "variance share") == pytest.approx(0.04)


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
    parts = PAPER.partition.read_variant(whole)
    assert not any(layer.input_grad for layer in parts[-1].layers), "one curve for both"


def test_variance_of_what_is_subtracted_is_carried_over():
    seen = make_observations()
    with_it, without = (
        fit_curves(seen, "energy", fit_gaussian_process, OURS.partition, carried)
        for carried in (True, False)
    )
    key = next(key for key, curve in with_it.items() if curve.block.role == "hidden")
    assert (with_it[key].process.variances > without[key].process.variances).all()
    # Curves that were subtracted from others differ a little too.
    assert with_it[key].process.values == pytest.approx(without[key].process.values, rel=0.01)


def test_a_noisy_curve_counts_as_it_is():
    """Subtraction may leave less than nothing; the paper adds it up all the same."""
    seen = [observe(make_simulated_device(11), one.trial) for one in make_observations()[:30]]
    lowered = [
        replace(one, energy_j=0.2 * one.energy_j)
        if len(one.trial.network.layers) == 3 and one.energy_j
        else one
        for one in seen
    ]
    network = make_family(FAMILY)
    energies_j = {}
    for name in ("subtractive", "subtractive:blend"):
        fitted = find_estimator(name).fit(lowered)
        found = fitted.predict([network], [SETUP], per_layer=True)
        energies_j[name] = [row.energy_j for row in found.layers[0]]
    assert min(energies_j["subtractive"]) >= 0 > min(energies_j["subtractive:blend"])


def test_beyond_the_profiled_widths_the_process_itself_counts():
    seen = [one for one in make_observations() if SubtractiveEstimator().uses(one)]
    wide = make_family("lenet5:8,12,48,32")
    found = {
        name: find_estimator(name).fit(seen).predict([wide], [SETUP])
        for name in ("subtractive", "subtractive:extrapolation")
    }
    ours, paper = found.values()
    assert paper.unseen_share[0] > 0.5 and ours.unseen_share[0] > 0.5
    assert not math.isclose(ours.energy_j[0], paper.energy_j[0], rel_tol=0.01)


def test_every_call_costs_the_same():
    network = make_family(FAMILY)
    layers = list(network.layers)
    layers[2] = replace(layers[2], calls=2)
    twice = replace(network, layers=tuple(layers))
    fitted = find_estimator("subtractive:updates").fit(make_observations())
    found = fitted.predict([network, twice], [SETUP] * 2, per_layer=True)
    once_j, twice_j = (rows[2].energy_j for rows in found.layers)
    assert twice_j == pytest.approx(2 * once_j)


def test_fits_of_both_differ_and_both_estimate(campaign):
    """On a device whose costs nearly add up, the paper's method is right within its 10 %."""
    device = make_simulated_device(11, noise=0.0)
    networks = [
        make_family(f"lenet5:{a},{b},{c},{d}") for a, b, c, d in ((2, 3, 9, 7), (4, 5, 20, 9))
    ]
    fitted = PaperEstimator().fit(campaign)
    found = fitted.predict(networks, [SETUP] * 2)
    true_j = [device.true_cost(Trial(network, SETUP)).energy_j for network in networks]
    assert found.energy_j == pytest.approx(true_j, rel=0.1)
