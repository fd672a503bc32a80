"""Test sums over curves: extrapolation, correlations, noise and repeated calls."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.estimators.subtractive.network_sums import (
    ProfiledBlock,
    estimate_block,
    estimate_update_share,
    fit_rates,
)
from joulecast.families import make_family
from joulecast.operators import layer_work, make_layer
from joulecast.records import Setup
from joulecast.testing.estimators import FAMILY, SETUP, make_observations
from joulecast.variants import split_network


def test_layer_wider_than_profiled_is_extrapolated_and_unseen():
    estimator = SubtractiveEstimator()
    fitted = estimator.fit(make_observations())
    narrow, wide = make_family(FAMILY), make_family("lenet5:4,6,24,64")
    found = fitted.predict([narrow, wide], [SETUP] * 2, joint=True, per_layer=True)
    assert [row.seen for row in found.layers[1]] == [True, True, True, False, True]
    assert found.energy_j[1] > found.energy_j[0]
    assert found.energy_cov[1, 1] > found.energy_cov[0, 0]
    assert 0 < found.unseen_share[1] < 1


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
        from_rates = estimate_block(fitted.rates["energy"], placed.block, SETUP)
        if placed.block.role == "hidden":
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


PARTS = [placed.block for placed in split_network(make_family(FAMILY))]


def make_points(parts=PARTS, setup=SETUP, j_per_byte=2e-9):
    """Return parts whose energy is proportional to the bytes they move."""
    sizes = [
        sum(layer_work(layer, setup).total.size_bytes for layer in part.layers) for part in parts
    ]
    return [
        ProfiledBlock(part, setup, j_per_byte * size, 0.0)
        for part, size in zip(parts, sizes, strict=True)
    ]


def test_rates_recover_costs_proportional_to_bytes():
    points = make_points()
    rates = fit_rates(points)
    for point in points:
        found = estimate_block(rates, point.block, SETUP)
        assert found.value == pytest.approx(point.value, rel=1e-3)
        assert 0 < found.sd_share < 1


def test_most_specific_row_is_used():
    own, other = Setup(batch=10), Setup(batch=20)
    parts = [part for part in PARTS if part.layers[0].kind == "linear"]
    cheap, dear = make_points(parts * 4, own), make_points(parts * 4, other, j_per_byte=8e-9)
    rates = fit_rates([*cheap, *dear])
    assert estimate_block(rates, parts[0], own).value == pytest.approx(cheap[0].value, rel=1e-3)
    assert estimate_block(rates, parts[0], other).value == pytest.approx(dear[0].value, rel=1e-3)
    unseen = estimate_block(rates, parts[0], Setup(batch=40))
    assert unseen.group.startswith("kind:")


def test_update_takes_a_share_of_the_cost():
    rates = fit_rates(make_points())
    share = estimate_update_share(rates, PARTS[2], SETUP)
    assert 0 < share < 1
    inference = replace(SETUP, phase="inference")
    assert estimate_update_share(rates, PARTS[2], inference) == 0.0


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
