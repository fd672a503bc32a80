"""Run convolutions alone in the layout that they have inside a network.

Between convolutions and pooling, ONNX Runtime keeps images in blocks of channels (NCHWc). A kernel
alone is converted before and after, which inside a network it is not, and which takes longer than a
depthwise convolution itself. Conversions at the edges of a graph are therefore removed: its inputs
and outputs are in blocks.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from joulecast.records import Setup
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session

# With this many channels, blocks of 8 fit and blocks of 16 do not.
_CHANNELS = 24


def open_without_conversions(model: ModelProto, setup: Setup) -> Any:
    """Return a session of a model, without conversions of its inputs and outputs to blocks."""
    optimised, session = _optimise(model, setup)
    if not any(node.op_type.startswith("Reorder") for node in optimised.graph.node):
        return session
    drop_conversions(optimised.graph, find_block_size())
    return open_session(optimised.SerializeToString(), setup, is_optimised=True)


def drop_conversions(graph: GraphProto, block: int) -> None:
    """Remove the nodes that convert a graph's inputs to blocks of channels, or outputs from them.

    Args:
        graph: A graph as ONNX Runtime optimised it.
        block: Channels of a block.
    """
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    kept = []
    for node in graph.node:
        if node.op_type == "ReorderInput" and node.input[0] in inputs:
            graph.input.append(_block(inputs[node.input[0]], node.output[0], block))
        elif node.op_type == "ReorderOutput" and node.output[0] in outputs:
            graph.output.remove(outputs[node.output[0]])
            graph.output.append(_block(outputs[node.output[0]], node.input[0], block))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    for name, value in inputs.items():
        if name not in used:
            graph.input.remove(value)


@lru_cache(maxsize=1)
def find_block_size() -> int:
    """Return how many channels a block has on this processor: 8, or 16 with AVX-512."""
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, _CHANNELS, 8, 8), is_tokens=False)
    weight = graph.add_weight(np.ones((_CHANNELS, _CHANNELS, 3, 3), dtype="float32"))
    out = graph.add("Conv", [x, weight], (1, _CHANNELS, 6, 6))
    optimised, _ = _optimise(graph.make_model([out]), Setup(threads=1))
    sizes = [tensor.dims[0] for tensor in optimised.graph.initializer if len(tensor.dims) == 4]
    return 8 if sizes == [_CHANNELS] else 16


def _optimise(model: ModelProto, setup: Setup) -> tuple[ModelProto, Any]:
    """Return the graph that ONNX Runtime makes of a model, and the session that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, path, keeps_copies=True)
        return onnx.load(path), session


def _block(value: ValueInfoProto, name: str, block: int) -> ValueInfoProto:
    batch, channels, *space = [size.dim_value for size in value.type.tensor_type.shape.dim]
    padded = -(-channels // block) * block
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, padded, *space])
