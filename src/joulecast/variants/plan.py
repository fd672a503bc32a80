"""The plan of a profile: every curve that a network needs, and the widths it spans.

A curve reaches from its smallest widths to the largest that any layer of the network has on it.
Widths come in steps: groups of a convolution, heads of an attention, and, behind a flatten, the
positions that it lays side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.kinds import output_shape, width_step
from joulecast.records import Layer, Network, stable_hash
from joulecast.variants.make import make_variant
from joulecast.variants.parts import (
    ROLES,
    Part,
    Place,
    Widths,
    open_blocks,
    part_frame,
    part_widths,
    resize_part,
    split_network,
    width_names,
)


@dataclass(frozen=True)
class Range:
    """A curve to be profiled.

    Attributes:
        part: One of its points, at the largest widths.
        lows: The smallest widths.
        steps: Widths are multiples of these.
        calls: How often a step of the network counts on it, as a layer of its own or as one that is
            subtracted to learn another.
    """

    part: Part
    lows: Widths
    steps: Widths
    calls: int = 1

    @property
    def highs(self) -> Widths:
        return part_widths(self.part)


@lru_cache(maxsize=16)
def plan_curves(network: Network) -> tuple[Range, ...]:
    """Every curve that a network needs, those of entries and heads included, in profiling order."""
    ranges: dict[str, Range] = {}
    for place, steps in zip(split_network(network), _place_steps(network), strict=False):
        for found in _find_ranges(place, steps, network):
            key = stable_hash(part_frame(found.part))
            ranges[key] = _join_ranges(ranges[key], found) if key in ranges else found
    return tuple(sorted(ranges.values(), key=lambda found: ROLES.index(found.part.role)))


def _find_ranges(place: Place, steps: Widths, network: Network) -> Iterator[Range]:
    """The ranges of a part and of what its variants subtract, which follow its widths."""
    highs = tuple(
        max(step, size - size % step)
        for size, step in zip(part_widths(place.part), steps, strict=False)
    )
    lows = tuple(
        min(_find_low(place.part, step), high) for step, high in zip(steps, highs, strict=False)
    )
    nexts = tuple(map(int.__add__, lows, steps))
    variants = (make_variant(resize_part(place.part, at), network) for at in (lows, nexts, highs))
    for low, following, high in zip(*map(split_network, variants), strict=False):
        one, two = part_widths(low.part), part_widths(following.part)
        yield Range(
            high.part, one, tuple(b - a or 1 for a, b in zip(one, two, strict=False)), place.calls
        )


def _find_low(part: Part, step: int) -> int:
    """The smallest width at which a part is still what it is."""
    first = part.layers[0]
    if "cin" in first.sizes and first.sizes.get("groups", 1) > 1:
        return 2 * step  # below, a group would be a channel, and a depthwise one an ordinary one
    # A norm over very few features leaves nothing to learn before it.
    ops = [op for layer in part.layers for op in (layer, *layer.tail)]
    least = 4 if any(op.kind in ("layer_norm", "rms_norm") for op in ops) else 1
    return step * -(-least // step)


def _place_steps(network: Network) -> list[Widths]:
    """For each place the multiples in which its widths come."""
    layers = open_blocks(network.layers)
    steps = []
    for place in split_network(network):
        first = place.layers[0]
        index = place.index - first.reads[0] if first.reads else -1
        before = layers[index] if index >= 0 else None
        steps.append(tuple(_find_step(first, name, before) for name in width_names(place.part)))
    return steps


def _find_step(layer: Layer, name: str, before: Layer | None) -> int:
    groups = int(layer.sizes.get("groups", 1))
    step = 1
    if name == "cout" and groups > 1:
        depthwise = groups == layer.sizes["cin"]
        step = (1 if depthwise else groups) * int(layer.sizes["cout"] // layer.sizes["cin"])
    elif "cin" not in layer.sizes:
        step = width_step(layer)
    if name in ("cout", "hidden", "channels"):
        for op in layer.tail:
            step = _lcm(step, int(op.sizes["groups"]) if op.kind == "group_norm" else 1)
    if name == "cin":
        step *= _flattened(before)
    if name in ("cin", "channels") and layer.join == "concat":
        step = _lcm(step, len(layer.reads))
    return step


def _flattened(before: Layer | None) -> int:
    """Positions that a flatten turns into widths, so that widths come in multiples of them."""
    if before is None or not any(op.kind == "flatten" for op in before.tail):
        return 1
    stop = [op.kind for op in before.tail].index("flatten")
    shape = output_shape(replace(before, tail=before.tail[:stop]))
    return max(1, int(math.prod(shape[1:])))


def _join_ranges(one: Range, two: Range) -> Range:
    steps = tuple(math.gcd(a, b) for a, b in zip(one.steps, two.steps, strict=False))
    lows = tuple(map(min, one.lows, two.lows))
    highs = tuple(map(max, one.highs, two.highs))
    return Range(resize_part(one.part, highs), lows, steps, one.calls + two.calls)


def _lcm(a: int, b: int) -> int:
    return a * b // math.gcd(a, b)  # math.lcm came with Python 3.9
