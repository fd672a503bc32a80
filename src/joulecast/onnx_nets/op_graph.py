"""Turn the layers of a network into a graph of single operators.

They are named as in kernel datasets: ``conv``, ``dwconv``, ``fc``, ``bn``, ``relu`` ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.operators import Shape, find_kind, input_shape
from joulecast.records import Layer, Network, Op
from joulecast.variants import unfold_blocks

DATA = -1
"""The source of operators that read the network's input."""


@dataclass(frozen=True)
class OpNode:
    """An operator of a network.

    Attributes:
        op: Its kind and sizes.
        name: Its name in kernel datasets.
        layer: The layer that it belongs to.
        layer_index: Position of that layer, with blocks unfolded.
        begins_layer: It is the layer's first operator, not one of its tail.
        sources: Numbers of the operators whose results it reads; ``DATA`` for the network's input.
        in_shape: Shape of one input sample.
        out_shape: Shape of one output sample.
    """

    op: Op
    name: str
    layer: Layer
    layer_index: int
    begins_layer: bool
    sources: tuple[int, ...]
    in_shape: Shape
    out_shape: Shape


def list_op_nodes(network: Network) -> tuple[OpNode, ...]:
    """Return the operators of a network in call order."""
    nodes: list[OpNode] = []
    last_nodes: list[int] = []
    for index, layer in enumerate(unfold_blocks(network.layers)):
        sources = tuple(last_nodes[index - back] if back <= index else DATA for back in layer.reads)
        shape = input_shape(layer)
        for number, op in enumerate((Op(layer.kind, layer.sizes), *layer.tail)):
            out_shape = find_kind(op.kind).out_shape(op.sizes, shape)
            own_sources = (len(nodes) - 1,) if number else sources or (DATA,)
            name = name_op(op, shape)
            nodes.append(OpNode(op, name, layer, index, not number, own_sources, shape, out_shape))
            shape = out_shape
        last_nodes.append(len(nodes) - 1)
    return tuple(nodes)


def list_readers(nodes: Sequence[OpNode]) -> list[list[int]]:
    """Return which operators read the result of each."""
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for source in dict.fromkeys(node.sources):
            if source != DATA:
                readers[source].append(number)
    return readers


VIEWS = frozenset({"view", "transpose", "split"})
"""Operators that describe the same memory differently; some runtimes copy it all the same."""

_NAMES = {
    "linear": "fc",
    "grouped_linear": "grouped-fc",
    "batch_norm": "bn",
    "layer_norm": "ln",
    "rms_norm": "rms-norm",
    "group_norm": "gn",
    "sdpa": "attention",
    "permute": "transpose",
    "flatten": "view",
    "slice": "split",
    "gradient_copy": "split",
    "last": "split",
    "index": "gather",
    "embedding_bag": "embedding-bag",
}
# ReLU6 costs what ReLU costs, and datasets do not tell them apart.
_FUNCTIONS = {"relu6": "relu", "hardtanh": "relu", "hardswish": "hswish", "hardsigmoid": "hsigmoid"}
_POOLS = {"max": "maxpool", "avg": "avgpool", "adaptive_max": "maxpool", "adaptive_avg": "avgpool"}
# Functions that read more than one element of an input for each element of the output.
_NOT_POINTWISE = (
    "softmax",
    "log_softmax",
    "cross_entropy",
    "cumsum",
    "pad",
    "roll",
    "interpolate",
    "concat",
    "stack",
    "sum",
    "mean",
    "repeat",
    "flip",
)
_IMAGE_AXES = 3


def name_op(op: Op, shape: Shape) -> str:
    """Return the name of an operator on samples of this shape."""
    kind = find_kind(op.kind)
    if kind.is_convolution:
        return _name_convolution(op)
    if kind.combines_inputs:
        return _name_function(op, shape)
    if _is_pooling(op):
        is_global = op.sizes["fn"] == "adaptive_avg" and math.prod(op.sizes["kernel"]) == 1
        return "global-avgpool" if is_global else _POOLS[op.sizes["fn"]]
    return _NAMES.get(op.kind, op.kind)


def is_pointwise(op: Op) -> bool:
    """Return whether each output element depends on one element of every input.

    So does a batch norm in inference, whose statistics are constants.
    """
    if not find_kind(op.kind).combines_inputs:
        return _NAMES.get(op.kind) == "bn"
    if op.sizes["axes"] or "out" in op.sizes:
        return False
    return not str(op.sizes["fn"]).startswith(_NOT_POINTWISE)


def _is_pooling(op: Op) -> bool:
    return op.sizes.get("fn") in _POOLS and "kernel" in op.sizes


def _name_convolution(op: Op) -> str:
    groups, cin = op.sizes["groups"], op.sizes["cin"]
    dims = find_kind(op.kind).spatial_dims
    name = "conv" if dims == 2 else f"conv{dims}d"
    if "output_padding" in op.sizes:  # only transposed ones have it
        return f"{name}-transpose"
    if groups == 1:
        return name
    return f"dw{name}" if groups == cin else f"grouped-{name}"


def _name_function(op: Op, shape: Shape) -> str:
    fn = str(op.sizes["fn"])
    if fn.startswith("concat"):
        return "concat"
    # An average over all positions of an image; one over tokens is a reduction like others.
    if fn == "mean" and len(shape) >= _IMAGE_AXES and op.sizes["axes"] == (*range(1, len(shape)),):
        return "global-avgpool"
    return _FUNCTIONS.get(fn, fn.replace("_", "-").replace(" ", "-"))
