"""Make the small networks that show one layer or block, and find every curve of a network.

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

A network is split layer by layer (``LAYERS``), or with every repeated block as one (``BLOCKS``).
Other partitions do what the paper does: hidden layers between the network's own input and output
layers, and an output layer that is trained alone without a gradient of its input.

A curve spans the smallest widths up to the largest that any layer of the network has on it. Widths
come in steps: groups of a convolution, heads of an attention and, after a flatten, the number of
positions that it turns into channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.operators import (
    Shape,
    channel_axis,
    find_kind,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    output_shape,
    width_divisor,
    width_step,
)
from joulecast.records import Execution, Input, Layer, Network, Setup, Sizes, Trial, stable_hash
from joulecast.variants.blocks import (
    REPEATED,
    ROLES,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    describe_block,
    disconnect_layer,
    find_least_scale,
    find_scale_step,
    fixed_properties,
    is_bare_view,
    match_phase,
    match_precision,
    resize_block,
    single_input_shape,
    split_blocks,
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


def read_block_variant(network: Network) -> tuple[Block, ...] | None:
    """Return the block or layer that a variant shows, then the blocks to subtract."""
    placed = split_blocks(network)
    if [one.block.role for one in placed] != ["input", REPEATED, "output"]:
        return read_variant(network)
    if any(layer.calls > 1 or layer.tied for one in placed for layer in one.layers):
        return None
    first, block, output = (one.block for one in placed)
    return block, first, output


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


@dataclass(frozen=True)
class Partition:
    """A way to split networks, and to make the variants that show their blocks.

    Attributes:
        by_block: Whether all layers of a block that repeats are one.
        own_ends: Whether variants have the network's own input and output layers, where they fit.
        output_gradient: Whether an output layer that is trained alone computes the gradient of its
            input, as it does inside a network.
    """

    by_block: bool = False
    own_ends: bool = False
    output_gradient: bool = True

    def split(self, network: Network) -> tuple[PlacedBlock, ...]:
        """Return the blocks of a network in call order."""
        placed = split_blocks(network) if self.by_block else split_network(network)
        if self.output_gradient:
            return placed
        return tuple(replace(one, block=_drop_output_gradient(one.block)) for one in placed)

    def read_variant(self, network: Network) -> tuple[Block, ...] | None:
        """Return the block that a variant shows, then those to subtract; None otherwise."""
        blocks = read_block_variant(network) if self.by_block else read_variant(network)
        if blocks is None or self.output_gradient:
            return blocks
        return tuple(map(_drop_output_gradient, blocks))

    def make_variant(self, block: Block, network: Network) -> Network:
        """Return the network that shows a block of another network."""
        return make_variant(block, network, self.own_ends)


LAYERS = Partition()
BLOCKS = Partition(by_block=True)


def _drop_output_gradient(block: Block) -> Block:
    """Return a block such that all output layers of a curve are alike."""
    if block.role != "output" or not any(layer.input_grad for layer in block.layers):
        return block
    return replace(block, layers=tuple(replace(one, input_grad=False) for one in block.layers))


_OUTPUT_WIDTHS = ("cout", "hidden", "channels")


@dataclass(frozen=True)
class CurveRange:
    """A curve to be profiled and the range of its widths.

    Attributes:
        block: The point of the curve with the largest widths.
        lows: The smallest widths.
        steps: Widths are multiples of these.
        calls: How often a step of the network needs the curve, for a layer of the network or to
            subtract a block from a variant.
    """

    block: Block
    lows: Widths
    steps: Widths
    calls: int = 1

    @property
    def highs(self) -> Widths:
        """The largest widths."""
        return block_widths(self.block)


@lru_cache(maxsize=16)
def plan_curves(network: Network, partition: Partition = LAYERS) -> tuple[CurveRange, ...]:
    """Return all curves of a network, with those of stems and heads, in profiling order."""
    ranges: dict[str, CurveRange] = {}
    placed = partition.split(network)
    for one, steps in zip(placed, _list_steps(network, placed), strict=True):
        for found in _list_ranges(one, steps, network, partition):
            key = stable_hash(fixed_properties(found.block))
            ranges[key] = _merge_ranges(ranges[key], found) if key in ranges else found
    order = (*ROLES, REPEATED)
    return tuple(sorted(ranges.values(), key=lambda found: order.index(found.block.role)))


def _list_ranges(
    placed: PlacedBlock, steps: Widths, network: Network, partition: Partition
) -> Iterator[CurveRange]:
    """Yield the range of a block and those of its stems and heads, which follow its widths."""
    highs = tuple(
        max(step, size - size % step)
        for size, step in zip(block_widths(placed.block), steps, strict=True)
    )
    lows = tuple(
        min(_smallest_width(placed.block, step), high)
        for step, high in zip(steps, highs, strict=True)
    )
    next_widths = tuple(low + step for low, step in zip(lows, steps, strict=True))
    variants = [
        partition.split(partition.make_variant(resize_block(placed.block, widths), network))
        for widths in (lows, next_widths, highs)
    ]
    for low, following, high in zip(*variants, strict=True):
        first, second = block_widths(low.block), block_widths(following.block)
        differences = tuple(b - a or 1 for a, b in zip(first, second, strict=True))
        yield CurveRange(high.block, first, differences, placed.calls)


def _smallest_width(block: Block, step: int) -> int:
    """Return the smallest width at which a block does not become another one."""
    first = block.layers[0]
    if block.role == REPEATED:
        return step * -(-find_least_scale(block.layers, *block_widths(block)) // step)
    if "cin" in first.sizes and first.sizes.get("groups", 1) > 1:
        # One step less would make a grouped convolution depthwise, a depthwise one ordinary.
        return 2 * step
    ops = [op for layer in block.layers for op in (layer, *layer.tail)]
    least = max(find_kind(op.kind).least_width for op in ops)
    return step * -(-least // step)


def _list_steps(network: Network, placed: Sequence[PlacedBlock]) -> list[Widths]:
    """Return the steps in which the widths of each block come."""
    layers = unfold_blocks(network.layers)
    steps = []
    for one in placed:
        first, names = one.layers[0], width_names(one.block)
        if one.block.role == REPEATED:
            steps.append((find_scale_step(one.block.layers),) * len(names))
            continue
        index = one.index - first.reads[0] if first.reads else -1
        before = layers[index] if index >= 0 else None
        steps.append(tuple(_find_step(first, name, before) for name in names))
    return steps


def _find_step(layer: Layer, name: str, before: Layer | None) -> int:
    groups = int(layer.sizes.get("groups", 1))
    step = 1
    if name == "cout" and groups > 1:
        is_depthwise = groups == layer.sizes["cin"]
        step = (1 if is_depthwise else groups) * int(layer.sizes["cout"] // layer.sizes["cin"])
    elif "cin" not in layer.sizes:
        step = width_step(layer)
    if name in _OUTPUT_WIDTHS:
        step = math.lcm(step, *map(width_divisor, layer.tail))
    if name == "cin":
        step *= _count_flattened_positions(before)
    if name in ("cin", "channels") and layer.join == "concat":
        step = math.lcm(step, len(layer.reads))
    return step


def _count_flattened_positions(before: Layer | None) -> int:
    """Return how many positions a layer flattens into each channel of its output."""
    if before is None:
        return 1
    for index, op in enumerate(before.tail):
        if find_kind(op.kind).flattens:
            shape = output_shape(replace(before, tail=before.tail[:index]))
            return max(1, int(math.prod(shape[1:])))
    return 1


def _merge_ranges(one: CurveRange, two: CurveRange) -> CurveRange:
    steps = tuple(math.gcd(a, b) for a, b in zip(one.steps, two.steps, strict=True))
    lows = tuple(map(min, one.lows, two.lows))
    highs = tuple(map(max, one.highs, two.highs))
    return CurveRange(resize_block(one.block, highs), lows, steps, one.calls + two.calls)
