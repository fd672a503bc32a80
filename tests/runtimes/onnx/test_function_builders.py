"""Functions of elements in ONNX."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

from joulecast.kinds import make_layer, make_op
from joulecast.records import Input, Network
from joulecast.runtimes.onnx.function_builders import FUNCTIONS, REDUCTIONS
from onnx_comparison import compare_with_torch, run_both

# Not defined for negative numbers.
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_function_computes_as_in_pytorch(fn):
    first = make_op("elementwise", fn="softmax" if fn in POSITIVE else "copy")
    layer = make_layer("linear", (first, make_op("elementwise", fn=fn)), cin=5, cout=6)
    compare_with_torch(Network((layer,), Input((5,))))


# In PyTorch a norm becomes passes over the elements.
@pytest.mark.parametrize("fn", sorted(REDUCTIONS.keys() - {"norm"}))
@pytest.mark.parametrize("out", [(7,), (4, 1), (1,)])
def test_reduction_computes_as_in_pytorch(fn, out):
    layer = make_layer("elementwise", fn=fn, shape=(4, 7), out=out)
    compare_with_torch(Network((layer,), Input((4, 7))))


@pytest.mark.parametrize(
    ("mode", "shape", "out"),
    [
        ("nearest", (3, 4, 5), (3, 8, 10)),
        ("bilinear", (3, 4, 5), (3, 8, 10)),
        ("bicubic", (3, 4, 5), (3, 8, 10)),
        ("linear", (3, 6), (3, 12)),
    ],
)
def test_interpolation_computes_as_in_pytorch(mode, shape, out):
    layer = make_layer("elementwise", fn=f"interpolate {mode}", shape=shape, out=out)
    compare_with_torch(Network((layer,), Input(shape)))


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div"])
def test_operand_is_broadcast_as_in_pytorch(fn):
    layer = make_layer("elementwise", fn=fn, shape=(6, 8), params=8)
    compare_with_torch(Network((layer,), Input((6, 8))))


def test_elements_are_repeated_as_in_pytorch():
    layer = make_layer("elementwise", fn="repeat_interleave", shape=(3, 4), out=(6, 4))
    compare_with_torch(Network((layer,), Input((3, 4))))


def test_unknown_function_becomes_as_many_passes():
    layer = make_layer("elementwise", fn="my_function", shape=(6, 8), passes=3)
    expected, found = run_both(Network((layer,), Input((6, 8))))
    assert (found == expected).all()


def test_concatenation_along_another_axis_has_all_elements():
    layer = make_layer("elementwise", fn="concat along 2", inputs=2, shape=(3, 4, 10))
    layer = replace(layer, reads=(1, 1), join="concat")
    expected, found = run_both(Network((layer,), Input((3, 4, 5))))
    assert found.shape == expected.shape == (2, 3, 4, 10)
    assert sorted(found.ravel()) == sorted(expected.ravel())
