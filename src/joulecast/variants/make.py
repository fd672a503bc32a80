"""Variants: what stands before and behind a layer so that it can be trained alone.

A hidden layer rarely stands directly behind the data or before the classes, so a variant gives it
an **entry** (a convolution or linear that makes its input from a few data channels) and a **head**
(the net's own output where that fits, else a mean over all positions and a small linear). Both are
light on purpose: what is subtracted leaves its noise behind. That is why a net's own embedding of
ten thousand words is no entry, nor its own first convolution on the full image.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds import Shape, input_shape, layer_work, make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Network, Setup, name_layout
from joulecast.variants.parts import (
    Part,
    channels_at,
    describe_part,
    resize_part,
    split_network,
    width_names,
)

FEATURES = 32
CLASSES = 10
# A net's own output serves as head up to this width; a vocabulary would drown the layer before it.
LIGHT_CLASSES = 1024
DATA_CHANNELS = 3


def make_variant(part: Part, network: Network) -> Network:
    """The small network that shows a part as it stands in ``network``."""
    layers = list(part.layers)
    if part.role != "output":
        layers += _make_head(part.layers[-1], network)
    if part.role == "hidden":
        layers.insert(0, _make_entry(part.layers[0], network))
    first = layers[0]
    data = Input(fed_shape(first), int(first.sizes.get("vocabulary", 0)))
    return Network(tuple(layers), data, name=describe_part(part))


def fed_shape(layer: Layer) -> Shape:
    """Shape of each of the inputs that a layer joins; where none divides, a rest is left over."""
    shape = list(input_shape(layer))
    if layer.join == "concat":
        axis = _find_joined_axis(layer)
        shape[axis] = max(1, shape[axis] // len(layer.reads))
    return tuple(shape)


def _find_joined_axis(layer: Layer) -> int:
    """The axis that inputs stand side by side on: the one said by name, else the first."""
    fn, _, axis = str(layer.sizes.get("fn", "")).partition(" along ")
    return int(axis) - 1 if fn == "concat" and axis.isdigit() and axis != "0" else 0


def _make_entry(subject: Layer, network: Network) -> Layer:
    """The layer that makes a subject's input; it trains only where that input needs a gradient."""
    shape = fed_shape(subject)
    if channels_at(subject) == 0 and 2 <= len(shape) <= 4:
        same_rank = len(network.input.shape) == len(shape) and not network.input.vocabulary
        channels = network.input.shape[0] if same_rank else DATA_CHANNELS
        kind, space = f"conv{len(shape) - 1}d", shape[1:]
        entry = make_layer(kind, cin=channels, cout=shape[0], space=space, kernel=3, padding=1)
        # A convolution hands on how its input lies.
        entry = replace(entry, channels_last=subject.channels_last)
    else:
        entry = make_layer("linear", cin=FEATURES, cout=shape[-1], lead=shape[:-1])
    return replace(entry, input_grad=False, trains=subject.input_grad)


def _make_head(subject: Layer, network: Network) -> list[Layer]:
    """What turns a subject's output into classes: the net's own output where it fits."""
    shape = output_shape(subject)
    grad = subject.input_grad or (subject.trains and layer_work(subject, Setup()).params > 0)
    head = _own_head(shape, network) or _pooled_head(shape, _channels_behind(subject))
    first = replace(head[0], channels_last=len(shape) > 2 and _gives_channels_last(subject))
    return [replace(layer, input_grad=grad) for layer in (first, *head[1:])]


def _gives_channels_last(layer: Layer) -> bool:
    """Whether what a layer gives lies as what it reads: unless a permute turns it round."""
    turned = any(op.kind == "permute" for op in layer.tail)
    return bool(name_layout(layer)) and not turned


def _own_head(shape: Shape, network: Network) -> list[Layer] | None:
    own = split_network(network)[-1].part
    first, last = own.layers[0], own.layers[-1]
    light = int(last.sizes.get("cout", 0)) <= LIGHT_CLASSES
    if not light or len(width_names(own)) != 1 or first.reads != (1,):
        return None
    if len(input_shape(first)) != len(shape) or first.kind == "embedding":
        return None
    fitted = resize_part(own, (shape[channels_at(first)],))
    return list(fitted.layers) if input_shape(fitted.layers[0]) == shape else None


def _pooled_head(shape: Shape, axis: int) -> list[Layer]:
    """A mean over all positions, where there are any, and a linear to a few classes."""
    if axis == 0 and len(shape) > 1:
        flat = (make_op("flatten"),)
        kernel = (1,) * (len(shape) - 1)
        mean = make_layer("pool", flat, fn="adaptive_avg", kernel=kernel, shape=shape)
        return [mean, make_layer("linear", cin=shape[0], cout=CLASSES)]
    if len(shape) == 2:
        mean = make_layer("elementwise", fn="mean", axes=(0,), shape=shape)
        return [mean, make_layer("linear", cin=shape[1], cout=CLASSES)]
    return [make_layer("linear", cin=shape[-1], cout=CLASSES, lead=shape[:-1])]


def _channels_behind(layer: Layer) -> int:
    """Which axis of a layer's output holds its channels: a permute in its tail moves them."""
    axis, rank = channels_at(layer), len(input_shape(layer))
    for op in (layer, *layer.tail):
        if op.kind == "permute":
            axis = op.sizes["order"].index(axis % rank)
    return 0 if axis == 0 else -1
