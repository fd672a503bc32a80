"""Widths: the sizes that the paper's method varies, and what follows when one changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.kinds.table import find_kind
from joulecast.records import Layer, Op, Sizes


def free_widths(op: Op) -> tuple[str, ...]:
    """The widths that can be chosen apart from each other (depthwise: input follows output)."""
    widths = find_kind(op.kind).widths
    if widths == ("cin", "cout") and op.sizes.get("groups", 1) > 1:
        return ("cout",)
    return widths


def width_step(op: Op) -> int:
    """Widths come in multiples of this (groups of a convolution, heads of an attention)."""
    if op.kind == "attention":
        return int(op.sizes["heads"])
    groups = int(op.sizes.get("groups", 1))
    depthwise = groups > 1 and groups == op.sizes.get("cin")
    return int(op.sizes["cout"]) // groups if depthwise else groups


def resize(layer: Layer, **widths: int) -> Layer:
    """The same layer at other widths; what is tied to a width follows it."""
    sizes: dict[str, Any] = dict(layer.sizes)
    groups = sizes.get("groups", 1)
    if "cout" in widths and layer.kind.startswith("conv") and groups > 1:
        share = widths["cout"] / sizes["cout"]
        if groups == sizes["cin"]:
            multiplier = sizes["cout"] // groups
            sizes["groups"] = sizes["cin"] = max(1, round(groups * share))
            widths = {**widths, "cout": sizes["cin"] * multiplier}
        else:
            sizes["cin"] = groups * max(1, round(sizes["cin"] // groups * share))
    if "channels" in widths:
        axis = channel_axis(layer)
        shape = list(sizes["shape"])
        shape[axis] = widths["channels"]
        sizes["shape"] = tuple(shape)
        widths = {}
    sizes.update(widths)
    return replace(layer, sizes=Sizes(sizes))


def width_of(layer: Layer, width: str) -> int:
    """The value of one width of a layer."""
    if width == "channels":
        return int(layer.sizes["shape"][channel_axis(layer)])
    return int(layer.sizes[width])


def channel_axis(op: Op) -> int:
    """Which axis of ``shape`` holds the channels: first for images, last for tokens."""
    last = op.kind in ("layer_norm", "rms_norm") or len(op.sizes["shape"]) == 2
    return -1 if last and op.kind not in ("batch_norm", "group_norm", "pool") else 0
