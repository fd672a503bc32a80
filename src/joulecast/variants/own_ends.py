"""Resize a network's own input and output layers, to frame a hidden layer as the paper does.

    variant    [the network's input layer → C1 channels, hidden layer, the network's output layer]

The input layer keeps its operators and kernel; its image gets the size whose output the hidden
layer reads. A linear output layer reads the flattened output of the hidden layer, a pooled one its
mean. The paper does not say what happens where a layer does not fit: an image layer computes no
features of a linear layer, for instance. Such a part has no end here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from joulecast.kinds import (
    Shape,
    channel_axis,
    find_kind,
    input_shape,
    make_layer,
    output_shape,
)
from joulecast.records import Layer, Network, Sizes
from joulecast.variants.part_widths import resize_part, width_names
from joulecast.variants.parts import Part, single_input_shape, split_network

# Images that differ by up to this many pixels from the proportional size are tried.
_MAX_PIXELS = 8


def make_own_stem(layer: Layer, network: Network) -> Layer | None:
    """Return the network's input layer such that it computes the input of ``layer``, if it can."""
    wanted = single_input_shape(layer)
    part = next((one.part for one in split_network(network) if one.part.role == "input"), None)
    if part is None or len(width_names(part)) != 1 or len(part.layers) != 1:
        return None
    for channels in dict.fromkeys((wanted[0], wanted[-1])):
        for stem in _list_images(resize_part(part, (channels,)).layers[0], wanted):
            if output_shape(stem) == wanted:
                stem = replace(stem, channels_last=layer.channels_last)
                return replace(stem, input_grad=False, trains=layer.input_grad)
    return None


def make_own_head(shape: Shape, network: Network) -> list[Layer] | None:
    """Return the network's output layer for inputs of this shape, if it can read them."""
    output = split_network(network)[-1].part
    first = output.layers[0]
    if len(width_names(output)) != 1 or first.reads != (1,) or find_kind(first.kind).reads_tokens:
        return None
    if len(input_shape(first)) == 1 < len(shape):
        flat = make_layer("flatten", shape=shape)
        return [flat, *resize_part(output, (math.prod(shape),)).layers]
    resized = _reshape_part(output, shape)
    channels = shape[channel_axis(first)]
    layers = list(resize_part(resized, (channels,)).layers)
    return layers if input_shape(layers[0]) == shape else None


def _list_images(layer: Layer, wanted: Shape) -> Iterator[Layer]:
    """Yield a layer as it is, then with images of other sizes, the likeliest first."""
    yield layer
    found = output_shape(layer)
    space = layer.sizes.get("space")
    if not isinstance(space, tuple) or len(found) != len(wanted) or len(space) != len(wanted) - 1:
        return
    rows = zip(space, found[1:], wanted[1:], strict=True)
    likely = [round(size * goal / now) for size, now, goal in rows]
    for change in sorted(range(-_MAX_PIXELS, _MAX_PIXELS + 1), key=abs):
        image = tuple(size + change for size in likely)
        if min(image) > 0:
            yield replace(layer, sizes=Sizes({**layer.sizes, "space": image}))


def _reshape_part(part: Part, shape: Shape) -> Part:
    """Return an output part that pools, with another shape to pool."""
    first = part.layers[0]
    if len(first.sizes.get("shape", ())) != len(shape):
        return part
    pooled = replace(first, sizes=Sizes({**first.sizes, "shape": shape}))
    return replace(part, layers=(pooled, *part.layers[1:]))
