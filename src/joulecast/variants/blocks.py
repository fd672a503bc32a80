"""Split a network into blocks, which are profiled one by one: single layers, or what repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from joulecast.operators import (
    Shape,
    channel_axis,
    find_kind,
    free_widths,
    get_width,
    input_shape,
    list_half_inputs,
    output_shape,
    resize_layer,
    uses_autocast,
    width_divisor,
)
from joulecast.records import Layer, Network, Op, Setup, name_layout, stable_hash

ROLES = ("output", "input", "hidden")
"""Roles of a single layer in profiling order: each is subtracted from the ones after it."""

REPEATED = "block"
"""The role of several layers that a network repeats."""

Widths = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """What is profiled as one: a layer in its role, or all layers of a block that repeats.

    It has no connections: whatever a layer reads in its network, how often it is called and with
    which layers it shares weights is left out.

    Attributes:
        role: One of ``ROLES``, or ``REPEATED``.
        layers: One layer; pooling and a linear layer at the end of a network; or all that repeat.
        half_input: Under autocast its input is in half precision. Only trials of isolated blocks
            depend on it, curves do not.
    """

    role: str
    layers: tuple[Layer, ...]
    half_input: bool = False


@dataclass(frozen=True)
class PlacedBlock:
    """A block at its position in a network.

    Attributes:
        block: The block.
        index: Index of its first layer in the network, with blocks unfolded.
        layers: Its layers with their connections.
        calls: How often one step calls it.
    """

    block: Block
    index: int
    layers: tuple[Layer, ...]
    calls: int = 1


def split_network(network: Network) -> tuple[PlacedBlock, ...]:
    """Return the layers of a network in call order, each as a block, without views."""
    layers = tuple(unfold_blocks(network.layers))
    half_inputs = list_half_inputs(layers, network.input)
    start = max(len(layers) - 1, 0)
    if start and layers[-1].reads == (1,) and "cin" in layers[-1].sizes:
        # Pooling of positions belongs to the output.
        before = layers[-2]
        is_pooling = find_kind(before.kind).reduces_positions(before.sizes)
        start -= bool(is_pooling and len(before.reads) == 1)
    placed = []
    for index, layer in enumerate(layers[:start]):
        if not is_bare_view(layer):
            reads_data = min(layer.reads, default=index + 1) > index
            is_input = reads_data or find_kind(layer.kind).reads_tokens
            role = "input" if is_input else "hidden"
            own = layers[index : index + 1]
            block = _make_shared_block(role, own, half_inputs[index])
            placed.append(PlacedBlock(block, index, own, layer.calls))
    if layers:
        block = _make_shared_block("output", layers[start:], half_inputs[start])
        placed.append(PlacedBlock(block, start, layers[start:], layers[-1].calls))
    return tuple(placed)


def split_blocks(network: Network) -> tuple[PlacedBlock, ...]:
    """Return the blocks of a network in call order, those that repeat as a whole.

    A block is split into its layers if it would behave differently alone: if it reads tensors of
    several shapes, or if its weights are shared or it is called again.
    """
    layers = tuple(unfold_blocks(network.layers))
    singles = split_network(network)
    output_index = singles[-1].index if singles else 0
    is_unfolded = len(layers) == len(network.layers)
    groups = network.groups if is_unfolded else ()
    blocks = {start: stop for start, stop in groups if stop <= output_index}
    placed: list[PlacedBlock] = []
    block_end = -1
    for single in singles:
        if single.index < block_end:
            continue
        stop = blocks.get(single.index)
        block = _make_repeated(layers, single, stop) if stop else None
        if block is not None:
            block_end = block.index + len(block.layers)
        placed.append(block or single)
    return tuple(placed)


def unfold_blocks(layers: Iterable[Layer]) -> list[Layer]:
    """Return layers in call order, with each block replaced by its layers."""
    singles: list[Layer] = []
    for layer in layers:
        singles += unfold_blocks(layer.parts) if layer.parts else [layer]
    return singles


def disconnect_layer(layer: Layer) -> Layer:
    """Return a layer without the connections, calls and ties it has in its network."""
    # Without a join, several inputs are one, concatenated (queries, keys, values), or constants.
    inputs = 1 if layer.join == "none" else len(layer.reads)
    # Faster than ``replace``: estimates of many networks disconnect many layers.
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
        transposed=layer.transposed,
        recomputed=layer.recomputed,
        parts=layer.parts,
    )


def match_precision(block: Block, setup: Setup) -> Block:
    """Return a block with the input precision it has under a setup: half only under autocast."""
    if block.half_input and not uses_autocast(setup):
        return Block(block.role, block.layers)
    return block


def match_phase(block: Block, setup: Setup) -> Block:
    """Return a block as it runs in its phase: inference has no loss and no gradients."""
    if setup.phase == "train":
        return block
    role = REPEATED if block.role == REPEATED else "hidden"
    return Block(role, tuple(map(_forget_training, block.layers)), block.half_input)


def single_input_shape(layer: Layer) -> Shape:
    """Return the shape of each input that a layer joins.

    Inputs that are concatenated get equal shares, rounded down.
    """
    shape = list(input_shape(layer))
    if layer.join == "concat":
        fn, _, text = str(layer.sizes.get("fn", "")).partition(" along ")
        # An axis of the batch; the first one of a sample by default.
        axis = int(text) - 1 if fn == "concat" and text.isdigit() and text != "0" else 0
        shape[axis] = max(1, shape[axis] // len(layer.reads))
    return tuple(shape)


def is_bare_view(layer: Layer) -> bool:
    """Return whether a layer is a view without a tail, so that nothing runs."""
    return find_kind(layer.kind).is_view and not layer.tail


def _forget_training(layer: Layer) -> Layer:
    """Return a layer without what inference cannot tell: dropout, and whether it trains."""
    tail = tuple(op for op in layer.tail if not find_kind(op.kind).only_trains)
    is_plain = layer.trains and layer.input_grad and not layer.recomputed
    if is_plain and not layer.parts and tail == layer.tail:
        return layer
    parts = tuple(map(_forget_training, layer.parts))
    return replace(layer, tail=tail, trains=True, input_grad=True, recomputed=False, parts=parts)


# Networks repeat blocks: sharing them saves memory and makes finding them fast.
@lru_cache(maxsize=65536)
def _make_shared_block(role: str, layers: tuple[Layer, ...], half_input: bool) -> Block:
    return Block(role, tuple(map(disconnect_layer, layers)), half_input)


def _make_repeated(layers: Sequence[Layer], first: PlacedBlock, stop: int) -> PlacedBlock | None:
    """Return the block that begins with a block, or None if it cannot run alone."""
    start = first.index
    if stop < start + 2 or stop >= len(layers):
        return None
    inside = tuple(layers[start:stop])
    shapes: set[Shape] = set()
    disconnected = []
    for index, layer in enumerate(inside):
        if layer.calls > 1 or layer.tied:
            return None
        sources = [start + index - back for back in layer.reads if back > index]
        if min(sources, default=0) < 0:
            return None
        shapes.update(output_shape(layers[source]) for source in sources)
        reads = tuple(min(back, index + 1) for back in layer.reads)
        disconnected.append(replace(layer, reads=reads, name=""))
    later = enumerate(layers[stop:], start=stop)
    is_read_inside = any(
        start <= index - back < stop - 1 for index, layer in later for back in layer.reads
    )
    if is_read_inside or shapes != {single_input_shape(inside[0])}:
        return None
    return PlacedBlock(Block(REPEATED, tuple(disconnected), first.block.half_input), start, inside)


@lru_cache(maxsize=4096)
def find_block_scale(layers: tuple[Layer, ...]) -> int | None:
    """Return the scale of a block: the largest number that divides all of its channels.

        encoder block of width 256, 4 heads     channels 256, 768, 1024, head size 64     scale 64
        residual block from 24 to 48 channels   channels 24, 48                           scale 24

    Blocks of one family differ in their scale only, so that a block has a curve over one width;
    blocks whose channels have other ratios lie on other curves. None if its layers cannot be scaled
    together.
    """
    if any(layer.sizes.get("groups", 1) > 1 or not _list_widths(layer) for layer in layers):
        return None
    scale = math.gcd(*(get_width(layer, name) for layer in layers for name in _list_widths(layer)))
    # Sizes that are not widths, such as the heads of a view, may have to follow the widths.
    doubled = scale_block(layers, scale, 2 * scale)
    return scale if _compare_shapes(layers) == _compare_shapes(doubled) else None


def scale_block(layers: tuple[Layer, ...], scale: int, new_scale: int) -> tuple[Layer, ...]:
    """Return the layers of a block at another scale."""
    return tuple(
        resize_layer(
            layer,
            **{name: get_width(layer, name) // scale * new_scale for name in _list_widths(layer)},
        )
        for layer in layers
    )


def find_scale_step(layers: tuple[Layer, ...]) -> int:
    """Return a number such that all of its multiples are valid scales (heads of an attention)."""
    return math.lcm(*(width_divisor(op) for layer in layers for op in (layer, *layer.tail)))


def find_least_scale(layers: tuple[Layer, ...], scale: int) -> int:
    """Return the smallest scale at which all operators still depend on their input."""
    scales = []
    for layer in layers:
        least = max(find_kind(op.kind).least_width for op in (layer, *layer.tail))
        units = min(get_width(layer, name) for name in _list_widths(layer)) // scale
        scales.append(-(-least // units))
    return max(scales)


def _list_widths(layer: Layer) -> tuple[str, ...]:
    return find_kind(layer.kind).widths


def _compare_shapes(layers: tuple[Layer, ...]) -> list[bool]:
    """Return for each connection inside a block whether both ends have the same shape."""
    return [
        output_shape(layers[index - back]) == input_shape(layer)
        for index, layer in enumerate(layers)
        for back in layer.reads
        if back <= index
    ]


@lru_cache(maxsize=4096)
def width_names(block: Block) -> tuple[str, ...]:
    """Return the names of the widths of a block that can be varied.

    The data fix the input widths of an input layer, the classes the other widths of an output. The
    channels of a block are scaled together.
    """
    first = block.layers[0]
    row = find_kind(first.kind)
    if any(_has_fixed_widths(layer) for layer in block.layers):
        return ()
    if block.role == REPEATED:
        return () if find_block_scale(block.layers) is None else ("scale",)
    names = free_widths(first)
    if block.role == "input":
        is_grouped = first.sizes.get("groups", 1) > 1
        return () if is_grouped else tuple(name for name in names if name not in row.input_widths)
    if block.role == "output":
        return tuple(name for name in names if name in row.input_widths) or names
    return names


def block_widths(block: Block) -> Widths:
    """Return the values of the widths that can be varied."""
    names = width_names(block)
    if block.role == REPEATED:
        return (find_block_scale(block.layers) or 1,) if names else ()
    return tuple(get_width(block.layers[0], name) for name in names)


def resize_block(block: Block, widths: Sequence[int]) -> Block:
    """Return the same block at other widths."""
    names = width_names(block)
    if block.role == REPEATED:
        if not names:
            return block
        return replace(
            block, layers=scale_block(block.layers, find_block_scale(block.layers) or 1, *widths)
        )
    layers = [resize_layer(block.layers[0], **dict(zip(names, widths, strict=True)))]
    for layer in block.layers[1:]:
        layers.append(resize_layer(layer, cin=output_shape(layers[-1])[-1]))
    return replace(block, layers=tuple(layers))


@lru_cache(maxsize=4096)
def curve_key(block: Block, setup: Setup) -> str:
    """Return a stable key of the curve that a block lies on, the same at all widths."""
    return stable_hash([fixed_properties(block), setup.to_dict()])


def fixed_properties(block: Block) -> dict[str, Any]:
    """Return everything but the widths of a block, as JSON."""
    if block.role == REPEATED:
        # At a scale of one, with what each layer reads.
        layers = resize_block(block, (1,)).layers
        listed = [{**_list_fixed_properties(one, ()), "reads": list(one.reads)} for one in layers]
        return {"role": REPEATED, "layers": listed}
    names = width_names(block)
    rest = [_list_fixed_properties(one, ("cin",) if names else ()) for one in block.layers[1:]]
    return {"role": block.role, "layers": [_list_fixed_properties(block.layers[0], names), *rest]}


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


def describe_block(block: Block) -> str:
    """Return a short description, such as ``hidden conv2d 48x48 kernel 3x3, relu``."""
    first = block.layers[0]
    sizes = first.sizes
    words = [block.role, "+".join(layer.kind for layer in block.layers)]
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
    return ", ".join([" ".join(words), *_list_details(block)])


def _list_details(block: Block) -> list[str]:
    """Return what distinguishes layers of the same kind with the same positions."""
    first, details = block.layers[0], []
    stride = first.sizes.get("stride", 1)
    strides = [size for size in (stride if isinstance(stride, tuple) else (stride,)) if size != 1]
    if strides:
        details.append(f"stride {strides[0]}")
    groups = int(first.sizes.get("groups", 1))
    if groups > 1:
        details.append("depthwise" if groups == first.sizes.get("cin") else f"{groups} groups")
    if first.sizes.get("fn", first.join) != first.join:
        details.append(str(first.sizes["fn"]))
    if first.join != "none":
        details.append(f"{first.join} {len(first.reads)}")
    tail = [op for layer in block.layers for op in layer.tail]
    details += [_name_op(op) for op in tail if not find_kind(op.kind).flattens]
    details += name_layout(first)
    if first.recomputed:
        details.append("checkpointed")
    if not first.trains:
        details.append("frozen")
    if block.role != "input" and not first.input_grad:
        details.append("first to train")
    return details


def _name_op(op: Op) -> str:
    """Return ``relu`` for a function, ``max pool`` for a variety of a kind, else the kind."""
    if "fn" not in op.sizes:
        return op.kind
    return str(op.sizes["fn"]) + ("" if find_kind(op.kind).is_function else f" {op.kind}")
