"""Run kernels alone in the formats that they read and write inside a network.

Between convolutions and pooling, ONNX Runtime keeps images in blocks of channels (NCHWc), and in 8
bits as integers with the channels last. A kernel alone is converted before and after, which inside
a network it is not, and which takes longer than a depthwise convolution itself. Conversions at the
edges of a graph are therefore removed: its inputs and outputs are in the inner format.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from joulecast.records import Setup
from joulecast.runtimes.onnx.graph import OnnxGraph
from joulecast.runtimes.onnx.sessions import open_session

# With this many channels, blocks of 8 fit and blocks of 16 do not.
_CHANNELS = 24
# Activations are quantised to unsigned bytes.
_INTEGERS = TensorProto.UINT8
_TO_CHANNELS_LAST, _TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def open_without_conversions(model: ModelProto, setup: Setup) -> Any:
    """Return a session of a model, without conversions of its inputs and outputs."""
    optimised, session = _optimise(model, setup)
    if not drop_conversions(optimised.graph, find_block_size()):
        return session
    return open_session(optimised.SerializeToString(), setup, is_optimised=True)


def drop_conversions(graph: GraphProto, block: int) -> int:
    """Remove the nodes that convert a graph's inputs or outputs; return how many there were.

    Args:
        graph: A graph as ONNX Runtime optimised it.
        block: Channels of a block.
    """
    before = len(graph.node)
    inputs = {value.name: value for value in graph.input}
    first = []
    for node in graph.node:
        value = inputs.get(node.input[0]) if node.input else None
        converted = None if value is None else _convert_input(node, value, block)
        if converted is None:
            first.append(node)
        else:
            inputs[converted.name] = converted
    outputs = {value.name: value for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(first):
        value = outputs.get(node.output[0])
        converted = None if value is None else _convert_output(node, value, block)
        if converted is None or _is_read(node.output[0], kept):
            kept.insert(0, node)
        else:
            del outputs[node.output[0]]
            outputs[converted.name] = converted
    _replace(graph.node, kept)
    used = {name for node in kept for name in node.input}
    _replace(graph.input, [value for name, value in inputs.items() if name in used])
    _replace(graph.output, [*outputs.values()])
    return before - len(kept)


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


def _convert_input(node: NodeProto, value: ValueInfoProto, block: int) -> ValueInfoProto | None:
    """Return the input that takes the place of a converted one; None if it is not converted."""
    name, shape = node.output[0], _list_sizes(value)
    if node.op_type == "ReorderInput":
        return _describe(name, TensorProto.FLOAT, _pad_channels(shape, block))
    if node.op_type == "QuantizeLinear":
        return _describe(name, _INTEGERS, shape)
    if _is_transpose(node, value, _TO_CHANNELS_LAST):
        return _describe(name, _INTEGERS, [shape[axis] for axis in _TO_CHANNELS_LAST])
    return None


def _convert_output(node: NodeProto, value: ValueInfoProto, block: int) -> ValueInfoProto | None:
    """Return the output that takes the place of a converted one; None if it is not converted."""
    name, shape = node.input[0], _list_sizes(value)
    if node.op_type == "ReorderOutput":
        return _describe(name, TensorProto.FLOAT, _pad_channels(shape, block))
    if node.op_type == "DequantizeLinear":
        return _describe(name, _INTEGERS, shape)
    if _is_transpose(node, value, _TO_CHANNELS_FIRST):
        return _describe(name, _INTEGERS, [shape[axis] for axis in _TO_CHANNELS_LAST])
    return None


def _is_transpose(node: NodeProto, value: ValueInfoProto, order: list[int]) -> bool:
    """Return whether a node changes where the channels of integers are."""
    is_integer = value.type.tensor_type.elem_type == _INTEGERS
    orders = [list(one.ints) for one in node.attribute if one.name == "perm"]
    return node.op_type == "Transpose" and is_integer and orders == [order]


def _is_read(name: str, nodes: list[NodeProto]) -> bool:
    return any(name in node.input for node in nodes)


def _optimise(model: ModelProto, setup: Setup) -> tuple[ModelProto, Any]:
    """Return the graph that ONNX Runtime makes of a model, and the session that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, path, keeps_copies=True)
        return onnx.load(path), session


def _list_sizes(value: ValueInfoProto) -> list[int]:
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


def _describe(name: str, kind: int, shape: list[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _pad_channels(shape: list[int], block: int) -> list[int]:
    batch, channels, *space = shape
    return [batch, -(-channels // block) * block, *space]


def _replace(field: Any, values: list[Any]) -> None:
    del field[:]
    field.extend(values)
