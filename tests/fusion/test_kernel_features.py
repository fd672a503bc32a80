"""Test the features of kernels: DeepEn2023's, and similar ones for others."""

from dataclasses import replace

import pytest

from joulecast.fusion import FUSION_TABLES, list_kernels
from joulecast.kinds import make_layer, make_op
from joulecast.records import Input, Network, Setup

INFERENCE = Setup(batch=1, phase="inference")
RELU, NORM = make_op("elementwise", fn="relu"), make_op("batch_norm")


def describe(*layers, table="tflite", shape=(16, 8, 8)):
    network = Network(tuple(layers), Input(shape))
    return [
        dict(kernel.features) for kernel in list_kernels(network, INFERENCE, FUSION_TABLES[table])
    ]


def test_convolution():
    sizes = {"cin": 16, "cout": 32, "space": (8, 8), "kernel": 3, "stride": 2, "padding": 1}
    (found,) = describe(make_layer("conv2d", (NORM, RELU), bias=0, **sizes))
    flops = 2 * 16 * 32 * 9 * 16
    expected = {"HW": 8, "C_in": 16, "C_out": 32, "KS": 3, "S": 2, "FLOPs": flops}
    assert expected.items() <= found.items()
    assert found["params"] == 16 * 32 * 9 + 2 * 32


def test_norm_and_activation_have_size_and_channels():
    (found,) = describe(make_layer("batch_norm", (RELU,), shape=(16, 4, 9)))
    assert found == {"HW": 6, "C_in": 16, "batch": 1}


def test_pooling():
    (found,) = describe(
        make_layer("pool", fn="max", kernel=(3, 3), stride=(2, 2), shape=(16, 9, 9))
    )
    assert {"HW": 9, "C_in": 16, "C_out": 16, "KS": 3, "S": 2}.items() <= found.items()
    (found,) = describe(make_layer("pool", fn="adaptive_avg", kernel=(1, 1), shape=(16, 7, 7)))
    assert (found["KS"], found["S"]) == (7, 7)


def test_linear_layer():
    (found,) = describe(make_layer("linear", cin=8, cout=4, lead=(5,)), shape=(5, 8))
    assert found == {"rows": 5, "C_in": 8, "C_out": 4, "FLOPs": 320, "params": 36, "batch": 1}


def test_concatenation_has_the_channels_of_its_inputs():
    sizes = {"cin": 16, "space": (8, 8), "kernel": 1}
    convs = [
        replace(make_layer("conv2d", cout=w, **sizes), reads=(at,)) for at, w in ((1, 4), (2, 8))
    ]
    joined = make_layer("elementwise", fn="concat", shape=(12, 8, 8))
    found = describe(*convs, replace(joined, reads=(2, 1), join="concat"))[-1]
    assert found == {"HW": 8, "C1": 8, "C2": 4, "C3": 0, "C4": 0, "batch": 1}


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (
            make_layer("embedding", vocabulary=50, width=8, lead=(4,)),
            {"vocabulary", "width", "rows"},
        ),
        (make_layer("matmul", m=2, k=3, n=4), {"count", "m", "k", "n", "FLOPs"}),
        (make_layer("lstm", cin=3, hidden=5, tokens=7), {"cin", "hidden", "tokens", "depth"}),
        (
            make_layer("sdpa", heads=2, kv_heads=2, head_dim=4, tokens=6, kv_tokens=6),
            {"heads", "head_dim", "tokens", "FLOPs"},
        ),
    ],
)
def test_other_kernels_have_their_sizes(layer, names):
    (found,) = describe(layer, table="torch")
    assert names <= set(found)
