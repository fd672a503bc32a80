"""Test how often the host issues launches, weights, products and casts."""

import pytest
from hypothesis import given

from joulecast.kinds import add_host_calls, count_host_calls, layer_work, make_layer
from joulecast.records import Setup, fold_blocks
from kind_examples import LAYERS, NETWORKS, SETUPS

every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


@every_layer
def test_number_of_weights_does_not_depend_on_the_optimizer(layer):
    counts = {count_host_calls(layer, Setup(optimizer=name)) for name in ("sgd", "adam", "adamw")}
    assert len(counts) == 1
    assert bool(counts.pop()[1]) == bool(layer_work(layer, Setup()).params)


@every_layer
def test_only_products_in_half_precision_are_cast(layer):
    launches, weights, products, casts, *_ = count_host_calls(layer, Setup())
    assert casts == 0
    assert bool(products) == bool(layer_work(layer, Setup()).forward.flops)
    half = count_host_calls(layer, Setup(precision="bf16"))
    assert half[1:4] == (weights, products, products)
    assert (half[0] == launches) == (layer.kind != "rms_norm")


@every_layer
def test_calls_of_inference_are_counted_apart(layer):
    for precision in ("fp32", "bf16"):
        setup = Setup(phase="inference", precision=precision)
        *training, launches, products = count_host_calls(layer, setup)
        assert not any(training)
        assert products == count_host_calls(layer, Setup())[2]
        assert launches <= layer_work(layer, setup).forward.launches + layer.calls


def test_rms_norm_is_fused_only_in_full_precision():
    fused, spelled = (make_layer("rms_norm", shape=(7, 8), spelled=spelled) for spelled in (0, 1))
    for precision in ("fp32", "tf32"):
        setup = Setup(precision=precision)
        assert count_host_calls(fused, setup) < count_host_calls(spelled, setup)
    half = Setup(precision="bf16")
    assert layer_work(fused, half) == layer_work(spelled, half)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_issue_all_tokens_at_once(kind):
    short, long = (make_layer(kind, cin=5, hidden=6, tokens=tokens) for tokens in (7, 70))
    assert count_host_calls(short, Setup()) == count_host_calls(long, Setup())


@given(NETWORKS, SETUPS)
def test_calls_of_a_block_are_the_sum_over_its_layers(network, setup):
    one, other = (
        add_host_calls(*(count_host_calls(layer, setup) for layer in net.layers))
        for net in (fold_blocks(network), network)
    )
    assert one == other
