"""Equation 4 for many networks at once: sums over fitted curves, with their joint covariance.

    E = A·m,  Cov(E) = A·(Σ + white·I)·Aᵀ + Σ_r d_r·d_rᵀ

A counts how often each network runs each distinct point of a curve; m and Σ are the curve's joint
posterior there, so that layers which networks share err together. d_r is the doubt about layers
that no curve shows, one direction for each row of rates that guessed them. Beyond the widths that
were profiled a curve is not asked: its nearest point is carried on in proportion to that guess.

Where a curve's mean is below its own standard deviation, subtraction has left little but noise. A
plain sum would count such a layer as free; instead mean and guess are weighed by their variances,
and both variances stay in the sum. Weights are updated once a step, however often their layer is
called and whoever shares them: a further call counts without the guessed share of the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.subtractive.curves import Widths, as_rows
from joulecast.estimators.subtractive.rates import guess_cost, guess_update_share
from joulecast.gp.regression import GaussianProcess
from joulecast.records import Setup
from joulecast.variants import Part, PlacedPart, curve_key, part_widths, resize_part

Json = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """What a place costs in a step, all its calls.

    Attributes:
        seen: A curve shows it, within the widths that were profiled.
        curve: The curve it lies on, ``at`` which of its points, ``weight`` how often it counts.
        doubt: Standard deviation of what is guessed, by the row of rates ``row``.
    """

    value: float
    seen: bool = True
    curve: str = ""
    at: int = 0
    weight: float = 0.0
    doubt: float = 0.0
    row: str = ""


@dataclass(frozen=True)
class Sums:
    """Totals of n networks, their covariance, and the costs of their places."""

    totals: Floats
    cov: Floats
    costs: tuple[tuple[Cost, ...], ...]


@dataclass(frozen=True)
class _Points:
    """The points of one curve that some networks run, and its posterior there."""

    index: dict[Widths, int]
    means: Floats
    cov: Floats


def add_up(
    curves: Mapping[str, Json],
    all_rates: Mapping[str, Json],
    quantity: str,
    nets: Sequence[Sequence[PlacedPart]],
    setup: Setup,
) -> Sums:
    """What each network costs in joules (``energy``) or seconds (``time``)."""
    keys = {curve_key(place.part, setup) for places in nets for place in places}
    stored = {key: curves.get(key, {}).get(quantity) for key in sorted(keys)}
    gps = {key: GaussianProcess.from_dict(data) for key, data in stored.items() if data}
    points = _ask_curves(gps, (place.part for places in nets for place in places), setup)
    rates = all_rates[quantity]
    costs = tuple(
        tuple(_cost_place(place, setup, gps, points, rates) for place in places) for places in nets
    )
    totals = np.array([sum(cost.value for cost in row) for row in costs], dtype=float)
    return Sums(totals, _curve_cov(costs, points) + _doubt_cov(costs), costs)


def _ask_curves(gps: dict[str, GaussianProcess], parts: Iterable[Part], setup: Setup) -> dict[str, _Points]:
    index: dict[str, dict[Widths, int]] = {}
    for part in parts:
        key = curve_key(part, setup)
        if key in gps:
            places = index.setdefault(key, {})
            places.setdefault(_nearest(gps[key], part), len(places))
    points = {}
    for key, places in index.items():
        means, cov = gps[key].predict(as_rows(places))
        cov += gps[key].nugget_variance * np.eye(len(places))
        points[key] = _Points(places, means, cov)
    return points


def _nearest(gp: GaussianProcess, part: Part) -> Widths:
    """A part's widths, or the nearest ones within what was profiled."""
    lows, highs = gp.widths.min(axis=0), gp.widths.max(axis=0)
    widths = part_widths(part)
    return tuple(
        int(min(max(w, low), high)) for w, low, high in zip(widths, lows, highs, strict=False)
    )


def _cost_place(
    place: PlacedPart,
    setup: Setup,
    gps: dict[str, GaussianProcess],
    points: dict[str, _Points],
    rates: Json,
) -> Cost:
    part, key = place.part, curve_key(place.part, setup)
    times = _count_calls(place, rates, setup)
    guess, spread, row = guess_cost(rates, part, setup)
    if key not in gps:
        return Cost(guess * times, seen=False, doubt=guess * times * spread, row=row)
    near = _nearest(gps[key], part)
    at = points[key].index[near]
    if near == part_widths(part):
        mean, trust, doubt = _weigh(points[key], at, guess, spread)
        return Cost(mean * times, True, key, at, trust * times, doubt * times, row)
    known = guess_cost(rates, resize_part(part, near), setup)[0]
    ratio = guess / (known or guess or 1.0)
    mean, trust, doubt = _weigh(points[key], at, known, spread)
    doubt = ratio * doubt + abs(ratio - 1.0) * mean * spread
    return Cost(mean * ratio * times, False, key, at, trust * ratio * times, doubt * times, row)


def _count_calls(place: PlacedPart, rates: Json, setup: Setup) -> float:
    """How often a place counts what its part costs: further calls and tied weights update less."""
    repeats = place.calls - 1 + any(layer.tied for layer in place.layers)
    return place.calls - (repeats * guess_update_share(rates, place.part, setup) if repeats else 0)


def _weigh(points: _Points, at: int, guess: float, spread: float) -> tuple[float, float, float]:
    """A curve's cost at a point, the curve's weight in it, and the deviation that a guess adds."""
    mean, variance = float(points.means[at]), float(points.cov[at, at])
    if guess <= 0 or mean >= variance**0.5:
        return max(mean, 0.0), 1.0, 0.0
    doubt = guess * spread
    trust = doubt**2 / (variance + doubt**2)
    mixed = trust * mean + (1.0 - trust) * guess
    return max(mixed, 0.0), trust, (1.0 - trust) * doubt


def _curve_cov(costs: Sequence[Sequence[Cost]], points: dict[str, _Points]) -> Floats:
    counts = {key: np.zeros((len(costs), len(found.means))) for key, found in points.items()}
    for net, row in enumerate(costs):
        for cost in row:
            if cost.curve:
                counts[cost.curve][net, cost.at] += cost.weight
    total = np.zeros((len(costs), len(costs)))
    for key, found in points.items():
        total += counts[key] @ found.cov @ counts[key].T
    return total


def _doubt_cov(costs: Sequence[Sequence[Cost]]) -> Floats:
    """Guesses by one row of rates err together."""
    doubts: dict[str, Floats] = {}
    for net, row in enumerate(costs):
        for cost in row:
            if cost.doubt:
                doubts.setdefault(cost.row, np.zeros(len(costs)))[net] += cost.doubt
    total = np.zeros((len(costs), len(costs)))
    for doubt in doubts.values():
        total += np.outer(doubt, doubt)
    return total
