"""Where NeuralPower profiles: every kind of layer at sizes that fill its range, stage by stage.

    draw 1, 2, … of each kind in turn ──▶ forward, backward, update      until 20 sizes are complete

A kind's first draws are its layers as they stand in the target, and the smallest one; the others
are points of a Halton sequence over 1..width of each width, below one layer of the target after the
other. They depend on the target alone, so a campaign that was cut goes on where it was. A size that
the device refuses in a stage is replaced by the next draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from joulecast.estimators.base import Proposal, Target
from joulecast.estimators.baselines.stages import Stage, list_stages, name_part_type, read_stage
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

Stages = tuple[Stage, ...]

SIZES = 20
# Draws of a kind at most, as many of them fall on one size where widths are narrow.
_MOST_DRAWS = 4 * SIZES
# Refused sizes before a kind of which nothing was measured is left alone.
_PATIENCE = 4
_BASES = (2, 3, 5, 7)
# Boxes of one kind are not cut at the same shares.
_TURN = 0.618
# Sizes lie closer where they are small: there the relative cost changes most.
_CLOSER = 1.5


@dataclass(frozen=True)
class Box:
    """A part of the target at its own widths, and the widths below that sizes are drawn from."""

    part: Part
    lows: Widths
    steps: Widths

    @property
    def highs(self) -> Widths:
        return part_widths(self.part)

    def holds(self, other: Box) -> bool:
        """Whether another box of the same frame lies within this one."""
        return all(map(int.__le__, other.highs, self.highs))

    def draw(self, number: int, shift: float) -> Part:
        """The part at a point of the Halton sequence, moved on by a share of the box."""
        widths = []
        for low, high, step, base in zip(self.lows, self.highs, self.steps, _BASES, strict=False):
            places = (high - low) // step + 1
            share = (_turn_digits(number, base) + shift) % 1.0
            widths.append(low + step * int(places * share**_CLOSER))
        return resize_part(self.part, widths)


def choose_stage(target: Target, observations: Sequence[Observation]) -> Proposal:
    """The next stage to measure, or why there is none.

    Nothing is fitted here: as its uncertainty stands the share of sizes that still lack a stage.
    """
    known = _list_known(target.setup, observations)
    kinds = _draw_sizes(target.network, target.networks, target.setup)
    plans = [_plan_kind(sizes, known) for sizes in kinds]
    sizes = [stages for plan in plans for stages in plan]
    points = sum(known.get(stage, False) for stages in sizes for stage in stages)
    open_sizes = [stages for stages in _take_turns(plans) if any(s not in known for s in stages)]
    if not open_sizes:
        why = f"every kind is measured at {SIZES} sizes, or at all it has"
        return Proposal(None, 0.0, why, points)
    stage = next(stage for stage in open_sizes[0] if stage not in known)
    return Proposal(stage.trial, len(open_sizes) / len(sizes), _describe(stage), points)


def _take_turns(plans: Sequence[Sequence[Stages]]) -> Iterator[Stages]:
    """The first size of every kind, then the second: a budget may end at any time."""
    for turn in itertools.zip_longest(*plans):
        yield from (stages for stages in turn if stages)


def _list_known(setup: Setup, observations: Sequence[Observation]) -> dict[Stage, bool]:
    """Whether a stage was measured or refused: what has no numbers was."""
    known: dict[Stage, bool] = {}
    for observation in observations:
        seen = read_stage(observation) if observation.trial.setup == setup else None
        if seen is not None:
            measured = seen.energy_j is not None and seen.duration_s is not None
            known[seen.stage] = measured or known.get(seen.stage, False)
    return known


def _plan_kind(sizes: Sequence[Stages], known: Mapping[Stage, bool]) -> list[Stages]:
    """The sizes that a kind shall have, measured ones included, refused ones not."""
    fit = [stages for stages in sizes if all(known.get(stage, True) for stage in stages)]
    plan = fit[:SIZES]
    hopeless = len(sizes) - len(fit) >= _PATIENCE
    return [] if hopeless and not any(s in known for stages in plan for s in stages) else plan


@lru_cache(maxsize=16)
def _draw_sizes(
    network: Network, networks: tuple[Network, ...], setup: Setup
) -> tuple[tuple[Stages, ...], ...]:
    """For every kind the stages of all sizes that may be drawn, in order."""
    kinds = []
    for boxes in _list_kinds((network, *networks), setup):
        parts = dict.fromkeys(itertools.islice(_draw_parts(boxes), _MOST_DRAWS))
        drawn = (list_stages(part, setup) for part in parts)
        kinds.append(tuple(stages for stages in drawn if stages))
    return tuple(kinds)


def _draw_parts(boxes: Sequence[Box]) -> Iterator[Part]:
    for box in boxes:
        yield box.part
    yield resize_part(boxes[0].part, boxes[0].lows)
    for number in itertools.count(1):
        for place, box in enumerate(boxes):
            yield box.draw(number, place * _TURN)


def _turn_digits(number: int, base: int) -> float:
    """A number's digits behind the point, last one first: they fill 0..1 evenly."""
    value, unit = 0.0, 1.0
    while number:
        unit /= base
        number, digit = divmod(number, base)
        value += unit * digit
    return value


def _list_kinds(networks: Iterable[Network], setup: Setup) -> list[list[Box]]:
    """The boxes of every kind that some networks have, none within another."""
    frames: dict[str, list[Box]] = {}
    for frame, box in (found for network in networks for found in _list_boxes(network, setup)):
        others = frames.setdefault(frame, [])
        if not any(other.holds(box) for other in others):
            frames[frame] = [*(other for other in others if not box.holds(other)), box]
    kinds: dict[str, list[Box]] = {}
    for boxes in frames.values():
        kinds.setdefault(name_part_type(boxes[0].part, setup), []).extend(boxes)
    return list(kinds.values())


def _list_boxes(network: Network, setup: Setup) -> Iterator[tuple[str, Box]]:
    ranges = {stable_hash(fixed_properties(found.part)): found for found in plan_curves(network)}
    for place in split_network(network):
        part, frame = match_precision(place.part, setup), stable_hash(fixed_properties(place.part))
        found = ranges[frame]
        lows = tuple(map(min, found.lows, part_widths(part)))
        yield f"{frame} {part.half_input}", Box(part, lows, found.steps)


def _describe(stage: Stage) -> str:
    names, widths = width_names(stage.part), part_widths(stage.part)
    at = ", ".join(f"{name} {size}" for name, size in zip(names, widths, strict=True))
    return f"{stage.name} of {describe_part(stage.part)} alone at {at or 'its size'}"
