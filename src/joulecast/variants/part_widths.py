"""Separate the widths of a part from everything else that identifies its curve.

Parts that differ only in their widths lie on one curve: widths are its features, all other
properties its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from joulecast.kinds import (
    channel_axis,
    find_kind,
    free_widths,
    get_width,
    output_shape,
    resize_layer,
)
from joulecast.records import Layer, Setup, name_layout, stable_hash
from joulecast.variants.block_scale import find_block_scale, resize_block
from joulecast.variants.parts import BLOCK, Part

Widths = tuple[int, ...]

_SCALE = "scale"


@lru_cache(maxsize=4096)
def width_names(part: Part) -> tuple[str, ...]:
    """Return the names of the widths of a part that can be varied.

    The data fix the input widths of an input layer, the classes the other widths of an output. The
    channels of a block are scaled together.
    """
    first = part.layers[0]
    row = find_kind(first.kind)
    if any(_has_fixed_widths(layer) for layer in part.layers):
        return ()
    if part.role == BLOCK:
        return () if find_block_scale(part.layers) is None else (_SCALE,)
    names = free_widths(first)
    if part.role == "input":
        is_grouped = first.sizes.get("groups", 1) > 1
        return () if is_grouped else tuple(name for name in names if name not in row.input_widths)
    if part.role == "output":
        return tuple(name for name in names if name in row.input_widths) or names
    return names


def part_widths(part: Part) -> Widths:
    """Return the values of the widths that can be varied."""
    names = width_names(part)
    if part.role == BLOCK:
        return (_get_scale(part),) if names else ()
    return tuple(get_width(part.layers[0], name) for name in names)


def resize_part(part: Part, widths: Sequence[int]) -> Part:
    """Return the same part at other widths."""
    names = width_names(part)
    if part.role == BLOCK:
        if not names:
            return part
        return replace(part, layers=resize_block(part.layers, _get_scale(part), *widths))
    layers = [resize_layer(part.layers[0], **dict(zip(names, widths, strict=True)))]
    for layer in part.layers[1:]:
        layers.append(resize_layer(layer, cin=output_shape(layers[-1])[-1]))
    return replace(part, layers=tuple(layers))


@lru_cache(maxsize=4096)
def curve_key(part: Part, setup: Setup) -> str:
    """Return a stable key of the curve that a part lies on, the same at all widths."""
    return stable_hash([fixed_properties(part), setup.to_dict()])


def fixed_properties(part: Part) -> dict[str, Any]:
    """Return everything but the widths of a part, as JSON."""
    if part.role == BLOCK:
        return {"role": BLOCK, "layers": _list_block_properties(part)}
    names = width_names(part)
    layers = [_list_fixed_properties(part.layers[0], names)]
    layers += [
        _list_fixed_properties(layer, ("cin",) if names else ()) for layer in part.layers[1:]
    ]
    return {"role": part.role, "layers": layers}


def _list_block_properties(part: Part) -> list[dict[str, Any]]:
    """Return the layers of a block at a scale of one, with what each of them reads."""
    layers = resize_part(part, (1,)).layers
    return [{**_list_fixed_properties(layer, ()), "reads": list(layer.reads)} for layer in layers]


def _get_scale(part: Part) -> int:
    return find_block_scale(part.layers) or 1


def _has_fixed_widths(layer: Layer) -> bool:
    """Return whether its widths cannot change without other sizes that repeat them."""
    groups = layer.sizes.get("groups", 1)
    is_uneven = groups > 1 and "cin" in layer.sizes and layer.sizes["cout"] % layer.sizes["cin"]
    is_scalar = layer.sizes.get("shape") == ()
    return (
        bool(is_uneven)
        or is_scalar
        or any(
            "out" in op.sizes or op.sizes.get("params", 0) > 1 or "constant" in op.sizes
            for op in (layer, *layer.tail)
        )
    )


def _list_fixed_properties(layer: Layer, width_names: tuple[str, ...]) -> dict[str, Any]:
    sizes = layer.sizes.to_dict()
    if "channels" in width_names:
        sizes["shape"][channel_axis(layer)] = 0
    if width_names == ("cout",) and sizes.get("groups", 1) > 1:
        sizes["ratio"] = sizes["cout"] // sizes["cin"]
        sizes["groups"] = 0 if sizes["groups"] == sizes.pop("cin") else sizes["groups"]
    for name in width_names:
        sizes.pop(name, None)
    properties = {
        "kind": layer.kind,
        "sizes": sizes,
        "tail": [op.to_dict() for op in layer.tail],
        "trains": layer.trains,
        "input_grad": layer.input_grad,
        "inputs": len(layer.reads),
        "join": layer.join,
    }
    # Only what is unusual is listed, so that keys from before these properties are the same.
    if layer.recomputed:
        properties["recomputed"] = True
    layout = name_layout(layer)
    return {**properties, "layout": list(layout)} if layout else properties
