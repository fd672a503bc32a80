"""Read operators that move elements by index: indexing, gathering, scattering, sorting, slices."""

from __future__ import annotations

import math
from typing import Any

import torch

from joulecast.kinds import make_op
from joulecast.records import Op
from joulecast.runtimes.torch.event_arguments import (
    Shape,
    bind_arguments,
    first_tensor,
    function_name,
    input_sample_shape,
    sample_shape,
)
from joulecast.runtimes.torch.trace_events import Event


def read_index(event: Event, batch: int) -> Op:
    """Read ``x[indices]`` with index tensors or masks, and ``index_select``."""
    x = first_tensor(event)
    axes = _find_indexed_axes(event, x)
    shape = input_sample_shape(event, batch)
    sizes: dict[str, Any] = {"fn": "index", "out": _out_shape(event, batch), "shape": shape}
    if axes and min(axes) > 0 and x.shape[:1] == (batch,):
        return make_op("index", axes=tuple(axis - 1 for axis in axes), **sizes)
    # Indices run over the first axis, which holds the samples or tokens of all samples.
    return make_op("index", axes=(0,), across=1, **sizes)


def read_gather(event: Event, batch: int) -> Op:
    """Read ``gather`` and ``take_along_dim``: an index for each element."""
    shape = input_sample_shape(event, batch)
    return make_op("index", fn=function_name(event), out=_out_shape(event, batch), shape=shape)


def read_scatter(event: Event, batch: int) -> Op:
    """Read an assignment or addition of elements by index, in place or to a copy."""
    target = first_tensor(event)
    is_in_place = event.name.endswith("_")
    source = _find_source(event)
    return make_op(
        "scatter",
        fn=function_name(event),
        source=sample_shape(source.shape, batch) or (1,),
        copies=0 if is_in_place else 1,
        shape=sample_shape(target.shape, batch) or (1,),
    )


def read_sort(event: Event, batch: int) -> Op:
    """Read ``sort``, ``argsort``, ``topk`` and the like."""
    shape = input_sample_shape(event, batch) or (1,)
    return make_op("sort", fn=function_name(event), out=_out_shape(event, batch), shape=shape)


def read_costly_view(event: Event, batch: int) -> Op:
    """Read a view whose gradient is not one: of some elements it is padded with zeros."""
    shape = input_sample_shape(event, batch) or (1,)
    out = _out_shape(event, batch)
    if len(event.outputs) == 1 and math.prod(out) < math.prod(shape):
        return make_op("slice", out=out, shape=shape)
    return make_op("gradient_copy", out=out, shape=shape)


def has_index_tensors(index: Any) -> bool:
    """Return whether an index has tensors or lists in it, so that elements are copied."""
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(item, (torch.Tensor, list)) for item in items)


def _out_shape(event: Event, batch: int) -> Shape:
    return sample_shape(event.outputs[0].shape, batch) or (1,)


def _find_indexed_axes(event: Event, x: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of ``x`` that have index tensors."""
    if function_name(event) == "index_select":
        dim = bind_arguments(event, "input", "dim", "index").get("dim", 0)
        return (dim % max(1, x.dim()),)
    index = event.args[1] if len(event.args) > 1 else ()
    items = index if isinstance(index, tuple) else (index,)
    axes: list[int] = []
    axis = 0
    for position, item in enumerate(items):
        if item is None:
            continue
        if item is Ellipsis:
            rest = [one for one in items[position + 1 :] if one is not None]
            axis = x.dim() - sum(map(_count_indexed, rest))
            continue
        if isinstance(item, (torch.Tensor, list)):
            axes += range(axis, axis + _count_indexed(item))
        axis += _count_indexed(item)
    return tuple(one for one in axes if one < x.dim())


def _count_indexed(item: Any) -> int:
    """Return how many axes an item of an index stands for: a mask has several."""
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return max(1, item.dim()) if is_mask else 1


def _find_source(event: Event) -> torch.Tensor:
    """Return the largest floating-point tensor besides the target; else the indices."""
    target = first_tensor(event)
    others = [
        value
        for value in (*event.args[1:], *event.kwargs.values())
        if isinstance(value, torch.Tensor) and value is not target
    ]
    indices = [
        item
        for value in event.args[1:]
        if isinstance(value, (list, tuple))
        for item in value
        if isinstance(item, torch.Tensor)
    ]
    floating = [value for value in others if value.is_floating_point() and value.dim()]
    if floating:
        return max(floating, key=lambda value: value.numel())
    return max([*others, *indices, target][: len(others) + len(indices) or 1], key=_numel)


def _numel(value: torch.Tensor) -> int:
    return math.prod(value.shape)
