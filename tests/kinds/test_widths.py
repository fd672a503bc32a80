"""Test reading and changing the widths of layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.kinds import (
    count_output_channels,
    find_kind,
    free_widths,
    get_width,
    layer_work,
    make_layer,
    make_op,
    output_shape,
    resize_layer,
    width_step,
)
from joulecast.records import Setup
from kind_examples import LAYERS, WITH_WIDTHS


@pytest.mark.parametrize("name", WITH_WIDTHS)
@pytest.mark.parametrize("factor", [1, 2, 5])
def test_resizing_back_returns_the_same_layer(name, factor):
    layer = LAYERS[name]
    before = {width: get_width(layer, width) for width in free_widths(layer)}
    wanted = {width: factor * value for width, value in before.items()}
    resized = resize_layer(layer, **wanted)
    assert {width: get_width(resized, width) for width in wanted} == wanted
    assert resize_layer(resized, **before) == layer
    assert free_widths(resized) == free_widths(layer)
    if factor > 1:
        work, other = layer_work(layer, Setup()), layer_work(resized, Setup())
        assert other.forward.size_bytes > work.forward.size_bytes


@pytest.mark.parametrize("name", WITH_WIDTHS)
@given(times=st.integers(1, 40))
def test_multiples_of_the_width_step_make_valid_layers(name, times):
    layer = LAYERS[name]
    step = width_step(layer)
    wanted = dict.fromkeys(free_widths(layer), step * times)
    resized = resize_layer(layer, **wanted)
    assert {width: get_width(resized, width) for width in wanted} == wanted
    assert min(output_shape(resized)) >= 1
    assert layer_work(resized, Setup()).forward.size_bytes > 0
    groups = resized.sizes.get("groups", 1)
    if find_kind(layer.kind).is_convolution:
        assert resized.sizes["cin"] % groups == 0
        assert resized.sizes["cout"] % groups == 0


def test_resized_depthwise_convolution_is_still_depthwise():
    resized = resize_layer(LAYERS["conv2d depthwise"], cout=20)
    assert [resized.sizes[name] for name in ("cin", "cout", "groups")] == [10, 20, 10]
    assert free_widths(resized) == ("cout",)
    assert width_step(resized) == 2


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (LAYERS["conv2d"], 6),
        (LAYERS["embedding"], 8),
        (LAYERS["lstm"], 6),
        (LAYERS["sdpa"], 32),
        (LAYERS["layer_norm"], 8),
        (LAYERS["batch_norm"], 6),
        (LAYERS["elementwise"], 6),
        (make_layer("batch_norm", shape=(6, 9)), 6),
        (make_layer("elementwise", fn="relu", shape=(7, 8)), 8),
        (make_layer("pool", (make_op("flatten"),), fn="max", kernel=(2,), shape=(6, 8)), 24),
    ],
)
def test_output_channels_are_counted_along_the_channel_axis(layer, channels):
    assert count_output_channels(layer) == channels
