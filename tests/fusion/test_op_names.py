"""Test the names of operators."""

import pytest

from joulecast.fusion.op_names import is_pointwise, name_op
from joulecast.kinds import make_op

CONV = {"space": (8, 8), "kernel": 3}


@pytest.mark.parametrize(
    ("op", "shape", "name"),
    [
        (make_op("conv2d", cin=4, cout=8, **CONV), (4, 8, 8), "conv"),
        (make_op("conv2d", cin=4, cout=4, groups=4, **CONV), (4, 8, 8), "dwconv"),
        (make_op("conv2d", cin=4, cout=4, groups=2, **CONV), (4, 8, 8), "grouped-conv"),
        (make_op("conv_transpose2d", cin=4, cout=4, **CONV), (4, 8, 8), "conv-transpose"),
        (make_op("conv1d", cin=4, cout=4, space=(8,), kernel=3), (4, 8), "conv1d"),
        (make_op("linear", cin=4, cout=4), (4,), "fc"),
        (make_op("elementwise", fn="relu6"), (4,), "relu"),
        (make_op("elementwise", fn="hardswish"), (4,), "hswish"),
        (make_op("elementwise", fn="concat along 2"), (4, 4), "concat"),
        (make_op("elementwise", fn="mean", axes=(1, 2)), (4, 8, 8), "global-avgpool"),
        (make_op("elementwise", fn="mean", axes=(0,)), (4, 8), "mean"),
        (make_op("pool", fn="adaptive_avg", kernel=(1, 1)), (4, 8, 8), "global-avgpool"),
        (make_op("pool", fn="avg", kernel=(2, 2)), (4, 8, 8), "avgpool"),
        (make_op("pool", fn="max", kernel=(2, 2)), (4, 8, 8), "maxpool"),
        (make_op("gradient_copy", out=(2, 8, 8)), (4, 8, 8), "split"),
    ],
)
def test_names(op, shape, name):
    assert name_op(op, shape) == name


def test_pointwise_operators():
    assert is_pointwise(make_op("elementwise", fn="gelu"))
    assert is_pointwise(make_op("batch_norm"))
    assert not is_pointwise(make_op("elementwise", fn="softmax"))
    assert not is_pointwise(make_op("elementwise", fn="sum", axes=(0,)))
    assert not is_pointwise(make_op("layer_norm"))
