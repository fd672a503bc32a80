"""Describe parts in a few words."""

from __future__ import annotations

from typing import Any

from joulecast.kinds import channel_axis, find_kind
from joulecast.records import Op, name_layout
from joulecast.variants.parts import Part


def describe_part(part: Part) -> str:
    """Return a short description, such as ``hidden conv2d 48x48 kernel 3x3, relu``."""
    first = part.layers[0]
    sizes = first.sizes
    words = [part.role, "+".join(layer.kind for layer in part.layers)]
    positions = sizes.get("space") or sizes.get("lead") or ()
    if "tokens" in sizes:
        positions = (sizes["tokens"],)
    elif "shape" in sizes:
        channels = channel_axis(first) % len(sizes["shape"])
        positions = sizes["shape"][:channels] + sizes["shape"][channels + 1 :]
    if positions:
        words.append("x".join(str(size) for size in positions))
    if "space" in sizes:
        words.append("kernel " + "x".join(str(size) for size in sizes["kernel"]))
    return ", ".join([" ".join(words), *_list_details(part)])


def _list_details(part: Part) -> list[str]:
    """Return what distinguishes layers of the same kind with the same positions."""
    first, details = part.layers[0], []
    strides = [size for size in _as_tuple(first.sizes.get("stride", 1)) if size != 1]
    if strides:
        details.append(f"stride {strides[0]}")
    groups = int(first.sizes.get("groups", 1))
    if groups > 1:
        details.append("depthwise" if groups == first.sizes.get("cin") else f"{groups} groups")
    if first.sizes.get("fn", first.join) != first.join:
        details.append(str(first.sizes["fn"]))
    if first.join != "none":
        details.append(f"{first.join} {len(first.reads)}")
    tail = [op for layer in part.layers for op in layer.tail]
    details += [_name_op(op) for op in tail if not find_kind(op.kind).flattens]
    details += name_layout(first)
    if first.recomputed:
        details.append("checkpointed")
    if not first.trains:
        details.append("frozen")
    if part.role != "input" and not first.input_grad:
        details.append("first to train")
    return details


def _name_op(op: Op) -> str:
    """Return ``relu`` for a function, ``max pool`` for a variety of a kind, else the kind."""
    if "fn" not in op.sizes:
        return op.kind
    return str(op.sizes["fn"]) + ("" if find_kind(op.kind).is_function else f" {op.kind}")


def _as_tuple(size: Any) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)
