"""Energies of layers."""

from dataclasses import replace

import pytest

from additive_examples import SETUP, draw_networks
from joulecast.estimators.additive.layers import split_layers
from joulecast.estimators.additive.predict import predict_totals
from joulecast.families import make_family


@pytest.mark.parametrize("networks", [draw_networks(3, seed=5), [make_family("transformer:64,2")]])
def test_layers_add_up_to_the_network(fitted, networks):
    prediction = fitted.predict(networks, [SETUP] * len(networks), per_layer=True)
    sums_j = [sum(layer.energy_j for layer in layers) for layers in prediction.layers]
    assert sums_j == pytest.approx(prediction.energy_j, rel=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_a_block_share_it_by_the_energies_of_their_operators(fitted, precision):
    setup = replace(SETUP, precision=precision)
    network = make_family("transformer:64,2")
    (layers,) = fitted.predict([network], [setup], per_layer=True).layers
    (block,) = {one.layer for one in split_layers(network, setup) if one.layer.is_block}
    device = predict_totals(fitted, [{block: 1.0}], 0.0)
    operator_j = dict(zip(device.sums.operators, device.operator_j.tolist(), strict=True))
    expected = {
        kind: sum(operator_j[leaf] * count for leaf, count in block.operators if leaf.kind == kind)
        for kind in ("linear", "sdpa", "layer_norm")
    }
    inside = layers[1 : 1 + len(network.layers) - 3]
    found = {kind: sum(one.energy_j for one in inside if one.kind == kind) / 2 for kind in expected}
    ratios = [found[kind] / expected[kind] for kind in ("sdpa", "layer_norm")]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.2)
    # Linear layers have tails, which are operators of their own.
    assert found["linear"] / expected["linear"] >= 0.8 * ratios[0]


def test_layers_of_unseen_kinds_are_marked(fitted):
    prediction = fitted.predict([make_family("lstm")], [SETUP], per_layer=True)
    assert any(layer.kind == "lstm" and not layer.seen for layer in prediction.layers[0])


def test_layers_are_left_out_unless_requested(fitted):
    assert fitted.predict(draw_networks(2), [SETUP] * 2).layers == ((), ())
