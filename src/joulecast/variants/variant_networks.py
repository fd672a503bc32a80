"""Make the small networks that show one part, and read the part back from them.

A hidden layer or a block rarely reads the data or computes the classes itself, so its variant has a
**stem** (a convolution or linear layer that computes its input from a few data channels) and a
**head** (the network's output layer if that fits, otherwise a mean over all positions and a small
linear layer). Both are small on purpose, because subtracting them leaves their noise. That is why a
network's embedding of ten thousand tokens is not used as a stem, nor its first convolution on the
full image. The paper frames a hidden layer by the network's own input and output layers
(``own_ends.py``): ``make_paper_variant`` does so wherever they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from joulecast.kinds import (
    Shape,
    channel_axis,
    find_kind,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    output_shape,
)
from joulecast.records import Input, Layer, Network, Setup
from joulecast.variants.own_ends import make_own_head, make_own_stem
from joulecast.variants.part_descriptions import describe_part
from joulecast.variants.part_widths import resize_part, width_names
from joulecast.variants.parts import (
    BLOCK,
    Part,
    single_input_shape,
    split_network,
    unfold_blocks,
)

MakeStem = Callable[[Layer, Network], Layer]
MakeHead = Callable[[Layer, Network], list[Layer]]

FEATURES = 32
CLASSES = 10
DATA_CHANNELS = 3
# A larger output layer, such as one over a vocabulary, would cost more than the layer before it.
MOST_HEAD_CLASSES = 1024


def make_variant(part: Part, network: Network) -> Network:
    """Return the small network that shows a part of ``network``."""
    return _join_parts(part, network, _make_stem, _make_head)


def make_paper_variant(part: Part, network: Network) -> Network:
    """Return the network that shows a part between the input and output layers of ``network``."""
    return _join_parts(part, network, _find_own_stem, _find_own_head)


def read_variant(network: Network) -> tuple[Part, ...] | None:
    """Return the part that a variant shows, then the parts to subtract; None for other networks."""
    layers = unfold_blocks(network.layers)
    if len(layers) > 4 or any(set(layer.reads) != {1} for layer in layers):
        return None
    if any(layer.calls > 1 or layer.tied for layer in layers):
        return None
    parts = [placed.part for placed in split_network(network)]
    roles = [part.role for part in parts]
    if roles not in (["output"], ["input", "output"], ["input", "hidden", "output"]):
        return None
    shown = parts.pop(max(0, len(parts) - 2))
    return (shown, *parts)


def _join_parts(part: Part, network: Network, make_stem: MakeStem, make_head: MakeHead) -> Network:
    layers = list(part.layers)
    if part.role != "output":
        layers += make_head(part.layers[-1], network)
    if part.role in ("hidden", BLOCK):
        layers.insert(0, make_stem(part.layers[0], network))
    first = layers[0]
    data = Input(single_input_shape(first), int(first.sizes.get("vocabulary", 0)))
    groups = ((1, 1 + len(part.layers)),) if part.role == BLOCK else ()
    return Network(tuple(layers), data, name=describe_part(part), groups=groups)


def _find_own_stem(layer: Layer, network: Network) -> Layer:
    return make_own_stem(layer, network) or _make_stem(layer, network)


def _find_own_head(layer: Layer, network: Network) -> list[Layer]:
    head = make_own_head(output_shape(layer), network)
    return _make_head(layer, network) if head is None else _attach_head(layer, head)


def _make_stem(layer: Layer, network: Network) -> Layer:
    """Return a layer that computes the input of ``layer``, trained if that needs a gradient."""
    shape = single_input_shape(layer)
    if channel_axis(layer) == 0 and 2 <= len(shape) <= 4:
        same_rank = len(network.input.shape) == len(shape) and not network.input.vocabulary
        channels = network.input.shape[0] if same_rank else DATA_CHANNELS
        kind, space = f"conv{len(shape) - 1}d", shape[1:]
        stem = make_layer(kind, cin=channels, cout=shape[0], space=space, kernel=3, padding=1)
        # A convolution keeps the memory format of its input.
        stem = replace(stem, channels_last=layer.channels_last)
    else:
        stem = make_layer("linear", cin=FEATURES, cout=shape[-1], lead=shape[:-1])
    return replace(stem, input_grad=False, trains=layer.input_grad)


def _make_head(layer: Layer, network: Network) -> list[Layer]:
    """Return layers that compute classes from the output of ``layer``."""
    shape = output_shape(layer)
    head = _resize_output_part(shape, network) or _make_pooled_head(shape, _output_axis(layer))
    return _attach_head(layer, head)


def _attach_head(layer: Layer, head: Sequence[Layer]) -> list[Layer]:
    """Return a head with the gradients and the memory format that it has after a layer."""
    input_grad = layer.input_grad or (layer.trains and layer_work(layer, Setup()).params > 0)
    channels_last = len(output_shape(layer)) > 2 and _gives_channels_last(layer)
    first = replace(head[0], channels_last=channels_last)
    return [replace(one, input_grad=input_grad) for one in (first, *head[1:])]


def _resize_output_part(shape: Shape, network: Network) -> list[Layer] | None:
    """Return the network's output part for inputs of this shape, or None if it does not fit."""
    output = split_network(network)[-1].part
    first, last = output.layers[0], output.layers[-1]
    is_small = int(last.sizes.get("cout", 0)) <= MOST_HEAD_CLASSES
    if not is_small or len(width_names(output)) != 1 or first.reads != (1,):
        return None
    if len(input_shape(first)) != len(shape) or find_kind(first.kind).reads_tokens:
        return None
    resized = resize_part(output, (shape[channel_axis(first)],))
    return list(resized.layers) if input_shape(resized.layers[0]) == shape else None


def _make_pooled_head(shape: Shape, axis: int) -> list[Layer]:
    """Return a mean over all positions, if there are any, and a linear layer to a few classes."""
    if axis == 0 and len(shape) > 1:
        flatten = (make_op("flatten"),)
        kernel = (1,) * (len(shape) - 1)
        mean = make_layer("pool", flatten, fn="adaptive_avg", kernel=kernel, shape=shape)
        return [mean, make_layer("linear", cin=shape[0], cout=CLASSES)]
    if len(shape) == 2:
        mean = make_layer("elementwise", fn="mean", axes=(0,), shape=shape)
        return [mean, make_layer("linear", cin=shape[1], cout=CLASSES)]
    return [make_layer("linear", cin=shape[-1], cout=CLASSES, lead=shape[:-1])]


def _gives_channels_last(layer: Layer) -> bool:
    """Return whether its output is channels last: as its input, unless axes are permuted."""
    is_permuted = any(find_kind(op.kind).permutes_axes for op in layer.tail)
    is_channels_last = layer.channels_last or layer.channels_last_weights
    return is_channels_last and not is_permuted


def _output_axis(layer: Layer) -> int:
    """Return the axis of a layer's output that holds the channels, after permutations: 0 or -1."""
    axis, rank = channel_axis(layer), len(input_shape(layer))
    for op in (layer, *layer.tail):
        if find_kind(op.kind).permutes_axes:
            axis = op.sizes["order"].index(axis % rank)
    return 0 if axis == 0 else -1
