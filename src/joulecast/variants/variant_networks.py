"""Make the small networks that show one layer or block, and read it back from them.

A hidden layer or a block rarely reads the data or computes the classes itself, so its variant has a
**stem** (a convolution or linear layer that computes its input from a few data channels) and a
**head** (the network's output layer if that fits, otherwise a mean over all positions and a small
linear layer). Both are small on purpose, because subtracting them leaves their noise. That is why a
network's embedding of ten thousand tokens is not used as a stem, nor its first convolution on the
full image.

The paper frames a hidden layer by the network's own input and output layers. Variants with
``own_ends`` do so wherever they fit: the input layer keeps its operators and kernel, and its image
gets the size whose output the hidden layer reads; a linear output layer reads the flattened output
of the hidden layer, a pooled one its mean. An image layer, for instance, computes no features of a
linear layer, and has a stem of ours instead.

A layer may also run alone, in several copies with weights and data of their own, which keep the
device busy between launches. The measured cost is divided by the number of copies:

    forward of all copies ─▶ backward of all copies from a random gradient ─▶ one update

An output layer runs with its loss, and an input layer without a gradient of its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from joulecast.operators import (
    Shape,
    channel_axis,
    find_kind,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    output_shape,
)
from joulecast.records import Execution, Input, Layer, Network, Setup, Sizes, Trial
from joulecast.variants.blocks import (
    REPEATED,
    Block,
    describe_block,
    disconnect_layer,
    is_bare_view,
    match_phase,
    match_precision,
    resize_block,
    single_input_shape,
    split_network,
    unfold_blocks,
    width_names,
)

FEATURES = 32
CLASSES = 10
DATA_CHANNELS = 3
# A larger output layer, such as one over a vocabulary, would cost more than the layer before it.
MOST_HEAD_CLASSES = 1024
# Images that differ by up to this many pixels from the proportional size are tried.
_MAX_PIXELS = 8
# All copies together move about this many bytes, within bounds: enough to hide launches.
_TARGET_BYTES = 1e9
_FEWEST_COPIES, _MOST_COPIES = 2, 8
# A forward pass alone moves little: with more copies, their weights do not all stay in a cache, as
# those of a whole network do not.
_MOST_INFERENCE_COPIES = 32


def make_variant(block: Block, network: Network, own_ends: bool = False) -> Network:
    """Return the small network that shows a block of ``network``, with a stem and a head if needed.

    With ``own_ends`` these are the input and output layers of ``network``, wherever they fit.
    """
    layers = list(block.layers)
    first, last = layers[0], layers[-1]
    if block.role != "output":
        layers += _attach_head(last, _make_head(last, network, own_ends))
    if block.role in ("hidden", REPEATED):
        stem = _resize_input(first, network) if own_ends else None
        layers.insert(0, stem or _make_stem(first, network))
    first = layers[0]
    data = Input(single_input_shape(first), int(first.sizes.get("vocabulary", 0)))
    groups = ((1, 1 + len(block.layers)),) if block.role == REPEATED else ()
    return Network(tuple(layers), data, name=describe_block(block), groups=groups)


def read_variant(network: Network) -> tuple[Block, ...] | None:
    """Return the block that a variant shows, then those to subtract; None for other networks."""
    layers = unfold_blocks(network.layers)
    if len(layers) > 4 or any(set(layer.reads) != {1} for layer in layers):
        return None
    if any(layer.calls > 1 or layer.tied for layer in layers):
        return None
    blocks = [placed.block for placed in split_network(network)]
    roles = [block.role for block in blocks]
    if roles not in (["output"], ["input", "output"], ["input", "hidden", "output"]):
        return None
    shown = blocks.pop(max(0, len(blocks) - 2))
    return (shown, *blocks)


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


def _make_head(layer: Layer, network: Network, own_ends: bool) -> list[Layer]:
    """Return layers that compute classes from the output of ``layer``."""
    shape = output_shape(layer)
    own = _resize_output(shape, network, reshapes=True) if own_ends else None
    small = own or _resize_output(shape, network, reshapes=False)
    return small or _make_pooled_head(shape, _output_axis(layer))


def _attach_head(layer: Layer, head: Sequence[Layer]) -> list[Layer]:
    """Return a head with the gradients and the memory format that it has after a layer."""
    input_grad = layer.input_grad or (layer.trains and layer_work(layer, Setup()).params > 0)
    channels_last = len(output_shape(layer)) > 2 and _gives_channels_last(layer)
    first = replace(head[0], channels_last=channels_last)
    return [replace(one, input_grad=input_grad) for one in (first, *head[1:])]


def _resize_output(shape: Shape, network: Network, reshapes: bool) -> list[Layer] | None:
    """Return the network's output block for inputs of this shape, or None if it does not fit.

    Either it is small and reads inputs of the same rank, or it ``reshapes`` any: a linear layer
    reads them flattened, a pooled one pools an image of another size.
    """
    output = split_network(network)[-1].block
    first, last = output.layers[0], output.layers[-1]
    if len(width_names(output)) != 1 or first.reads != (1,) or find_kind(first.kind).reads_tokens:
        return None
    if not reshapes and int(last.sizes.get("cout", 0)) > MOST_HEAD_CLASSES:
        return None
    if reshapes and len(input_shape(first)) == 1 < len(shape):
        flat = make_layer("flatten", shape=shape)
        return [flat, *resize_block(output, (math.prod(shape),)).layers]
    if len(input_shape(first)) != len(shape):
        return None
    if reshapes and "shape" in first.sizes:
        pooled = replace(first, sizes=Sizes({**first.sizes, "shape": shape}))
        output = replace(output, layers=(pooled, *output.layers[1:]))
    resized = resize_block(output, (shape[channel_axis(first)],))
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


def _resize_input(layer: Layer, network: Network) -> Layer | None:
    """Return the network's input layer such that it computes the input of ``layer``, if it can."""
    wanted = single_input_shape(layer)
    block = next((one.block for one in split_network(network) if one.block.role == "input"), None)
    if block is None or len(width_names(block)) != 1 or len(block.layers) != 1:
        return None
    for channels in dict.fromkeys((wanted[0], wanted[-1])):
        for stem in _list_images(resize_block(block, (channels,)).layers[0], wanted):
            if output_shape(stem) == wanted:
                stem = replace(stem, channels_last=layer.channels_last)
                return replace(stem, input_grad=False, trains=layer.input_grad)
    return None


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


def make_isolated_trial(
    block: Block, setup: Setup, mode: str = "eager", stage: str = "step"
) -> Trial:
    """Return the trial that measures a block alone."""
    # The role still tells two layers that end a network from a block.
    block = replace(block, layers=match_phase(block, setup).layers)
    works = [layer_work(layer, setup) for layer in block.layers]
    if block.role == "output" and not any(work.params for work in works):
        # A module that returns its own loss ends without weights: nothing would train.
        block = Block("hidden", block.layers, block.half_input)
    upstream = "loss" if block.role == "output" else "random"
    moved_bytes = sum(work.total.size_bytes for work in works)
    wanted = round(_TARGET_BYTES / max(moved_bytes, 1.0))
    most = _MOST_COPIES if setup.phase == "train" else _MOST_INFERENCE_COPIES
    copies = max(_FEWEST_COPIES, min(most, wanted))
    network = make_isolated_network(match_precision(block, setup))
    return Trial(network, setup, Execution(stage, mode, copies, upstream))


def make_isolated_network(block: Block) -> Network:
    """Return a network that consists of a block only."""
    first = block.layers[0]
    vocabulary = int(first.sizes.get("vocabulary", 0))
    return Network(block.layers, Input(single_input_shape(first), vocabulary, block.half_input))


def read_isolated_block(trial: Trial) -> Block | None:
    """Return the block that a trial runs alone, or None if it runs something else."""
    network, execution = trial.network, trial.execution
    if not network.layers or not network.buildable:
        return None
    if execution.upstream == "loss":
        placed = split_network(network)
        return placed[0].block if len(placed) == 1 else None
    if len(network.layers) > 1:
        return Block(REPEATED, network.layers, network.input.half)
    layer = network.layers[0]
    if is_bare_view(layer):
        return None
    reads_data = find_kind(layer.kind).reads_tokens or not layer.input_grad
    role = "input" if reads_data else "hidden"
    return Block(role, (disconnect_layer(layer),), network.input.half)
