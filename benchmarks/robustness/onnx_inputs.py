"""Make an ONNX file, and damage its graph: other operators, sizes, names and connections."""

from __future__ import annotations

import random
from typing import Any

import onnx
from onnx import TensorProto, helper

_NUMBERS = (-(2**63), -1, 0, 1, 2, 7, 2**31, 2**62, 10**12)
_OPERATORS = (
    "Loop", "If", "Einsum", "Tile", "TopK", "Resize", "Pad", "Range", "ConstantOfShape", "Expand",
    "OneHot", "GatherND", "LSTM", "Attention", "Split", "Slice", "Squeeze", "Concat", "NonZero",
    "ConvTranspose", "QLinearConv", "ScatterND", "Pow", "Shape", "Wobble",
)  # fmt: skip
_LOCATIONS = ("/etc/passwd", "../x", "w.bin", "\0", "a" * 3000, "C:\\x")


def make_onnx_file() -> bytes:
    """Return a small model with convolutions, attention, and shapes that are computed."""
    nodes = [
        _node("Conv", "x w b", "c", pads=[1, 1, 1, 1], name="/stem/Conv"),
        _node("Sigmoid", "c", "s"),
        _node("Mul", "c s", "a"),
        _node("Shape", "a", "sizes"),
        _node("Gather", "sizes zero", "batch"),
        _node("Concat", "batch rest", "wanted", axis=0),
        _node("Reshape", "a wanted", "r"),
        _node("Transpose", "r", "t", perm=[0, 2, 1]),
        _node("MatMul", "t q", "query", name="/block.0/q/MatMul"),
        _node("Transpose", "t", "key", perm=[0, 2, 1]),
        _node("MatMul", "query key", "scores"),
        _node("Softmax", "scores", "p", axis=-1),
        _node("MatMul", "p t", "o"),
        _node("Add", "o t", "sum"),
        _node("ReduceMean", "sum axes", "mean", keepdims=0),
        _node("Gemm", "mean v", "y", transB=1, name="/head/Gemm"),
    ]
    weights = [
        _make_weight("w", 8, 3, 3, 3),
        _make_weight("b", 8),
        _make_weight("q", 8, 8),
        _make_weight("v", 10, 8),
        helper.make_tensor("zero", TensorProto.INT64, (1,), (0,)),
        helper.make_tensor("rest", TensorProto.INT64, (2,), (8, -1)),
        helper.make_tensor("axes", TensorProto.INT64, (1,), (1,)),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 3, 6, 6))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 10))
    graph = helper.make_graph(nodes, "net", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def damage_graph(content: bytes, rng: random.Random) -> bytes:
    """Return a model whose graph was changed in a few places, so that it can still be parsed."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_DAMAGES)(model.graph, rng)
    damaged: bytes = model.SerializeToString()
    return damaged


def _change_attribute(graph: Any, rng: random.Random) -> None:
    node = rng.choice([one for one in graph.node if one.attribute])
    attribute = rng.choice(node.attribute)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_NUMBERS)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(_NUMBERS)
    else:
        attribute.type = rng.randrange(12)


def _change_operator(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    node.op_type = rng.choice((*_OPERATORS, *(one.op_type for one in graph.node)))
    node.domain = rng.choice(("", "", "", "com.microsoft", "com.acme"))


def _change_input(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    names = [name for one in graph.node for name in (*one.input, *one.output)]
    node.input[rng.randrange(len(node.input))] = rng.choice((*names, "", "\x1b[2J"))


def _add_input(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    node.input.append(rng.choice((*node.output, *node.input)))


def _change_weight(graph: Any, rng: random.Random) -> None:
    weight = rng.choice(graph.initializer)
    weight.dims[rng.randrange(len(weight.dims))] = rng.choice(_NUMBERS)


def _move_weight(graph: Any, rng: random.Random) -> None:
    weight = rng.choice(graph.initializer)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = rng.choice(("location", "length")), rng.choice(_LOCATIONS)


def _change_constant(graph: Any, rng: random.Random) -> None:
    constant = rng.choice([one for one in graph.initializer if one.int64_data])
    constant.int64_data[rng.randrange(len(constant.int64_data))] = rng.choice(_NUMBERS)


def _change_shape(graph: Any, rng: random.Random) -> None:
    dims = graph.input[0].type.tensor_type.shape.dim
    rng.choice(dims).dim_value = rng.choice(_NUMBERS)


def _remove_node(graph: Any, rng: random.Random) -> None:
    del graph.node[rng.randrange(len(graph.node))]


_DAMAGES = (
    _change_attribute, _change_operator, _change_input, _add_input, _change_weight, _move_weight,
    _change_constant, _change_shape, _remove_node,
)  # fmt: skip


def _node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def _make_weight(name: str, *shape: int) -> Any:
    size = 4
    for one in shape:
        size *= one
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(size), raw=True)
