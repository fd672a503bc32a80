"""Isolated parts: a layer or a whole block alone, several copies side by side, summed to any net.

    copies forward ─▶ copies backward from a random gradient ─▶ one update        divide by copies

A variant shows a layer by what remains when the rest of a small net is subtracted; an isolated part
is all there is. Copies with their own weights and data keep the device busy between launches. What
ends a net is run with its loss, what stands first gets no gradient of its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.kinds import VIEWS, is_half, layer_work, output_shape
from joulecast.records import Execution, Input, Layer, Network, Setup, Trial
from joulecast.variants.make import fed_shape
from joulecast.variants.parts import Part, Place, open_blocks, split_network, strip_layer

BLOCK = "block"
# Copies of a part together move about this much, within bounds: enough to hide launches.
_FILL_BYTES = 1e9
_COPIES = (2, 8)


def split_blocks(network: Network) -> tuple[Place, ...]:
    """The parts of a network in call order, its repeated blocks as one part each.

    A block that reads tensors of several shapes from outside, or of which weights are shared or
    called again, is opened: alone it would not be what it is in the net.
    """
    layers = tuple(open_blocks(network.layers))
    blocks = {start: stop for start, stop in network.groups if len(layers) == len(network.layers)}
    places: list[Place] = []
    hidden = -1
    leaves = split_network(network)
    head = leaves[-1].index if leaves else 0
    blocks = {start: stop for start, stop in blocks.items() if stop <= head}
    for place in leaves:
        if place.index < hidden:
            continue
        block = _make_block(layers, place, blocks.get(place.index, 0))
        if block is not None:
            hidden = block.index + len(block.layers)
        places.append(block or place)
    return tuple(places)


def _make_block(layers: Sequence[Layer], first: Place, stop: int) -> Place | None:
    start = first.index
    if stop < start + 2 or stop >= len(layers):
        return None
    inside = tuple(layers[start:stop])
    shapes: set[tuple[int, ...]] = set()
    moved = []
    for index, layer in enumerate(inside):
        if layer.calls > 1 or layer.tied:
            return None
        sources = [start + index - back for back in layer.reads if back > index]
        if min(sources, default=0) < 0:
            return None
        shapes.update(output_shape(layers[source]) for source in sources)
        reads = tuple(min(back, index + 1) for back in layer.reads)
        moved.append(replace(layer, reads=reads, name=""))
    later = enumerate(layers[stop:], start=stop)
    leaks = any(start <= at - back < stop - 1 for at, layer in later for back in layer.reads)
    if leaks or shapes != {fed_shape(inside[0])}:
        return None
    return Place(Part(BLOCK, tuple(moved), first.part.half), start, inside)


def isolate_part(part: Part) -> Network:
    """The network that is a part and nothing else."""
    first = part.layers[0]
    vocabulary = int(first.sizes.get("vocabulary", 0))
    return Network(part.layers, Input(fed_shape(first), vocabulary, part.half))


def settle_part(part: Part, setup: Setup) -> Part:
    """A part as a setup meets it: only under autocast does it matter how it is fed."""
    return Part(part.role, part.layers) if part.half and not is_half(setup) else part


def make_isolated(part: Part, setup: Setup, mode: str = "eager", stage: str = "step") -> Trial:
    """The trial that shows what a part costs by itself."""
    upstream = "loss" if part.role == "output" else "random"
    moved = sum(layer_work(layer, setup).total.size_bytes for layer in part.layers)
    low, high = _COPIES
    copies = max(low, min(high, round(_FILL_BYTES / max(moved, 1.0))))
    return Trial(
        isolate_part(settle_part(part, setup)), setup, Execution(stage, mode, copies, upstream)
    )


def read_isolated(trial: Trial) -> Part | None:
    """The part that an isolated trial shows; None where it is none."""
    network, execution = trial.network, trial.execution
    if not network.layers or not network.buildable:
        return None
    if execution.upstream == "loss":
        places = split_network(network)
        return places[0].part if len(places) == 1 else None
    if len(network.layers) > 1:
        return Part(BLOCK, network.layers, network.input.half)
    layer = network.layers[0]
    if layer.kind in VIEWS and not layer.tail:
        return None
    data = layer.kind == "embedding" or not layer.input_grad
    return Part("input" if data else "hidden", (strip_layer(layer),), network.input.half)
