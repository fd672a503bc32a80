"""Test that operators get their defaults and invalid ones are refused."""

import pytest

from joulecast.errors import InputError
from joulecast.families import FAMILIES, make_family
from joulecast.kinds import find_kind, input_shape, make_layer, make_op, output_shape
from joulecast.records import Input
from kind_examples import POOL


def test_one_integer_stands_for_all_spatial_axes():
    short = make_layer("conv2d", cin=1, cout=1, space=8, kernel=3)
    long = make_layer(
        "conv2d", cin=1, cout=1, space=(8, 8), kernel=(3, 3), stride=(1, 1), padding=(0, 0)
    )
    assert short == long


def test_pooling_stride_defaults_to_the_kernel():
    assert make_op("pool", fn="max", kernel=(2, 3)).sizes["stride"] == (2, 3)
    assert make_op("pool", fn="max", kernel=(2, 3)).sizes["padding"] == (0, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: find_kind("teleport"),
        lambda: make_op("teleport"),
        lambda: make_layer("linear", cin=3),
        lambda: make_layer("linear", cin=3, cout=2, colour=1),
        lambda: output_shape(make_layer("conv2d", cin=1, cout=1, space=2, kernel=5)),
        lambda: output_shape(make_layer("pool", **{**POOL, "kernel": (9, 9)})),
        lambda: input_shape(make_layer("elementwise", fn="relu")),
    ],
)
def test_invalid_operator_is_refused_in_one_line(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_first_layer_of_a_family_takes_its_input():
    for name in FAMILIES:
        network = make_family(name)
        assert isinstance(network.input, Input)
        assert input_shape(network.layers[0]) == network.input.shape
