"""An ONNX graph under construction."""

import pytest

pytest.importorskip("onnxruntime")

import numpy as np
import onnx

from joulecast.records import Setup
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session


def run(graph, out, x):
    session = open_session(graph.make_model([out]).SerializeToString(), Setup(threads=1))
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("sample", [(4, 3), (2, 2), (5, 4), (12,)])
def test_elements_are_cut_or_repeated_to_fit(sample):
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    graph = OnnxGraph(2)
    out = graph.fit(graph.add_input("x", x.shape, False), sample)
    expected = np.stack([np.resize(one, sample) for one in x])
    assert out.shape == expected.shape
    assert (run(graph, out, x) == expected).all()


def test_what_changes_nothing_adds_no_node():
    graph = OnnxGraph(2)
    x = graph.add_input("x", (2, 3), False)
    for same in (graph.reshape(x, (2, 3)), graph.transpose(x, (0, 1)), graph.slice(x, 1, 0, 3)):
        assert same == x
    assert graph.fit(x, (3,)) == x
    assert not graph.nodes


def test_equal_numbers_are_shared_and_weights_are_not():
    graph = OnnxGraph(1)
    assert graph.add_numbers(2.0) == graph.add_numbers(2.0)
    assert graph.add_integers([1]) != graph.add_numbers([1])
    weight = np.ones((2, 3), dtype="float32")
    assert graph.add_weight(weight) != graph.add_weight(weight)
    assert graph.weights_bytes == 4 + 8 + 4 + 2 * 24


def test_model_is_valid():
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, 3), False)
    model = graph.make_model([graph.add("Relu", [x], x.shape)])
    onnx.checker.check_model(model, full_check=True)
