"""Operators in ONNX: every kind runs, and gives what PyTorch gives on the same weights."""

import pytest

pytest.importorskip("onnxruntime")

from joulecast.errors import NetError
from joulecast.kinds import KINDS, make_layer, make_op
from joulecast.records import Input, Network
from joulecast.runtimes.onnx.build import add_network, draw_weights
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.op_builders import OP_BUILDERS
from kind_examples import LAYERS
from onnx_comparison import compare_with_torch, make_network, run_both

# They move as many elements as the network does, not the same ones.
PLACEHOLDERS = ("index", "scatter", "slice", "grouped_linear")


def test_every_kind_has_a_builder():
    assert {*OP_BUILDERS} == {*KINDS}


# Keys of earlier tokens are drawn: test_sequence_builders.py compares attention.
@pytest.mark.parametrize("name", [name for name, one in LAYERS.items() if one.kind != "sdpa"])
def test_layer_computes_as_in_pytorch(name):
    layer = LAYERS[name]
    if layer.kind not in PLACEHOLDERS:
        compare_with_torch(make_network(layer))
        return
    expected, found = run_both(make_network(layer))
    assert found.shape == expected.shape


@pytest.mark.parametrize(
    "op",
    [
        make_op("pool", fn="avg", kernel=(2, 4), stride=(2, 3), padding=(0, 0)),
        make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
        make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(0, 0), ceil=1),
        make_op("pool", fn="avg", kernel=(3, 2), stride=(2, 2), padding=(1, 1)),
        make_op("pool", fn="adaptive_avg", kernel=(1, 1)),
        make_op("pool", fn="adaptive_max", kernel=(3, 2)),
        make_op("batch_norm", affine=0),
        make_op("group_norm", groups=2, affine=0),
        make_op("layer_norm", dims=2, bias=0),
        make_op("layer_norm", dims=1, affine=0),
        make_op("rms_norm", spelled=1),
        make_op("permute", order=(2, 0, 1)),
    ],
    ids=lambda op: f"{op.kind} {op.sizes}",
)
def test_operator_after_a_convolution_computes_as_in_pytorch(op):
    layer = make_layer("conv2d", (op,), cin=3, cout=4, space=(6, 8), kernel=3, padding=1)
    compare_with_torch(Network((layer,), Input((3, 6, 8))))


def test_pooling_that_onnx_lacks_is_refused():
    pool = make_op("pool", fn="adaptive_avg", kernel=(4, 4))
    layer = make_layer("conv2d", (pool,), cin=3, cout=4, space=(6, 8), kernel=1)
    with pytest.raises(NetError, match=r"no adaptive pooling from \(6, 8\) to \(4, 4\)"):
        add(layer)


def test_one_pixel_is_expanded_as_in_pytorch():
    pool = make_op("pool", fn="adaptive_avg", kernel=(3, 2))
    layer = make_layer("conv2d", (pool,), cin=3, cout=4, space=(1, 1), kernel=1)
    compare_with_torch(Network((layer,), Input((3, 1, 1))))


def test_view_of_other_elements_is_refused():
    layer = make_layer("view", out=(5,), shape=(2, 3))
    with pytest.raises(NetError, match="cannot be viewed"):
        add(layer)


def add(layer):
    network = make_network(layer)
    graph = OnnxGraph(1)
    add_network(
        graph, network, graph.add_input("x", (1, *network.input.shape), False), draw_weights(0)
    )
