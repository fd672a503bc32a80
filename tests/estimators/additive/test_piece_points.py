"""Points of leaves: what each axis tells apart."""

import math

import pytest

from joulecast.estimators.additive.operators import (
    AXES,
    count_executed_flops,
    find_loss_point,
    find_point,
)
from joulecast.kinds import layer_work, make_layer
from joulecast.records import Setup
from joulecast.variants import Part

SETUP = Setup(batch=4)


def point_of(layer):
    work = layer_work(layer, SETUP).total
    flops = count_executed_flops(layer, work)
    return dict(zip(AXES, find_point(Part("hidden", (layer,)), SETUP, work, flops), strict=True))


def sdpa(**sizes):
    own = {"heads": 2, "kv_heads": 2, "head_dim": 64, "tokens": 10, "kv_tokens": 20, **sizes}
    return make_layer("sdpa", **own)


def test_linear_layer_has_rows_depth_and_columns():
    point = point_of(make_layer("linear", cin=32, cout=16, lead=(10,)))
    assert point["positions"] == pytest.approx(math.log(40))
    assert point["input channels"] == pytest.approx(math.log(32))
    assert point["output channels"] == pytest.approx(math.log(16))
    assert point["window"] == point["extent"] == 0.0


def test_convolution_has_a_window_and_an_extent():
    point = point_of(make_layer("conv2d", cin=8, cout=8, space=6, kernel=3))
    assert point["window"] == pytest.approx(math.log(9))
    assert point["extent"] == pytest.approx(math.log(36))


def test_heads_of_attention_are_rows_of_products_of_their_own():
    point = point_of(sdpa())
    assert point["positions"] == pytest.approx(math.log(4 * 2 * 10))
    assert point["input channels"] == pytest.approx(math.log(64))
    assert point["output channels"] == pytest.approx(math.log(20))


def test_recurrent_steps_are_a_window():
    point = point_of(make_layer("lstm", cin=16, hidden=32, tokens=7, depth=2))
    assert point["positions"] == pytest.approx(math.log(4))
    assert point["window"] == pytest.approx(math.log(14))


@pytest.mark.parametrize(("head_dim", "causal", "factor"), [(64, 0, 1), (64, 1, 0.5), (8, 0, 2)])
def test_executed_flops_fill_tiles_and_skip_what_is_masked(head_dim, causal, factor):
    layer = sdpa(head_dim=head_dim, causal=causal)
    work = layer_work(layer, SETUP).total
    assert count_executed_flops(layer, work) == pytest.approx(factor * work.flops)


def test_loss_has_all_axes():
    assert len(find_loss_point(10.0, 5.0, 100.0)) == len(AXES)
