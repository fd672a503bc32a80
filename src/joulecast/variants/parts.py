"""Parts: a network as a row of layers in their roles, and the curve that each lies on.

Takes Networks and gives Parts, their widths (what the paper varies) and their frames (everything
else). Parts that differ in nothing but widths lie on one curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from joulecast.kinds import (
    VIEWS,
    channel_axis,
    free_widths,
    list_half_inputs,
    output_shape,
    resize_layer,
    get_width,
)
from joulecast.records import Layer, Network, Setup, name_layout, stable_hash

Widths = tuple[int, ...]

ROLES = ("output", "input", "hidden")
"""In the order in which they are profiled: each is subtracted from those behind it."""

_CHANNELS_FIRST = ("batch_norm", "group_norm", "pool")
# Which widths are given by the data in an input layer, and by the classes in an output layer.
_DATA_SIDE = ("cin", "channels", "head_dim", "m", "k", "n")
_CLASS_SIDE = ("cout", "hidden")


@dataclass(frozen=True)
class Part:
    """A layer in its role, stripped of what a variant cannot show (other reads, calls, ties).

    Attributes:
        half: Under autocast it is fed half precision; no curve knows, only what runs alone does.
    """

    role: str
    layers: tuple[Layer, ...]
    half: bool = False


@dataclass(frozen=True)
class Place:
    """Where a part stands in a network.

    Attributes:
        index: Place of its first layer among the network's layers, blocks opened.
        layers: Its layers as they stand there.
        calls: How often a step calls it.
    """

    part: Part
    index: int
    layers: tuple[Layer, ...]
    calls: int = 1


def open_blocks(layers: Iterable[Layer]) -> list[Layer]:
    """Leaves in call order."""
    leaves: list[Layer] = []
    for layer in layers:
        leaves += open_blocks(layer.parts) if layer.parts else [layer]
    return leaves


def split_network(network: Network) -> tuple[Place, ...]:
    """The parts of a network in call order; blocks are opened, what costs nothing is left out."""
    layers = tuple(open_blocks(network.layers))
    halves = list_half_inputs(layers, network.input)
    start = len(layers) - _output_size(layers)
    places = []
    for index, layer in enumerate(layers[:start]):
        if layer.kind not in VIEWS or layer.tail:
            role = "input" if _reads_data(index, layer) else "hidden"
            own = layers[index : index + 1]
            places.append(Place(_share_part(role, own, halves[index]), index, own, layer.calls))
    if layers:
        part = _share_part("output", layers[start:], halves[start])
        places.append(Place(part, start, layers[start:], layers[-1].calls))
    return tuple(places)


@lru_cache(maxsize=65536)
def _share_part(role: str, layers: tuple[Layer, ...], half: bool) -> Part:
    """Nets repeat parts: those that share one take little memory and are found at once."""
    return Part(role, tuple(map(strip_layer, layers)), half)


def read_variant(network: Network) -> tuple[Part, ...] | None:
    """The part that a variant shows, then those to subtract; None where it is no variant."""
    layers = open_blocks(network.layers)
    if len(layers) > 4 or any(set(layer.reads) != {1} for layer in layers):
        return None
    if any(layer.calls > 1 or layer.tied for layer in layers):
        return None
    parts = [place.part for place in split_network(network)]
    roles = [part.role for part in parts]
    if roles not in (["output"], ["input", "output"], ["input", "hidden", "output"]):
        return None
    subject = parts.pop(max(0, len(parts) - 2))
    return (subject, *parts)


@lru_cache(maxsize=4096)
def width_names(part: Part) -> tuple[str, ...]:
    """The widths of a part that can be varied: its features."""
    first = part.layers[0]
    if any(_is_rigid(layer) for layer in part.layers):
        return ()
    names = free_widths(first)
    if part.role == "input" and first.kind != "embedding":
        follows = first.sizes.get("groups", 1) > 1 or first.kind == "attention"
        return () if follows else tuple(name for name in names if name not in _DATA_SIDE)
    if part.role == "output" and "cin" in names:
        return tuple(name for name in names if name not in _CLASS_SIDE)
    return names


def part_widths(part: Part) -> Widths:
    """The features of a part: the values of its free widths."""
    return tuple(get_width(part.layers[0], name) for name in width_names(part))


def resize_part(part: Part, widths: Sequence[int]) -> Part:
    """The same part at other widths."""
    layers = [resize_layer(part.layers[0], **dict(zip(width_names(part), widths, strict=False)))]
    for layer in part.layers[1:]:
        layers.append(resize_layer(layer, cin=output_shape(layers[-1])[-1]))
    return replace(part, layers=tuple(layers))


@lru_cache(maxsize=4096)
def curve_key(part: Part, setup: Setup) -> str:
    """A stable name of the curve that a part lies on, the same whatever its widths."""
    return stable_hash([part_frame(part), setup.to_dict()])


def part_frame(part: Part) -> dict[str, Any]:
    """All of a part that is no width, as JSON."""
    names = width_names(part)
    layers = [_layer_frame(part.layers[0], names)]
    layers += [_layer_frame(layer, ("cin",) if names else ()) for layer in part.layers[1:]]
    return {"role": part.role, "layers": layers}


def describe_part(part: Part) -> str:
    """A few words for people: ``hidden conv2d 48x48 kernel 3x3, relu``."""
    first = part.layers[0]
    sizes = first.sizes
    words = [part.role, "+".join(layer.kind for layer in part.layers)]
    places = sizes.get("space") or sizes.get("lead") or ()
    if "tokens" in sizes:
        places = (sizes["tokens"],)
    elif "shape" in sizes:
        channels = channels_at(first) % len(sizes["shape"])
        places = sizes["shape"][:channels] + sizes["shape"][channels + 1 :]
    if places:
        words.append("x".join(str(size) for size in places))
    if "space" in sizes:
        words.append("kernel " + "x".join(str(size) for size in sizes["kernel"]))
    return ", ".join([" ".join(words), *_list_marks(part)])


def _list_marks(part: Part) -> list[str]:
    """What tells apart layers of the same kind and places."""
    first, marks = part.layers[0], []
    strides = [size for size in _as_tuple(first.sizes.get("stride", 1)) if size != 1]
    if strides:
        marks.append(f"stride {strides[0]}")
    groups = int(first.sizes.get("groups", 1))
    if groups > 1:
        marks.append("depthwise" if groups == first.sizes.get("cin") else f"{groups} groups")
    if first.sizes.get("fn", first.join) != first.join:
        marks.append(str(first.sizes["fn"]))
    if first.join != "none":
        marks.append(f"{first.join} {len(first.reads)}")
    for op in (op for layer in part.layers for op in layer.tail if op.kind != "flatten"):
        kind = " pool" if op.kind == "pool" else ""
        marks.append(str(op.sizes.get("fn", op.kind)) + kind)
    marks += name_layout(first)
    if not first.trains:
        marks.append("frozen")
    if part.role != "input" and not first.input_grad:
        marks.append("first to train")
    return marks


def _as_tuple(size: Any) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def channels_at(layer: Layer) -> int:
    """Which axis of a layer's input holds its channels: 0 or -1."""
    if layer.kind.startswith("conv") or layer.kind in _CHANNELS_FIRST:
        return 0
    return channel_axis(layer) if "shape" in layer.sizes else -1


def _output_size(layers: tuple[Layer, ...]) -> int:
    """Layers of the output part: two where a pooling or mean stands before the last one."""
    if len(layers) < 2 or layers[-1].reads != (1,) or "cin" not in layers[-1].sizes:
        return min(1, len(layers))
    before = layers[-2]
    reduces = before.kind == "pool" or bool(before.sizes.get("axes"))
    return 2 if reduces and len(before.reads) == 1 else 1


def _reads_data(index: int, layer: Layer) -> bool:
    return layer.kind == "embedding" or min(layer.reads, default=index + 1) > index


def strip_layer(layer: Layer) -> Layer:
    """A layer without what it cannot show alone: whom it reads, how often it is called."""
    # Without a join several inputs are one side by side (queries, keys, values), or constants.
    inputs = 1 if layer.join == "none" else len(layer.reads)
    # Faster than ``replace``: asking about many nets strips many layers.
    return Layer(
        layer.kind,
        layer.sizes,
        layer.tail,
        layer.trains,
        layer.input_grad,
        reads=(1,) * inputs,
        join=layer.join,
        channels_last=layer.channels_last,
        channels_last_weights=layer.channels_last_weights,
        parts=layer.parts,
    )


def _is_rigid(layer: Layer) -> bool:
    """Whether its widths cannot be changed apart from other sizes that repeat them."""
    groups = layer.sizes.get("groups", 1)
    uneven = groups > 1 and "cin" in layer.sizes and layer.sizes["cout"] % layer.sizes["cin"]
    return bool(uneven) or any(
        op.kind == "view" or "out" in op.sizes or op.sizes.get("params", 0) > 1
        for op in (layer, *layer.tail)
    )


def _layer_frame(layer: Layer, names: tuple[str, ...]) -> dict[str, Any]:
    sizes = layer.sizes.to_dict()
    if "channels" in names:
        sizes["shape"][channels_at(layer)] = 0
    if names == ("cout",) and sizes.get("groups", 1) > 1:
        sizes["ratio"] = sizes["cout"] // sizes["cin"]
        sizes["groups"] = 0 if sizes["groups"] == sizes.pop("cin") else sizes["groups"]
    for name in names:
        sizes.pop(name, None)
    frame = {
        "kind": layer.kind,
        "sizes": sizes,
        "tail": [op.to_dict() for op in layer.tail],
        "trains": layer.trains,
        "input_grad": layer.input_grad,
        "inputs": len(layer.reads),
        "join": layer.join,
    }
    # Said only where it is unusual: frames that were written before it was known stay the same.
    layout = name_layout(layer)
    return {**frame, "layout": list(layout)} if layout else frame
