"""Attention, embeddings and recurrent layers in ONNX."""

import pytest

pytest.importorskip("onnxruntime")

import onnx

from joulecast.kinds import make_layer
from joulecast.records import Input, Network, Setup
from joulecast.runtimes.onnx.build import add_network, draw_weights
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session
from onnx_comparison import compare_with_torch, make_network


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("causal", [0, 1])
def test_packed_attention_computes_as_in_pytorch(kv_heads, causal):
    sizes = {"kv_heads": kv_heads, "tokens": 7, "kv_tokens": 7, "causal": causal}
    compare_with_torch(make_network(make_layer("sdpa", heads=4, head_dim=8, **sizes)))


def test_query_key_and_value_of_three_layers_compute_as_in_pytorch():
    from dataclasses import replace

    linear = make_layer("linear", cin=12, cout=16, lead=(7,))
    layers = [replace(linear, reads=(back,)) for back in (1, 2, 3)]
    sdpa = make_layer("sdpa", heads=4, kv_heads=4, head_dim=4, tokens=7, kv_tokens=7)
    compare_with_torch(Network((*layers, replace(sdpa, reads=(3, 2, 1))), Input((7, 12))))


def test_attention_in_windows_computes_as_in_pytorch():
    sizes = {"kv_heads": 4, "tokens": 7, "kv_tokens": 7, "windows": 3}
    compare_with_torch(make_network(make_layer("sdpa", heads=4, head_dim=8, **sizes)))


def test_earlier_tokens_are_an_input_of_the_graph():
    # A constant would be packed before it runs, which no cache of keys is.
    layer = make_layer("sdpa", heads=4, kv_heads=2, head_dim=8, tokens=1, kv_tokens=9)
    graph = OnnxGraph(2)
    x = graph.add_input("x", (2, 1, 64), False)
    add_network(graph, Network((layer,), Input((1, 64))), x, draw_weights(0))
    assert [value.shape for value, _ in graph.inputs] == [(2, 1, 64), *2 * [(2, 2, 9, 8)]]


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("bias", [0, 1])
def test_deep_recurrent_layer_computes_as_in_pytorch(kind, bias):
    sizes = {"depth": 2, "bidirectional": 1, "bias": bias}
    compare_with_torch(make_network(make_layer(kind, cin=5, hidden=6, tokens=7, **sizes)))


def test_scale_of_attention_is_fused_with_its_product(tmp_path):
    # As in an exported file: otherwise kernels would run that networks do not run.
    layer = make_layer("sdpa", heads=4, kv_heads=4, head_dim=8, tokens=7, kv_tokens=7)
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, 7, 96), False)
    model = graph.make_model([add_network(graph, make_network(layer), x, draw_weights(0))])
    path = tmp_path / "optimised.onnx"
    open_session(model.SerializeToString(), Setup(threads=1), path)
    kernels = [node.op_type for node in onnx.load(path).graph.node]
    assert "FusedMatMul" in kernels
    assert "Mul" not in kernels
