"""The method of the AMPERE paper: a layer costs what a small network with it costs, less the rest.

    E(net)         = Ê_input(C1) + Σ Ê_hidden(C_i-1, C_i) + Ê_output(C_n-1)      equation 4
    Ê_output(C)    ← E([output])
    Ê_input(C)     ← E([input, output])         - Ê_output                       equation 1
    Ê_hidden(C,C') ← E([input, hidden, output]) - Ê_input - Ê_output             equation 2

There is one Gaussian process per curve. A curve is a layer in its role and setup, with all sizes
but its widths. ``curves.py`` subtracts, fits, adds up networks and estimates layers without a
curve. ``subtractive`` deviates from the paper in many points; ``options.py`` lists them, and
``ampere`` has none of them.

Profiling measures both ends of every curve, then where a curve is most uncertain:

    corners   low … low, high … high, then mixed; output curves, then input, then hidden
    then      of all curves that are not known yet, the widths of the largest standard deviation,
              weighted by how often the target's step uses the curve

A curve is known when its largest standard deviation is below a share (5 %) of its profiled values.
An observation without energy and duration marks a trial that the device refused: neither it nor
anything at least as wide in every width is proposed again. If the smallest widths are refused,
slightly wider ones are tried; a curve that is refused repeatedly is given up.

As the paper has it (``options.py``), curves are measured one after the other, from their
smallest and largest widths on, until the variance is small enough or a curve has its points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from joulecast.estimators.base import (
    SUBTRACTED_SUM_ERROR_SD_SHARE,
    FitComponent,
    Fitted,
    FittedBySetup,
    Floats,
    Json,
    Prediction,
    Proposal,
    Target,
    decline_probes,
    equicorrelated_covariance,
    split_energy_by_bytes,
)
from joulecast.estimators.subtractive.curves import (
    QUANTITIES,
    BlockCost,
    Curve,
    GroupRates,
    fit_curves,
    fit_rates,
    read_point,
    read_variant_blocks,
    sum_networks,
    width_rows,
)
from joulecast.estimators.subtractive.options import (
    OURS,
    PAPER_BATCHES,
    SubtractiveOptions,
    read_options,
)
from joulecast.gp.regression import fit_gaussian_process
from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial
from joulecast.records.codec import Record, always_stored, not_stored
from joulecast.system.errors import MissingError
from joulecast.system.units import format_share
from joulecast.variants import (
    PlacedBlock,
    Widths,
    block_widths,
    curve_key,
    describe_block,
    resize_block,
    width_names,
)
from joulecast.variants.curves import CurveRange, plan_curves


class SubtractiveEstimator:
    """AMPERE: active profiling of small variants, one Gaussian process per curve."""

    version = 1
    uses_anchors = False

    def __init__(self, name: str = "subtractive", kernel: str = "matern") -> None:
        """Make the estimator.

        Args:
            name: One of METHODS, perhaps with deviations from the paper that are switched.
            kernel: Kernel of the Gaussian processes.
        """
        self.name = name
        self.options = replace(read_options(name), kernel=kernel)
        self.partition = self.options.partition
        self.repeats_doubtful = self.options.repair
        self._fit_process = partial(_fit_process, options=self.options)

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a variant, run as a whole eager step."""
        return any(read_point(observation, name, self.partition) for name in QUANTITIES)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the bounds of every curve, then the point of largest variance."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        # The paper's rule knows no totals, so ``target`` means energy.
        quantity = "time" if target.acquisition == "time" else "energy"
        own = [seen for seen in observations if seen.trial.setup == target.setup]
        curves = self._fit_curves(own, quantity)
        return propose_point(target, own, curves, self.options)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedSubtractive:
        """Fit curves of energy and duration, and rates for layers without a curve."""
        by_quantity = {name: self._fit_curves(observations, name) for name in QUANTITIES}
        if not by_quantity["energy"]:
            raise MissingError(
                "no energy of a variant was measured on this device: profile the net there first"
            )
        curves: dict[str, Json] = {}
        for quantity, found in by_quantity.items():
            for key, curve in sorted(found.items()):
                curves.setdefault(key, _describe(curve))[quantity] = curve.process.to_dict()
        rates = {
            name: fit_rates(point for _, curve in sorted(found.items()) for point in curve.points)
            for name, found in by_quantity.items()
        }
        count = sum(map(self.uses, observations))
        return FittedSubtractive(curves, rates, SUBTRACTED_SUM_ERROR_SD_SHARE, count, self.options)

    def load(self, data: Json) -> FittedSubtractive:
        """Restore a fit from its JSON."""
        return replace(FittedSubtractive.from_dict(data), options=self.options)

    def _fit_curves(self, observations: Sequence[Observation], quantity: str) -> dict[str, Curve]:
        return fit_curves(
            observations, quantity, self._fit_process, self.partition, self.options.carried
        )


@dataclass(frozen=True)
class FittedSubtractive(FittedBySetup, Record):
    """A fit of the subtractive estimator.

    Attributes:
        curves: Gaussian processes of energy and duration of each curve, as JSON: a prediction
            needs few of many.
        rates: Rates for what no curve shows, by quantity.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers, as
            a share of the total.
    """

    curves: Mapping[str, Any]
    rates: Mapping[str, Mapping[str, GroupRates]]
    sum_error_sd_share: float = always_stored(json_name="off_share")
    observation_count: int = always_stored(json_name="seen")
    options: SubtractiveOptions = not_stored(OURS)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the curves."""
        items = [
            FitComponent(
                curve["label"],
                len(curve["energy"]["values"]) if "energy" in curve else 0,
                len(curve["time"]["values"]) if "time" in curve else 0,
                tuple(curve["features"]),
            )
            for curve in self.curves.values()
        ]
        return tuple(sorted(items, key=lambda item: item.label))

    def predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        split = self.options.partition.split
        blocks = [split(network) for network in networks]
        energy, duration = (
            sum_networks(self.curves, self.rates[quantity], quantity, blocks, setup, self.options)
            for quantity in QUANTITIES
        )
        sds_j = self.sum_error_sd_share * energy.totals
        cov = energy.cov + equicorrelated_covariance(networks, sds_j)
        return Prediction(
            energy_j=energy.totals,
            energy_sd_j=np.sqrt(np.diag(cov)),
            energy_cov=cov if joint else None,
            duration_s=duration.totals,
            layers=tuple(
                _list_layers(placed, costs, setup) if per_layer else ()
                for placed, costs in zip(blocks, energy.costs, strict=True)
            ),
            unseen_share=tuple(
                sum(cost.value for cost in costs if not cost.seen) / total if total else 0.0
                for costs, total in zip(energy.costs, energy.totals.tolist(), strict=True)
            ),
        )


# A proposal refits the one curve that has a new point, and the fit of a campaign none of energy.
_fit_process = lru_cache(maxsize=1024)(fit_gaussian_process)


def _describe(curve: Curve) -> Json:
    block, setup = curve.points[0].block, curve.points[0].setup
    return {
        "role": block.role,
        "kind": "+".join(layer.kind for layer in block.layers),
        "label": describe_block(block),
        "features": list(width_names(block)),
        "setup": setup.to_dict(),
        "n": len(curve.points),
    }


def _list_layers(
    blocks: Sequence[PlacedBlock], costs: Sequence[BlockCost], setup: Setup
) -> tuple[LayerEstimate, ...]:
    """Return one row per layer; layers of one block share its cost by the bytes they move."""
    return tuple(
        row
        for placed, cost in zip(blocks, costs, strict=True)
        for row in split_energy_by_bytes(placed.layers, cost.value, cost.seen, setup)
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

    Observations and curves are those of the target's setup.
    """
    states = _list_states(target, observations, curves, options)
    share = max((one.share for one in states), default=0.0)
    points = sum(len(one.tried) for one in states)
    # Of all curves at once, or of one curve after the other.
    for group in [states] if options.order else [[one] for one in states]:
        for one in group:
            for corner in _list_corners(one, options):
                trial, what = _make_trial(target, one, corner, options)
                return Proposal(trial, share, f"{what} (bound)", points)
        for worst in sorted(group, key=lambda one: -one.sd * one.range.calls):
            if worst.widths is not None:
                name = "standard deviation" if options.stop == "sd" else "variance"
                trial, what = _make_trial(target, worst, worst.widths, options)
                reason = f"{what} ({name} {format_share(worst.share)})"
                return Proposal(trial, share, reason, points)
    limit = f"{100 * target.uncertainty_share:g} %"
    reason = "nothing is left to measure"
    if all(one.share < target.uncertainty_share for one in states):
        reason = f"every curve is known within {limit}"
    elif any(one.is_full(options.limit) for one in states):
        reason = f"every curve is known within {limit} or has {options.limit} points"
    return Proposal(None, share, reason, points)


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
    """A curve of the target, and what is known of it.

    Attributes:
        tried: Widths that were measured.
        refused: Widths that the device refused.
        sd: The largest standard deviation.
        share: What is compared with the target's, by the rule that stops profiling.
        widths: Those worth measuring next, if any.
    """

    range: CurveRange
    tried: frozenset[Widths]
    refused: frozenset[Widths]
    sd: float = 0.0
    share: float = 1.0
    widths: Widths | None = None

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


def _list_states(
    target: Target,
    observations: Iterable[Observation],
    curves: Mapping[str, Curve],
    options: SubtractiveOptions,
) -> list[_CurveState]:
    tried: dict[str, set[Widths]] = {}
    refused: dict[str, set[Widths]] = {}
    for seen in observations:
        blocks = read_variant_blocks(seen, options.partition)
        if blocks is None:
            continue
        is_refused = seen.energy_j is None and seen.duration_s is None
        has_quantity = target.acquisition == "time" or seen.energy_j is not None
        if is_refused or has_quantity:
            found = refused if is_refused else tried
            key = curve_key(blocks[0], target.setup)
            found.setdefault(key, set()).add(block_widths(blocks[0]))
    states = []
    for curve_range in plan_curves(target.network, options.partition):
        key = curve_key(curve_range.block, target.setup)
        done, bad = frozenset(tried.get(key, ())), frozenset(refused.get(key, ()))
        state = _CurveState(curve_range, done, bad)
        if key in curves:
            state = _find_uncertainty(state, curves[key], target, options)
        states.append(state)
    return states


def _find_uncertainty(
    state: _CurveState, curve: Curve, target: Target, options: SubtractiveOptions
) -> _CurveState:
    """Return the state with its uncertainty, and the widths where that is largest."""
    candidates = list_candidates(state.range, options.grid)
    sds = curve.process.standard_deviations(width_rows(candidates))
    share = _compare_with_data(float(sds.max()), curve.process.values, options.stop)
    open_places = [at for at, widths in enumerate(candidates) if state.is_open(widths)]
    is_done = share < target.uncertainty_share or state.is_full(options.limit)
    if is_done or not open_places:
        return replace(state, sd=float(sds.max()), share=share)
    worst = max(open_places, key=lambda at: float(sds[at]))
    return replace(state, sd=float(sds[worst]), share=share, widths=candidates[worst])


def _compare_with_data(sd: float, values: Floats, rule: str) -> float:
    """Return the largest uncertainty of a curve as a share of its data, by a rule to stop."""
    mean = float(np.abs(values).mean()) or 1.0
    if rule == "variance":
        # Numbers of 500 batches, as the paper has them: (500·sd)² / (500·mean).
        return PAPER_BATCHES * sd**2 / mean
    if rule == "variance share":
        return sd**2 / (float(values.var()) or mean**2)
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


def _make_trial(
    target: Target, state: _CurveState, widths: Widths, options: SubtractiveOptions
) -> tuple[Trial, str]:
    """Return the trial that shows a point of a curve, and the name of that point."""
    block = resize_block(state.range.block, widths)
    trial = Trial(options.partition.make_variant(block, target.network), target.setup)
    named = zip(width_names(block), widths, strict=True)
    at = ", ".join(f"{name} {width}" for name, width in named)
    return trial, f"{describe_block(block)} at {at or 'its size'}"
