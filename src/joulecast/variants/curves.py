"""Find every curve that a network needs, and the range of widths of each.

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

from joulecast.operators import find_kind, output_shape, width_divisor, width_step
from joulecast.records import Layer, Network, stable_hash
from joulecast.variants.blocks import (
    REPEATED,
    ROLES,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    find_least_scale,
    find_scale_step,
    fixed_properties,
    resize_block,
    split_blocks,
    split_network,
    unfold_blocks,
    width_names,
)
from joulecast.variants.variant_networks import make_variant, read_variant


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


def read_block_variant(network: Network) -> tuple[Block, ...] | None:
    """Return the block or layer that a variant shows, then the blocks to subtract."""
    placed = split_blocks(network)
    if [one.block.role for one in placed] != ["input", REPEATED, "output"]:
        return read_variant(network)
    if any(layer.calls > 1 or layer.tied for one in placed for layer in one.layers):
        return None
    first, block, output = (one.block for one in placed)
    return block, first, output


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
