"""Names of pieces: which of them share residuals."""

from dataclasses import replace

from joulecast.estimators.additive.layers import find_class, set_up_layer
from joulecast.kinds import make_layer
from joulecast.records import Setup
from joulecast.variants import Part

CONV = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1)
DEPTHWISE = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1, groups=8)
GROUPED = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1, groups=2)


def test_grouped_convolutions_have_names_and_a_class_of_their_own():
    names = [
        set_up_layer(Part("hidden", (layer,)), Setup()).kind for layer in (CONV, DEPTHWISE, GROUPED)
    ]
    assert names == ["conv2d", "conv2d depthwise", "conv2d grouped"]
    assert find_class(CONV) == "convolution"
    assert find_class(DEPTHWISE) == find_class(GROUPED) == "grouped convolution"


def test_memory_formats_and_losses_show_in_names():
    last = replace(CONV, channels_last=True)
    assert set_up_layer(Part("hidden", (last,)), Setup()).kind == "conv2d channels last"
    linear = make_layer("linear", cin=8, cout=8)
    assert (
        set_up_layer(Part("hidden", (replace(linear, transposed=(0,)),)), Setup()).kind
        == "linear transposed"
    )
    assert set_up_layer(Part("output", (linear,)), Setup()).kind == "linear+loss"
