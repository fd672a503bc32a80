"""Networks as ONNX graphs: they compute what PyTorch computes on the same weights."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

from joulecast.errors import NetError
from joulecast.families import make_family
from joulecast.kinds import make_layer, make_op
from joulecast.records import Input, Network
from joulecast.runtimes.onnx.build import add_network, draw_weights
from joulecast.runtimes.onnx.graph import OnnxGraph
from onnx_comparison import compare_with_torch, run_both

NAMES = ("lenet5", "cnn5:6,7,8,9", "har", "lstm:16,2", "transformer:32,2", "resnet18:8,1,1,1,1")


@pytest.mark.parametrize("name", NAMES)
def test_family_computes_as_in_pytorch(name):
    compare_with_torch(make_family(name))


@pytest.mark.parametrize("join", ["add", "mul", "concat"])
def test_joined_inputs_compute_as_in_pytorch(join):
    first = make_layer("conv2d", cin=3, cout=4, space=(6, 6), kernel=3, padding=1)
    second = replace(first, reads=(2,))
    channels = 8 if join == "concat" else 4
    last = make_layer("conv2d", cin=channels, cout=5, space=(6, 6), kernel=1)
    last = replace(last, reads=(1, 2), join=join)
    compare_with_torch(Network((first, second, last), Input((3, 6, 6))))


def test_input_of_another_shape_is_fitted_as_in_pytorch():
    # A view that no kind describes was lost when the module was read.
    layers = (make_layer("linear", cin=6, cout=10), make_layer("linear", cin=4, cout=3, lead=(3,)))
    compare_with_torch(Network(layers, Input((6,))))


def test_fewer_elements_are_broadcast_as_in_pytorch():
    image = make_layer("conv2d", cin=3, cout=4, space=(6, 6), kernel=1)
    pool = make_op("pool", fn="adaptive_avg", kernel=(1, 1))
    small = replace(make_layer("conv2d", (pool,), cin=4, cout=4, space=(6, 6), kernel=1))
    scaled = make_layer("elementwise", fn="mul", inputs=2, shape=(4, 6, 6))
    scaled = replace(scaled, reads=(1, 2), join="mul")
    compare_with_torch(Network((image, small, scaled), Input((3, 6, 6))))


def test_concatenated_inputs_are_fitted_as_in_pytorch():
    first = make_layer("conv2d", cin=3, cout=4, space=(6, 6), kernel=1)
    last = replace(make_layer("conv2d", cin=10, cout=2, space=(6, 6), kernel=1), reads=(1, 1))
    expected, found = run_both(Network((first, replace(last, join="concat")), Input((3, 6, 6))))
    assert abs(found - expected).max() < 1e-5


def test_equal_seeds_draw_equal_weights():
    first, again, other = (draw_weights(seed)(0, "weight", (3, 4), None) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert abs(first).max() <= 0.5
    assert (draw_weights(1)(0, "weight", (3,), 1.0) == 1.0).all()


def add(network):
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, *network.input.shape), False)
    return add_network(graph, network, x, draw_weights(0))


def test_network_that_cannot_be_rebuilt_is_refused():
    network = replace(make_family("lenet5"), buildable=False, name="mine")
    with pytest.raises(NetError, match="mine was read from a file or module that cannot be"):
        add(network)
    with pytest.raises(NetError, match="no layers"):
        add(Network())


def test_error_names_the_layer():
    layer = replace(make_layer("view", out=(5,), shape=(2, 3)), name="head")
    with pytest.raises(NetError, match="layer head: a tensor of shape"):
        add(Network((layer,), Input((2, 3))))
