"""Propose what NeuralPower measures: every layer type at sizes that fill its range, all stages.

    size 1, 2, … of each type in turn ──▶ forward, backward, update      until 20 sizes are complete

A type's first sizes are its layers in the target, and the smallest one. The others are points of a
Halton sequence over 1..width of each width, below one layer of the target after the other. They
depend on the target alone, so an interrupted campaign continues where it stopped. If the device
refuses a size in any stage, the next one replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from joulecast.estimators.base import Proposal, Target
from joulecast.estimators.baselines.stages import (
    LayerStage,
    list_stages,
    part_type_key,
    read_stage,
)
from joulecast.records import Network, Observation, Setup, stable_hash
from joulecast.variants import (
    Part,
    Widths,
    describe_part,
    fixed_properties,
    match_precision,
    part_widths,
    plan_curves,
    resize_part,
    split_network,
    width_names,
)

Stages = tuple[LayerStage, ...]
"""All stages of a part at one size."""

SIZES = 20
# Draws per type; many fall on the same size where widths are narrow.
_MAX_DRAWS = 4 * SIZES
# Refused sizes after which a type without any measurement is given up.
_MAX_REFUSALS = 4
_HALTON_BASES = (2, 3, 5, 7)
# Ranges of one type are shifted against each other by this share (the golden ratio).
_SHIFT_SHARE = 0.618
# Sizes are denser where they are small: there the relative cost changes most.
_DENSITY_EXPONENT = 1.5


def propose_stage(target: Target, observations: Sequence[Observation]) -> Proposal:
    """Return the next stage to measure, or the reason to stop.

    Nothing is fitted here: the uncertainty is the share of sizes that still lack a stage.
    """
    measured = _find_measured(target.setup, observations)
    types = _draw_sizes(target.network, target.networks, target.setup)
    plans = [_plan_type(sizes, measured) for sizes in types]
    sizes = [stages for plan in plans for stages in plan]
    points = sum(measured.get(stage, False) for stages in sizes for stage in stages)
    open_sizes = [
        stages for stages in _interleave(plans) if any(stage not in measured for stage in stages)
    ]
    if not open_sizes:
        reason = f"every layer type was measured at {SIZES} sizes, or at all sizes it has"
        return Proposal(None, 0.0, reason, points)
    stage = next(stage for stage in open_sizes[0] if stage not in measured)
    return Proposal(stage.trial, len(open_sizes) / len(sizes), _describe(stage), points)


@dataclass(frozen=True)
class _SizeRange:
    """A part of the target at its own widths, and the smaller widths that sizes are drawn from."""

    part: Part
    lows: Widths
    steps: Widths

    @property
    def highs(self) -> Widths:
        return part_widths(self.part)

    def contains(self, other: _SizeRange) -> bool:
        """Return whether another range of the same part lies within this one."""
        return all(map(int.__le__, other.highs, self.highs))

    def draw(self, number: int, shift: float) -> Part:
        """Return the part at a point of the Halton sequence, shifted by a share of the range."""
        widths = []
        # Parts have up to four widths.
        axes = zip(self.lows, self.highs, self.steps, _HALTON_BASES, strict=False)
        for low, high, step, base in axes:
            count = (high - low) // step + 1
            share = (_radical_inverse(number, base) + shift) % 1.0
            widths.append(low + step * int(count * share**_DENSITY_EXPONENT))
        return resize_part(self.part, widths)


def _interleave(plans: Sequence[Sequence[Stages]]) -> Iterator[Stages]:
    """Yield the first size of every type, then the second: a budget may end at any time."""
    for turn in itertools.zip_longest(*plans):
        yield from (stages for stages in turn if stages)


def _find_measured(setup: Setup, observations: Sequence[Observation]) -> dict[LayerStage, bool]:
    """Return for each observed stage whether it was measured; if not, the device refused it."""
    found: dict[LayerStage, bool] = {}
    for observation in observations:
        seen = read_stage(observation) if observation.trial.setup == setup else None
        if seen is not None:
            is_measured = seen.energy_j is not None and seen.duration_s is not None
            found[seen.stage] = is_measured or found.get(seen.stage, False)
    return found


def _plan_type(sizes: Sequence[Stages], measured: Mapping[LayerStage, bool]) -> list[Stages]:
    """Return the sizes at which to measure a type, without those that the device refused."""
    possible = [stages for stages in sizes if all(measured.get(stage, True) for stage in stages)]
    plan = possible[:SIZES]
    is_refused_often = len(sizes) - len(possible) >= _MAX_REFUSALS
    if is_refused_often and not any(stage in measured for stages in plan for stage in stages):
        return []
    return plan


@lru_cache(maxsize=16)
def _draw_sizes(
    network: Network, networks: tuple[Network, ...], setup: Setup
) -> tuple[tuple[Stages, ...], ...]:
    """Return for every type the stages of all sizes that may be drawn, in order."""
    types = []
    for ranges in _list_types((network, *networks), setup):
        parts = dict.fromkeys(itertools.islice(_draw_parts(ranges), _MAX_DRAWS))
        drawn = (list_stages(part, setup) for part in parts)
        types.append(tuple(stages for stages in drawn if stages))
    return tuple(types)


def _draw_parts(ranges: Sequence[_SizeRange]) -> Iterator[Part]:
    for found in ranges:
        yield found.part
    yield resize_part(ranges[0].part, ranges[0].lows)
    for number in itertools.count(1):
        for at, found in enumerate(ranges):
            yield found.draw(number, at * _SHIFT_SHARE)


def _radical_inverse(number: int, base: int) -> float:
    """Return a number's digits mirrored at the point: an element of a Halton sequence."""
    value, unit = 0.0, 1.0
    while number:
        unit /= base
        number, digit = divmod(number, base)
        value += unit * digit
    return value


def _list_types(networks: Iterable[Network], setup: Setup) -> list[list[_SizeRange]]:
    """Return the size ranges of every type in some networks, none within another."""
    by_part: dict[str, list[_SizeRange]] = {}
    for key, found in (pair for network in networks for pair in _list_ranges(network, setup)):
        others = by_part.setdefault(key, [])
        if not any(other.contains(found) for other in others):
            by_part[key] = [*(other for other in others if not found.contains(other)), found]
    types: dict[str, list[_SizeRange]] = {}
    for ranges in by_part.values():
        types.setdefault(part_type_key(ranges[0].part, setup), []).extend(ranges)
    return list(types.values())


def _list_ranges(network: Network, setup: Setup) -> Iterator[tuple[str, _SizeRange]]:
    """Yield the size range of each part of a network, with a key of its other properties."""
    curves = {stable_hash(fixed_properties(found.part)): found for found in plan_curves(network)}
    for placed in split_network(network):
        part, key = match_precision(placed.part, setup), stable_hash(fixed_properties(placed.part))
        lows = tuple(map(min, curves[key].lows, part_widths(part)))
        yield f"{key} {part.half_input}", _SizeRange(part, lows, curves[key].steps)


def _describe(stage: LayerStage) -> str:
    named = zip(width_names(stage.part), part_widths(stage.part), strict=True)
    at = ", ".join(f"{name} {width}" for name, width in named)
    return f"{stage.name} of {describe_part(stage.part)}, isolated, at {at or 'its size'}"
