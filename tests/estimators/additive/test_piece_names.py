"""Names of pieces: which of them share residuals."""

from dataclasses import replace

from joulecast.estimators.additive.layers import find_class, name_kind
from joulecast.kinds import make_layer
from joulecast.variants import BLOCK, Part

CONV = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1)
DEPTHWISE = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1, groups=8)
GROUPED = make_layer("conv2d", cin=8, cout=8, space=(8, 8), kernel=3, padding=1, groups=2)


def test_grouped_convolutions_have_names_and_a_class_of_their_own():
    names = [name_kind(Part("hidden", (layer,)), ()) for layer in (CONV, DEPTHWISE, GROUPED)]
    assert names == ["conv2d", "conv2d depthwise", "conv2d grouped"]
    assert find_class(CONV) == "convolution"
    assert find_class(DEPTHWISE) == find_class(GROUPED) == "grouped convolution"


def test_memory_formats_and_losses_show_in_names():
    last = replace(CONV, channels_last=True)
    assert name_kind(Part("hidden", (last,)), ()) == "conv2d channels last"
    linear = make_layer("linear", cin=8, cout=8)
    assert name_kind(Part("hidden", (replace(linear, transposed=(0,)),)), ()) == "linear transposed"
    assert name_kind(Part("output", (linear,)), ()) == "linear+loss"


def test_functions_are_named_by_what_they_compute():
    relu = make_layer("elementwise", fn="relu", shape=(8,))
    assert name_kind(Part("hidden", (relu,)), ()) == "relu"


def test_blocks_are_named_by_their_operators():
    part = Part(BLOCK, (CONV, CONV))
    assert name_kind(part, (("conv2d",),)) != name_kind(part, (("linear",),))
