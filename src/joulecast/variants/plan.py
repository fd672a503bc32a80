"""The plan of a profile: every curve that a network needs, and the widths it spans.

A curve reaches from its smallest widths to the largest that any layer of the network has on it.
Widths come in steps: groups of a convolution, heads of an attention, and, behind a flatten, the
positions that it lays side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Dict, List, Optional, Tuple

from joulecast.kinds import output_shape, width_step
from joulecast.records import Layer, Network, stable_hash
from joulecast.variants.make import make_variant
from joulecast.variants.parts import (
    ROLES,
    Part,
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
        steps: Widths are multiples of these, which are also the smallest ones.
        calls: How often a step of the network counts on it, as a layer of its own or as one that is
            subtracted to learn another.
    """

    part: Part
    steps: Widths
    calls: int = 1

    @property
    def highs(self) -> Widths:
        return part_widths(self.part)


@lru_cache(maxsize=16)
def plan_curves(network: Network) -> Tuple[Range, ...]:
    """Every curve that a network needs, those of entries and heads included, in profiling order."""
    ranges: Dict[str, Range] = {}
    for place, steps in zip(split_network(network), _place_steps(network)):
        wanted = _fit_range(place.part, steps)
        low = make_variant(resize_part(wanted.part, steps), network)
        high = make_variant(wanted.part, network)
        for small, large in zip(split_network(low), split_network(high)):
            found = Range(large.part, part_widths(small.part), place.calls)
            key = stable_hash(part_frame(large.part))
            ranges[key] = _join_ranges(ranges[key], found) if key in ranges else found
    return tuple(sorted(ranges.values(), key=lambda found: ROLES.index(found.part.role)))


def _place_steps(network: Network) -> List[Widths]:
    """For each place the multiples in which its widths come."""
    layers = open_blocks(network.layers)
    steps = []
    for place in split_network(network):
        first = place.layers[0]
        index = place.index - first.reads[0]
        before = layers[index] if index >= 0 else None
        steps.append(tuple(_find_step(first, name, before) for name in width_names(place.part)))
    return steps


def _find_step(layer: Layer, name: str, before: Optional[Layer]) -> int:
    groups = int(layer.sizes.get("groups", 1))
    step = 1
    if name == "cout" and groups > 1:
        # Below two groups a depthwise convolution would be an ordinary one.
        depthwise = groups == layer.sizes["cin"]
        step = (2 if depthwise else groups) * int(layer.sizes["cout"] // layer.sizes["cin"])
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


def _flattened(before: Optional[Layer]) -> int:
    """Positions that a flatten turns into widths, so that widths come in multiples of them."""
    if before is None or not any(op.kind == "flatten" for op in before.tail):
        return 1
    stop = [op.kind for op in before.tail].index("flatten")
    shape = output_shape(replace(before, tail=before.tail[:stop]))
    return max(1, int(math.prod(shape[1:])))


def _fit_range(part: Part, steps: Widths) -> Range:
    highs = tuple(max(step, size - size % step) for size, step in zip(part_widths(part), steps))
    return Range(resize_part(part, highs), steps)


def _join_ranges(one: Range, two: Range) -> Range:
    steps = tuple(math.gcd(a, b) for a, b in zip(one.steps, two.steps))
    highs = tuple(max(a, b) for a, b in zip(one.highs, two.highs))
    return Range(resize_part(one.part, highs), steps, one.calls + two.calls)


def _lcm(a: int, b: int) -> int:
    return a * b // math.gcd(a, b)  # math.lcm came with Python 3.9
