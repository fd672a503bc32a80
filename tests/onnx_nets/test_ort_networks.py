"""Networks as ONNX graphs: every kind computes what PyTorch computes on the same weights."""

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")

import numpy as np
import torch

from joulecast.families import make_family
from joulecast.onnx_nets.ort_graph import OnnxGraph
from joulecast.onnx_nets.ort_operators import (
    FUNCTIONS,
    OP_BUILDERS,
    REDUCTIONS,
    add_network,
    draw_weights,
)
from joulecast.onnx_nets.ort_runtime import open_session, optimise
from joulecast.operators import KINDS, input_shape, make_layer, make_op
from joulecast.records import Input, Network, Setup
from joulecast.system.errors import NetError
from joulecast.torch_nets.build import build_seeded
from kind_examples import LAYERS, POOLS, conv, make_pool

BATCH = 2
VOCABULARY = 100
SETUP = Setup(batch=BATCH, phase="inference", threads=1)


def make_network(layer):
    """Return a network of one layer."""
    vocabulary = VOCABULARY if layer.kind.startswith("embedding") else 0
    return Network((layer,), Input(input_shape(layer), vocabulary))


def run_both(network):
    """Return what PyTorch and ONNX Runtime compute for one batch, on the same weights."""
    net = build_seeded(network, 0).eval()
    with torch.no_grad():
        for weight in net.parameters():
            # So that a bias or a scale that is left out shows.
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    layers = net.layer_modules()

    def weights(number, name, shape, start):
        module = layers[number]
        array = {**dict(module.named_parameters()), **dict(module.named_buffers())}[name]
        assert tuple(array.shape) == tuple(shape)
        return array.detach().numpy()

    graph = OnnxGraph(BATCH)
    shape = (BATCH, *network.input.shape)
    x = graph.add_input("x", shape, bool(network.input.vocabulary))
    model = graph.make_model([add_network(graph, network, x, weights)])
    batch = draw_batch(network.input)
    with torch.no_grad():
        expected = net(batch).numpy()
    session = open_session(model.SerializeToString(), SETUP)
    (found,) = session.run(None, {"x": batch.numpy()})
    return expected, found


def draw_batch(given):
    draw, shape = torch.Generator().manual_seed(2), (BATCH, *given.shape)
    if given.vocabulary:
        return torch.randint(0, given.vocabulary, shape, generator=draw)
    return torch.randn(shape, generator=draw)


def add(network, batch=1):
    """Return the graph of a network with weights drawn for it, and its result."""
    graph = OnnxGraph(batch)
    x = graph.add_input("x", (batch, *network.input.shape), bool(network.input.vocabulary))
    return graph, add_network(graph, network, x, draw_weights(0))


def image_net(*layers, space=(6, 8)):
    return Network(layers, Input((3, *space)))


AFTER_CONV = (
    *POOLS,
    make_op("batch_norm", affine=0),
    make_op("group_norm", groups=2, affine=0),
    make_op("layer_norm", dims=2, bias=0),
    make_op("layer_norm", dims=1, affine=0),
    make_op("rms_norm", spelled=1),
    make_op("permute", order=(2, 0, 1)),
)
SEVEN = {"head_dim": 8, "tokens": 7, "kv_tokens": 7}
# Not defined for negative numbers.
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
LINEAR = make_layer("linear", cin=12, cout=16, lead=(7,))
MUL = make_layer("elementwise", fn="mul", inputs=2, shape=(4, 6, 8))
SDPA = make_layer("sdpa", heads=4, kv_heads=4, head_dim=4, tokens=7, kv_tokens=7)
FAMILIES = ("lenet5", "cnn5:6,7,8,9", "har", "lstm:16,2", "transformer:32,2", "resnet18:8,1,1,1,1")
# They move as many elements as the network does, not the same ones.
PLACEHOLDERS = ("index", "scatter", "slice", "grouped_linear")
NETWORKS = {
    **{name: make_family(name) for name in FAMILIES},
    # Keys of earlier tokens are drawn: others compare attention.
    **{name: make_network(one) for name, one in LAYERS.items() if one.kind != "sdpa"},
    **{f"joined by {one}": image_net(
        conv(3, 4, kernel=3, padding=1), conv(3, 4, reads=(2,)),
        conv(8 if one == "concat" else 4, 5, reads=(1, 2), join=one),
    ) for one in ("add", "mul", "concat")},
    # A view that no kind describes was lost when the module was read.
    "input of another shape": Network(
        (make_layer("linear", cin=6, cout=10), make_layer("linear", cin=4, cout=3, lead=(3,))),
        Input((6,)),
    ),
    "fewer elements are broadcast": image_net(
        conv(3, 4), conv(4, 4, (make_pool("adaptive_avg", 1, 1),)),
        replace(MUL, reads=(1, 2), join="mul"),
    ),
    "concatenated inputs are fitted": image_net(
        conv(3, 4), conv(10, 2, reads=(1, 1), join="concat")
    ),
    "one pixel is expanded": image_net(
        conv(3, 4, (make_pool("adaptive_avg", 3, 2),), (1, 1)), space=(1, 1)
    ),
    "query, key and value of three layers": Network(
        (*(replace(LINEAR, reads=(back,)) for back in (1, 2, 3)), replace(SDPA, reads=(3, 2, 1))),
        Input((7, 12)),
    ),
    **{f"convolution and {op.kind} {op.sizes}": image_net(
        conv(3, 4, (op,), kernel=3, padding=1)
    ) for op in AFTER_CONV},
    **{f"function {fn}": make_network(make_layer(
        "linear", (make_op("elementwise", fn="softmax" if fn in POSITIVE else "copy"),
        make_op("elementwise", fn=fn)), cin=5, cout=6,
    )) for fn in FUNCTIONS},
    **{f"{layer.kind} {layer.sizes}": make_network(layer) for layer in (
        # In PyTorch a norm becomes passes over the elements.
        *(make_layer("elementwise", fn=fn, shape=(4, 7), out=out)
            for fn in sorted(REDUCTIONS.keys() - {"norm"}) for out in ((7,), (4, 1), (1,))),
        *(make_layer("elementwise", fn=f"interpolate {mode}", shape=(3, 4, 5), out=(3, 8, 10))
            for mode in ("nearest", "bilinear", "bicubic")),
        make_layer("elementwise", fn="interpolate linear", shape=(3, 6), out=(3, 12)),
        *(make_layer("elementwise", fn=fn, shape=(6, 8), params=8)
            for fn in ("add", "sub", "mul", "div")),
        make_layer("elementwise", fn="repeat_interleave", shape=(3, 4), out=(6, 4)),
        make_layer("elementwise", fn="my_function", shape=(6, 8), passes=3),
        *(make_layer("sdpa", heads=4, kv_heads=kv_heads, causal=causal, **SEVEN)
            for kv_heads in (2, 4) for causal in (0, 1)),
        make_layer("sdpa", heads=4, kv_heads=4, windows=3, **SEVEN),
        *(make_layer(kind, cin=5, hidden=6, tokens=7, depth=2, bidirectional=1, bias=bias)
            for kind in ("lstm", "gru", "rnn") for bias in (0, 1)),
        make_layer("grouped_linear", cin=12, cout=5, lead=(6,), experts=3),
        # The first element is expanded.
        make_layer("gradient_copy", shape=(1, 8), out=(4, 8)),
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_network_computes_as_in_pytorch(name):
    network = NETWORKS[name]
    expected, found = run_both(network)
    assert found.shape == expected.shape
    if name not in LAYERS or LAYERS[name].kind not in PLACEHOLDERS:
        scale = float(np.abs(expected).max())
        assert scale > 0
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale)


def test_every_kind_has_a_builder():
    assert {*OP_BUILDERS} == {*KINDS}


LENET = replace(make_family("lenet5"), buildable=False, name="mine")
VIEW = replace(make_layer("view", out=(5,), shape=(2, 3)), name="head")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (LENET, "mine was read from a file or module that cannot be"),
        (Network(), "no layers"),
        (Network((VIEW,), Input((2, 3))), "layer head: a tensor of shape"),
        (
            image_net(conv(3, 4, (make_pool("adaptive_avg", 4, 4),))),
            r"no adaptive pooling from \(6, 8\) to \(4, 4\)",
        ),
    ],
)
def test_network_that_cannot_be_built_is_refused(network, message):
    with pytest.raises(NetError, match=message):
        add(network)


def test_concatenation_along_another_axis_has_all_elements():
    layer = make_layer("elementwise", fn="concat along 2", inputs=2, shape=(3, 4, 10))
    layer = replace(layer, reads=(1, 1), join="concat")
    expected, found = run_both(Network((layer,), Input((3, 4, 5))))
    assert found.shape == expected.shape == (2, 3, 4, 10)
    assert sorted(found.ravel()) == sorted(expected.ravel())


def test_earlier_tokens_are_an_input_of_the_graph():
    # A constant would be packed before it runs, which no cache of keys is.
    layer = make_layer("sdpa", heads=4, kv_heads=2, head_dim=8, tokens=1, kv_tokens=9)
    graph, _ = add(Network((layer,), Input((1, 64))), batch=2)
    assert [value.shape for value in graph.inputs] == [(2, 1, 64), *2 * [(2, 2, 9, 8)]]


def test_scale_of_attention_is_fused_with_its_product():
    # As in an exported file: otherwise kernels would run that networks do not run.
    graph, out = add(make_network(SDPA))
    optimised, _ = optimise(graph.make_model([out]), SETUP)
    kernels = {node.op_type for node in optimised.graph.node}
    assert "FusedMatMul" in kernels and "Mul" not in kernels


@pytest.mark.parametrize(
    "sizes",
    [
        {"axes": (0,), "shape": (7, 8), "out": (5, 8)},
        {"axes": (1,), "shape": (3, 7, 8), "out": (3, 5, 8)},
        {"axes": (0,), "across": 1, "shape": (7, 8), "out": (9, 8)},
        {"axes": (5,), "shape": (7, 8), "out": (7, 3)},
    ],
    ids=str,
)
def test_selected_elements_are_those_of_the_input(sizes):
    expected, found = run_both(make_network(make_layer("index", fn="index", **sizes)))
    assert found.shape == expected.shape
    assert {*found.ravel()} <= {*draw_batch(Input(sizes["shape"])).numpy().ravel()}


def test_sum_of_scattered_elements_is_that_of_both():
    layer = make_layer("scatter", fn="index_add", shape=(7, 8), source=(9, 8))
    expected, found = run_both(make_network(layer))
    assert found.sum() == pytest.approx(expected.sum(), abs=1e-3)


def test_slice_has_the_first_elements():
    layer = make_layer("slice", shape=(16, 8), out=(8,))
    _, found = run_both(make_network(layer))
    assert (found == draw_batch(Input((16, 8))).numpy()[:, 0]).all()


def test_what_changes_nothing_adds_no_node_and_numbers_are_shared():
    graph = OnnxGraph(2)
    x = graph.add_input("x", (2, 3))
    for same in (x.reshape(2, 3), x.transpose(0, 1), x.slice(1, 0, 3), x.fit((3,))):
        assert same == x
    assert not graph.nodes
    assert graph.share(2.0) == graph.share(2.0) != graph.share(2)
    weight = np.ones((2, 3), dtype="float32")
    x + weight + weight
    assert graph.weights_bytes == 4 + 8 + 2 * 24
