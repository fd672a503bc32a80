"""Energies of layers."""

import pytest

from additive_examples import SETUP, draw_networks
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.families import make_family


@pytest.fixture(scope="module")
def fitted(observations):
    return AdditiveEstimator().fit(observations)


@pytest.mark.parametrize("networks", [draw_networks(3, seed=5), [make_family("transformer:64,2")]])
def test_layers_add_up_to_the_network(fitted, networks):
    prediction = fitted.predict(networks, [SETUP] * len(networks), per_layer=True)
    sums_j = [sum(layer.energy_j for layer in layers) for layers in prediction.layers]
    assert sums_j == pytest.approx(prediction.energy_j, rel=1e-6)


def test_layers_of_unseen_kinds_are_marked(fitted):
    prediction = fitted.predict([make_family("lstm")], [SETUP], per_layer=True)
    assert any(layer.kind == "lstm" and not layer.seen for layer in prediction.layers[0])


def test_layers_are_left_out_unless_requested(fitted):
    assert fitted.predict(draw_networks(2), [SETUP] * 2).layers == ((), ())
