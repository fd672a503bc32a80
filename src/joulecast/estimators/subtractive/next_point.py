"""Propose where to measure next: both ends of every curve, then where a curve is most uncertain.

    corners   low … low, high … high, then mixed; output curves, then input, then hidden
    then      of all curves that are not known yet, the widths of the largest standard deviation,
              weighted by how often the target's step uses the curve

A curve is known when its largest standard deviation is below a share (5 %) of its profiled values.
An observation without energy and duration marks a trial that the device refused: neither it nor
anything at least as wide in every width is proposed again. If the smallest widths are refused,
slightly wider ones are tried; a curve that is refused repeatedly is given up.

As the paper has it (``paper_options.py``), curves are measured one after the other, from their
smallest and largest widths on, until the variance is small enough or a curve has its points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.base import Proposal, Target
from joulecast.estimators.subtractive.curves import Curve, read_variant_parts, width_rows
from joulecast.estimators.subtractive.paper_options import (
    OURS,
    PAPER_BATCHES,
    SubtractiveOptions,
)
from joulecast.records import Observation, Trial
from joulecast.units import format_share
from joulecast.variants import (
    CurveRange,
    Partition,
    Widths,
    curve_key,
    describe_part,
    part_widths,
    plan_curves,
    resize_part,
    width_names,
)

# Candidate values of each width, by number of widths.
_GRID_SIZES = {1: 256, 2: 24, 3: 8}
_FINE_GRID_SIZES = {1: 16_384, 2: 128, 3: 24}
# Refusals after which a curve without any measurement is given up.
_MAX_REFUSALS = 4


def propose_point(
    target: Target,
    observations: Sequence[Observation],
    curves: Mapping[str, Curve],
    options: SubtractiveOptions = OURS,
) -> Proposal:
    """Return the most useful trial, or the reason to stop.

    Args:
        target: What the profile is for.
        observations: Observations with the target's setup.
        curves: Curves fitted to them, by key.
        options: How points are chosen.
    """
    states = _list_states(target, observations, options.partition)
    uncertainties = [
        _find_uncertainty(state, curves.get(state.key), target, options) for state in states
    ]
    share = max((one.share for one in uncertainties), default=0.0)
    points = sum(len(state.tried) for state in states)
    proposal = _choose(target, uncertainties, options)
    return replace(proposal, uncertainty_share=share, points=points)


def list_candidates(found: CurveRange, is_coarse: bool = True) -> list[Widths]:
    """Return a grid over the widths of a curve, in whole steps, both ends included."""
    sizes = _GRID_SIZES if is_coarse else _FINE_GRID_SIZES
    size = sizes.get(len(found.steps), 4)
    axes = []
    for low, high, step in zip(found.lows, found.highs, found.steps, strict=True):
        multiples = np.linspace(low // step, max(low, high) // step, size).round().astype(int)
        axes.append([int(multiple) * step for multiple in np.unique(multiples)])
    return list(itertools.product(*axes))


@dataclass(frozen=True)
class _CurveState:
    """A curve of the target, the widths that were tried and those that the device refused."""

    key: str
    range: CurveRange
    tried: frozenset[Widths]
    refused: frozenset[Widths]

    def is_open(self, widths: Widths) -> bool:
        """Return whether widths may be proposed."""
        if widths in self.tried or widths in self.refused or self.is_given_up:
            return False
        limits = self.refused - {self.range.lows}
        return not any(all(map(int.__ge__, widths, limit)) for limit in limits)

    def is_full(self, limit: int | None) -> bool:
        """Return whether a curve has as many points as the paper's limit allows."""
        return limit is not None and len(self.tried) >= limit

    @property
    def is_given_up(self) -> bool:
        """Whether the device has refused everything that was tried."""
        return len(self.refused) >= _MAX_REFUSALS and not self.tried


@dataclass(frozen=True)
class _CurveUncertainty:
    """A curve's largest standard deviation, and the widths worth measuring, if any.

    Attributes:
        share: What is compared with the target's, by the rule that stops profiling.
    """

    state: _CurveState
    sd: float
    share: float
    widths: Widths | None = None


def _choose(
    target: Target, uncertainties: Sequence[_CurveUncertainty], options: SubtractiveOptions
) -> Proposal:
    by_use = sorted(uncertainties, key=lambda one: -one.sd * one.state.range.calls)
    for group in [by_use] if options.order else [[one] for one in uncertainties]:
        for one in uncertainties if options.order else group:
            for corner in _list_corners(one.state, options):
                return _propose(target, one.state, corner, "bound", options)
        for worst in group:
            if worst.widths is not None:
                name = "standard deviation" if options.stop == "sd" else "variance"
                reason = f"{name} {format_share(worst.share)}"
                return _propose(target, worst.state, worst.widths, reason, options)
    limit = f"{100 * target.uncertainty_share:g} %"
    if all(one.share < target.uncertainty_share for one in uncertainties):
        return Proposal(None, 0.0, f"every curve is known within {limit}")
    if any(one.state.is_full(options.limit) for one in uncertainties):
        reason = f"every curve is known within {limit} or has {options.limit} points"
        return Proposal(None, 0.0, reason)
    return Proposal(None, 0.0, "nothing is left to measure")


def _list_states(
    target: Target, observations: Iterable[Observation], partition: Partition
) -> list[_CurveState]:
    tried: dict[str, set[Widths]] = {}
    refused: dict[str, set[Widths]] = {}
    for seen in observations:
        parts = None
        if seen.trial.setup == target.setup:
            parts = read_variant_parts(seen, partition)
        if parts is None:
            continue
        is_refused = seen.energy_j is None and seen.duration_s is None
        has_quantity = target.acquisition == "time" or seen.energy_j is not None
        if is_refused or has_quantity:
            found = refused if is_refused else tried
            key = curve_key(parts[0], target.setup)
            found.setdefault(key, set()).add(part_widths(parts[0]))
    states = []
    for curve_range in plan_curves(target.network, partition.split, partition.make_variant):
        key = curve_key(curve_range.part, target.setup)
        done, bad = frozenset(tried.get(key, ())), frozenset(refused.get(key, ()))
        states.append(_CurveState(key, curve_range, done, bad))
    return states


def _find_uncertainty(
    state: _CurveState, curve: Curve | None, target: Target, options: SubtractiveOptions
) -> _CurveUncertainty:
    if curve is None:
        return _CurveUncertainty(state, 0.0, 1.0)
    candidates = list_candidates(state.range, options.grid)
    sds = curve.process.standard_deviations(width_rows(candidates))
    share = _compare_with_data(float(sds.max()), curve, options.stop)
    open_places = [at for at, widths in enumerate(candidates) if state.is_open(widths)]
    is_done = share < target.uncertainty_share or state.is_full(options.limit)
    if is_done or not open_places:
        return _CurveUncertainty(state, float(sds.max()), share)
    worst = max(open_places, key=lambda at: float(sds[at]))
    return _CurveUncertainty(state, float(sds[worst]), share, candidates[worst])


def _compare_with_data(sd: float, curve: Curve, rule: str) -> float:
    """Return the largest uncertainty of a curve as a share of its data, by a rule to stop."""
    mean = curve.mean_abs_value or 1.0
    if rule == "variance":
        # Numbers of 500 batches, as the paper has them: (500·sd)² / (500·mean).
        return PAPER_BATCHES * sd**2 / mean
    if rule == "variance share":
        return sd**2 / (float(curve.process.values.var()) or mean**2)
    return sd / mean


def _list_corners(state: _CurveState, options: SubtractiveOptions) -> Iterator[Widths]:
    """Yield the bounds that are still open: all low, all high, then the mixed ones."""
    choices = sorted(
        itertools.product((0, 1), repeat=len(state.range.lows)), key=lambda c: (len(set(c)) > 1, c)
    )
    for choice in choices:
        if len(set(choice)) > 1 and not options.corners:
            continue
        corner = _find_corner(state, choice)
        if state.is_open(corner):
            yield corner


def _find_corner(state: _CurveState, choice: Sequence[int]) -> Widths:
    """Return a corner of the range, moved inwards as long as the device refuses it."""
    lows, highs, steps = state.range.lows, state.range.highs, state.range.steps
    corner = tuple(high if up else low for up, low, high in zip(choice, lows, highs, strict=True))
    while not state.is_open(corner) and corner not in state.tried:
        if any(choice):
            moved = tuple(
                width // 2 // step * step for width, step in zip(corner, steps, strict=True)
            )
        else:
            moved = tuple(2 * width for width in corner)
        nearer = tuple(map(max, map(min, moved, highs), lows))
        if nearer == corner:
            return corner
        corner = nearer
    return corner


def _propose(
    target: Target, state: _CurveState, widths: Widths, reason: str, options: SubtractiveOptions
) -> Proposal:
    part = resize_part(state.range.part, widths)
    trial = Trial(options.partition.make_variant(part, target.network), target.setup)
    named = zip(width_names(part), widths, strict=True)
    at = ", ".join(f"{name} {width}" for name, width in named)
    return Proposal(trial, 0.0, f"{describe_part(part)} at {at or 'its size'} ({reason})")
