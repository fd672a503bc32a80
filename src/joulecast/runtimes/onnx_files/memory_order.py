"""Find where an ONNX graph has to copy: a transposed value that is reshaped.

A transpose alone moves nothing in most frameworks; elements are copied where the axes are then
merged in their new order, as in a channel shuffle or where an image is cut into windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.constant_folding import count_strides
from joulecast.runtimes.onnx_files.graph_values import GraphCall, Node
from joulecast.runtimes.onnx_files.moving_shapes import list_permutation
from joulecast.runtimes.onnx_files.shape_rules import RECURRENT

COPY = "joulecast::copy"
"""The call that is put before a reshape that copies."""

_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# Their results lie in memory as the next layer reads them.
_SWAPPING = ("joulecast::sdpa", *RECURRENT)
# Their results lie in memory as their inputs do.
_UNARY = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "HardSwish", "HardSigmoid", "Gelu", "Erf",
    "Clip", "Softmax", "joulecast::gelu", "joulecast::silu", "joulecast::hardswish",
)  # fmt: skip


def insert_copies(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with a copy before every reshape that cannot be a view."""
    strides: dict[str, Shape] = {}
    found: list[GraphCall] = []
    for call in calls:
        source, target = call.node.inputs[:1], call.node.outputs[0]
        known = strides.get(source[0]) if source else None
        value = call.get(0)
        if value is None or value.shape is None or call.outputs[0].shape is None:
            found.append(call)
            continue
        if call.op == "Transpose":
            old = known or count_strides(value.shape)
            strides[target] = tuple(old[axis] for axis in list_permutation(call))
        elif call.op == "Expand":
            strides[target] = _repeat_axes(value.shape, known, call.outputs[0].shape)
        elif call.op in _SWAPPING and len(call.outputs[0].shape) == 4:
            strides[target] = _swap_inner_axes(call.outputs[0].shape)
        elif call.op in _RESHAPING and known:
            kept = find_view_strides(value.shape, known, call.outputs[0].shape)
            if kept is None:
                copy = _make_copy(call)
                found.append(copy)
                call = _read_copy(call, copy)
            else:
                strides[target] = kept
        elif call.op in _UNARY and known:
            strides[target] = known
        found.append(call)
    return found


def find_view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Return the strides of a tensor in another shape; None if its elements have to be copied.

    Args:
        shape: Its shape.
        strides: Elements between neighbours along each of its axes.
        new: The other shape, of as many elements.
    """
    if not math.prod(shape):
        return count_strides(new)
    # Axes that follow each other in memory are one chunk, which can be divided in any way.
    chunks: list[list[int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if chunks and chunks[-1][1] == size * stride:
            chunks[-1] = [chunks[-1][0] * size, stride]
        else:
            chunks.append([size, stride])
    found = [0] * len(new)
    axis = len(new) - 1
    for size, stride in reversed(chunks):
        left, step = size, stride
        while left > 1:
            if axis < 0 or left % new[axis]:
                return None
            found[axis] = step
            step *= new[axis]
            left //= new[axis]
            axis -= 1
    for rest in range(axis, -1, -1):
        found[rest] = 1
    return tuple(found)


def _swap_inner_axes(shape: Shape) -> Shape:
    """Return the strides of a result that lies in memory as the next layer reads it.

    Attention writes its heads side by side, and a recurrent layer its directions.
    """
    first, second, third, last = shape
    ordered = count_strides((first, third, second, last))
    return (ordered[0], ordered[2], ordered[1], ordered[3])


def _repeat_axes(shape: Shape, strides: Shape | None, new: Shape) -> Shape:
    """Return the strides of a value that is repeated along some axes without being copied."""
    own = strides or count_strides(shape)
    added = len(new) - len(shape)
    kept = (
        stride if size == wanted else 0
        for size, stride, wanted in zip(shape, own, new[added:], strict=True)
    )
    return (*([0] * added), *kept)


def _make_copy(call: GraphCall) -> GraphCall:
    node, value = call.node, call.read(0)
    name = f"{node.inputs[0]}#copied for {node.outputs[0]}"
    copy = Node(COPY, node.inputs[:1], (name,), {}, node.path, node.label)
    return GraphCall(copy, (value,), (value,))


def _read_copy(call: GraphCall, copy: GraphCall) -> GraphCall:
    inputs = (copy.node.outputs[0], *call.node.inputs[1:])
    return replace(call, node=replace(call.node, inputs=inputs))
