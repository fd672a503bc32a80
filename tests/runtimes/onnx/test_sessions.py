"""Sessions of ONNX Runtime."""

import os

import pytest

pytest.importorskip("onnxruntime")

import numpy as np

from joulecast.records import Setup
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session


def make_model():
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, 3), False)
    return graph.make_model([graph.add("Relu", [x], x.shape)])


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_threads_are_those_of_the_setup(threads):
    session = open_session(make_model().SerializeToString(), Setup(threads=threads))
    options = session.get_session_options()
    expected = threads or len(os.sched_getaffinity(0))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (expected, 1)
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_optimised_graph_is_written_and_run_as_it_is(tmp_path):
    path = tmp_path / "optimised.onnx"
    open_session(make_model().SerializeToString(), Setup(threads=1), path)
    session = open_session(str(path), Setup(threads=1), is_optimised=True)
    (found,) = session.run(None, {"x": np.array([[-1.0, 0.0, 2.0]], dtype="float32")})
    assert found.tolist() == [[0.0, 0.0, 2.0]]
