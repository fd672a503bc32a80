"""Follow the axis of the samples through an ONNX graph, and take it away.

Records describe one sample. Most operators have the samples on their first axis; recurrent ones
have the tokens there.
"""

from __future__ import annotations

import math

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue
from joulecast.runtimes.onnx_files.moving_shapes import list_permutation
from joulecast.runtimes.onnx_files.shape_rules import RECURRENT, list_reduced_axes

_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def find_batch_axis(call: GraphCall, shape: Shape | None, place: int = 0) -> int:
    """Return the axis of a result that holds the samples; -1 if there is none.

    Args:
        call: The call that computes it.
        shape: The shape of the result.
        place: Which result it is.
    """
    given = [value for value in call.inputs if value is not None and value.batch_axis >= 0]
    if shape is None or not given:
        return -1
    value = given[0]
    if value.shape is None:
        return -1
    axis = value.batch_axis
    if call.op in RECURRENT:
        has_samples_first = bool(call.attribute("layout", 0))
        return (0 if has_samples_first else 2) if place == 0 else int(not has_samples_first)
    if call.op == "Transpose":
        return list_permutation(call).index(axis)
    if call.op in _RESHAPING:
        return _find_reshaped(value.shape, axis, shape)
    if "Reduce" in call.op and not call.attribute("keepdims", 1):
        axis -= sum(1 for one in list_reduced_axes(call) if one < axis)
    elif call.op in ("Gather", "ArgMax", "ArgMin"):
        axis += (
            _count_new_axes(call, value)
            if call.attribute("axis", 0) % len(value.shape) < axis
            else 0
        )
    elif len(shape) != len(value.shape):
        # Axes of a broadcast result are counted from the back.
        axis += len(shape) - len(value.shape)
    fits = 0 <= axis < len(shape) and shape[axis] == value.shape[value.batch_axis]
    return axis if fits else -1


def take_sample(value: GraphValue, batch: int) -> Shape:
    """Return the shape of one sample of a value."""
    shape = value.dims
    axis = value.batch_axis
    if 0 <= axis < len(shape) and shape[axis] == batch:
        return (*shape[:axis], *shape[axis + 1 :])
    if shape and shape[0] % batch == 0:
        images = shape[0] // batch
        return (images, *shape[1:]) if images > 1 else shape[1:]
    return (-(-math.prod(shape) // batch),)


def has_batch(value: GraphValue, batch: int) -> bool:
    """Return whether a value has an axis for the samples."""
    axis = value.batch_axis
    return value.shape is not None and 0 <= axis < len(value.shape) and value.shape[axis] == batch


def _find_reshaped(old: Shape, axis: int, new: Shape) -> int:
    """Return the axis that has as many elements before it, and the same size."""
    before = math.prod(old[:axis])
    count = 1
    for place, size in enumerate(new):
        # An axis of one element may stand before the axis itself.
        if count == before and size == old[axis] and (size > 1 or before > 1 or place == axis):
            return place
        count *= size
    return -1


def _count_new_axes(call: GraphCall, value: GraphValue) -> int:
    if call.op == "Gather":
        return len(call.shape(1)) - 1
    return 0 if call.attribute("keepdims", 1) else -1
