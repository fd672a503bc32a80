"""Split a network into parts: the layers or blocks that are profiled one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.kinds import (
    Shape,
    find_kind,
    input_shape,
    list_half_inputs,
    output_shape,
    uses_autocast,
)
from joulecast.records import Layer, Network, Setup

ROLES = ("output", "input", "hidden")
"""Roles of a single layer in profiling order: each is subtracted from the ones after it."""

BLOCK = "block"
"""The role of a whole block that a network repeats."""


@dataclass(frozen=True)
class Part:
    """A part of a network that is profiled as one: a layer in its role, or a block.

    It has no connections: whatever a layer reads in its network, how often it is called and with
    which layers it shares weights is left out.

    Attributes:
        role: One of ``ROLES``, or ``BLOCK``.
        layers: One layer; pooling and a linear layer at the end of a network; or all of a block.
        half_input: Under autocast its input is in half precision. Only trials of isolated parts
            depend on it, curves do not.
    """

    role: str
    layers: tuple[Layer, ...]
    half_input: bool = False


@dataclass(frozen=True)
class PlacedPart:
    """A part at its position in a network.

    Attributes:
        part: The part.
        index: Index of its first layer in the network, with blocks unfolded.
        layers: Its layers with their connections.
        calls: How often one step calls it.
    """

    part: Part
    index: int
    layers: tuple[Layer, ...]
    calls: int = 1


def split_network(network: Network) -> tuple[PlacedPart, ...]:
    """Return the parts of a network in call order, layer by layer, without views."""
    layers = tuple(unfold_blocks(network.layers))
    half_inputs = list_half_inputs(layers, network.input)
    start = len(layers) - _count_output_layers(layers)
    placed = []
    for index, layer in enumerate(layers[:start]):
        if not is_bare_view(layer):
            role = "input" if _reads_data(index, layer) else "hidden"
            own = layers[index : index + 1]
            part = _make_shared_part(role, own, half_inputs[index])
            placed.append(PlacedPart(part, index, own, layer.calls))
    if layers:
        part = _make_shared_part("output", layers[start:], half_inputs[start])
        placed.append(PlacedPart(part, start, layers[start:], layers[-1].calls))
    return tuple(placed)


def split_blocks(network: Network) -> tuple[PlacedPart, ...]:
    """Return the parts of a network in call order, each repeated block as one part.

    A block is split into its layers if it would behave differently alone: if it reads tensors of
    several shapes, or if its weights are shared or it is called again.
    """
    layers = tuple(unfold_blocks(network.layers))
    leaves = split_network(network)
    output_index = leaves[-1].index if leaves else 0
    is_unfolded = len(layers) == len(network.layers)
    groups = network.groups if is_unfolded else ()
    blocks = {start: stop for start, stop in groups if stop <= output_index}
    placed: list[PlacedPart] = []
    block_end = -1
    for leaf in leaves:
        if leaf.index < block_end:
            continue
        block = _make_block(layers, leaf, blocks.get(leaf.index, 0))
        if block is not None:
            block_end = block.index + len(block.layers)
        placed.append(block or leaf)
    return tuple(placed)


def unfold_blocks(layers: Iterable[Layer]) -> list[Layer]:
    """Return layers in call order, with each block replaced by its layers."""
    leaves: list[Layer] = []
    for layer in layers:
        leaves += unfold_blocks(layer.parts) if layer.parts else [layer]
    return leaves


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


def match_precision(part: Part, setup: Setup) -> Part:
    """Return a part with the input precision it has under a setup: half only under autocast."""
    if part.half_input and not uses_autocast(setup):
        return Part(part.role, part.layers)
    return part


def match_phase(part: Part, setup: Setup) -> Part:
    """Return a part as it runs in its phase: inference has no loss and no gradients."""
    if setup.phase == "train":
        return part
    role = BLOCK if part.role == BLOCK else "hidden"
    return Part(role, tuple(map(_forget_training, part.layers)), part.half_input)


def single_input_shape(layer: Layer) -> Shape:
    """Return the shape of each input that a layer joins.

    Inputs that are concatenated get equal shares, rounded down.
    """
    shape = list(input_shape(layer))
    if layer.join == "concat":
        axis = _find_concat_axis(layer)
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


# Networks repeat parts: sharing them saves memory and makes finding them fast.
@lru_cache(maxsize=65536)
def _make_shared_part(role: str, layers: tuple[Layer, ...], half_input: bool) -> Part:
    return Part(role, tuple(map(disconnect_layer, layers)), half_input)


def _make_block(layers: Sequence[Layer], first: PlacedPart, stop: int) -> PlacedPart | None:
    """Return the block that begins with a part, or None if it cannot run alone."""
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
    return PlacedPart(Part(BLOCK, tuple(disconnected), first.part.half_input), start, inside)


def _count_output_layers(layers: tuple[Layer, ...]) -> int:
    """Return the number of layers in the output part: two if the last but one pools positions."""
    if len(layers) < 2 or layers[-1].reads != (1,) or "cin" not in layers[-1].sizes:
        return min(1, len(layers))
    before = layers[-2]
    is_pooling = find_kind(before.kind).reduces_positions(before.sizes)
    return 2 if is_pooling and len(before.reads) == 1 else 1


def _reads_data(index: int, layer: Layer) -> bool:
    return find_kind(layer.kind).reads_tokens or min(layer.reads, default=index + 1) > index


def _find_concat_axis(layer: Layer) -> int:
    """Return the axis of a sample that inputs are concatenated along; the first by default."""
    fn, _, axis = str(layer.sizes.get("fn", "")).partition(" along ")
    return int(axis) - 1 if fn == "concat" and axis.isdigit() and axis != "0" else 0
