"""Read and change widths: the sizes that a curve runs over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.kinds.kind_table import find_kind
from joulecast.kinds.operators import output_shape
from joulecast.records import Layer, Op, Sizes


def free_widths(op: Op) -> tuple[str, ...]:
    """Return the widths that can be chosen independently.

    In a grouped convolution the input channels follow the output channels.
    """
    row = find_kind(op.kind)
    if row.is_convolution and op.sizes["groups"] > 1:
        return tuple(name for name in row.widths if name not in row.input_widths)
    return row.widths


def width_step(op: Op) -> int:
    """Return the number that every width is a multiple of (groups, heads)."""
    divisor = width_divisor(op)
    is_depthwise = divisor > 1 and divisor == op.sizes.get("cin")
    return int(op.sizes["cout"]) // divisor if is_depthwise else divisor


def width_divisor(op: Op) -> int:
    """Return the number of groups or heads that the widths are divided into; 1 without any."""
    return int(op.sizes.get(find_kind(op.kind).width_divisor, 1))


def get_width(layer: Layer, width: str) -> int:
    """Return the value of one width of a layer."""
    if width == "channels":
        return int(layer.sizes["shape"][channel_axis(layer)])
    return int(layer.sizes[width])


def resize_layer(layer: Layer, **widths: int) -> Layer:
    """Return the same layer at other widths; the sizes that depend on a width follow it."""
    sizes: dict[str, Any] = dict(layer.sizes)
    groups = sizes.get("groups", 1)
    if "cout" in widths and find_kind(layer.kind).is_convolution and groups > 1:
        share = widths["cout"] / sizes["cout"]
        if groups == sizes["cin"]:
            multiplier = sizes["cout"] // groups
            sizes["groups"] = sizes["cin"] = max(1, round(groups * share))
            widths = {**widths, "cout": sizes["cin"] * multiplier}
        else:
            sizes["cin"] = groups * max(1, round(sizes["cin"] // groups * share))
    if "channels" in widths:
        shape = list(sizes["shape"])
        shape[channel_axis(layer)] = widths["channels"]
        sizes["shape"] = tuple(shape)
        widths = {}
    sizes.update(widths)
    return replace(layer, sizes=Sizes(sizes))


def channel_axis(op: Op) -> int:
    """Return the axis of an operator's input that holds the channels: 0 or -1."""
    axis = find_kind(op.kind).channel_axis
    if axis is not None:
        return axis
    return -1 if len(op.sizes["shape"]) == 2 else 0


def count_output_channels(layer: Layer) -> int:
    """Return the number of channels of a layer's output."""
    for size in ("cout", "width", "hidden"):
        if size in layer.sizes:
            return int(layer.sizes[size])
    row, shape = find_kind(layer.kind), output_shape(layer)
    if row.has_head_dim:
        return int(layer.sizes["heads"] * layer.sizes["head_dim"])
    axis = row.channel_axis
    if axis is None:
        axis = -1 if len(shape) == 2 else 0
    return int(shape[axis]) if shape else 0
