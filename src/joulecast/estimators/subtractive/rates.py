"""A rough cost for layers that were never profiled: joules per FLOP, byte and launch.

    y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0, least squares of (y - ŷ) / s
    s   the size of y, or of what it may be: subtraction leaves mostly noise of a light layer

A row is fitted for each kind in each setup, for all kinds of a setup, for each kind, and for all.
Asked for a layer, the most special row that has enough points answers, with a spread that says how
far it was off on what it knows, and never less than a floor: it is a guess and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.kinds import Work, layer_work
from joulecast.records import Setup, stable_hash
from joulecast.variants import Part

Json = dict[str, Any]
Floats = NDArray[np.float64]
# A point for the table: a part, how it was trained, its joules or seconds and their deviation.
Seen = tuple[Part, Setup, float, float]

_LEAST_POINTS = 4
_SAME_KIND_SPREAD = 0.3
_OTHER_KIND_SPREAD = 0.6
# A point counts by its size, by this many of its deviations where those are larger, and never as if
# it were lighter than this share of the usual one: one layer that costs nearly nothing would rule.
_NOISE = 4.0
_LIGHT_SHARE = 0.1


@lru_cache(maxsize=8192)
def part_work(part: Part, setup: Setup) -> Work:
    """FLOPs, bytes and launches of a part in one step."""
    works = [layer_work(layer, setup).total for layer in part.layers]
    return sum(works[1:], works[0])


def fit_rates(points: Iterable[Seen]) -> Json:
    """The table of rates, by row name."""
    rows: dict[str, list[Seen]] = {}
    for point in points:
        for name in _row_names(point[0], point[1]):
            rows.setdefault(name, []).append(point)
    least = {name: _LEAST_POINTS if name != "*" else 1 for name in rows}
    enough = {name: row for name, row in rows.items() if len(row) >= least[name]}
    return {name: _fit_row(name, row) for name, row in enough.items() if _has_cost(row)}


def guess_cost(rates: Mapping[str, Json], part: Part, setup: Setup) -> tuple[float, float, str]:
    """A part's cost, the share by which it may be off, and the row that says so."""
    for name in _row_names(part, setup):
        if name in rates:
            row = rates[name]
            return float(_features(part, setup) @ np.array(row["per"])), row["spread"], name
    return 0.0, _OTHER_KIND_SPREAD, ""


def guess_update_share(rates: Mapping[str, Json], part: Part, setup: Setup) -> float:
    """Share of a part's cost that its weights' update takes, once a step however often it runs."""
    guess, _, name = guess_cost(rates, part, setup)
    if guess <= 0:
        return 0.0
    updates = [layer_work(layer, setup).update for layer in part.layers]
    update = _count(sum(updates[1:], updates[0]))
    return float(update @ np.array(rates[name]["per"])) / guess


def _row_names(part: Part, setup: Setup) -> tuple[str, ...]:
    kind, place = f"kind:{part.layers[0].kind}", f"setup:{stable_hash(setup.to_dict())}"
    return (f"{place} {kind}", place, kind, "*")


def _features(part: Part, setup: Setup) -> Floats:
    return _count(part_work(part, setup))


def _count(work: Work) -> Floats:
    return np.array([work.flops, work.size_bytes, float(work.launches)])


def _has_cost(row: Sequence[Seen]) -> bool:
    return any(cost > 0 for _, _, cost, _ in row)


def _fit_row(name: str, row: Sequence[Seen]) -> Json:
    from scipy.optimize import nnls

    costs = np.array([cost for _, _, cost, _ in row])
    sds = np.array([sd for *_, sd in row])
    usual = float(np.median(np.abs(costs)))
    sizes = np.maximum(np.hypot(costs, _NOISE * sds), _LIGHT_SHARE * usual)
    features = np.array([_features(part, setup) for part, setup, _, _ in row]) / sizes[:, None]
    # FLOPs and launches lie twelve orders apart: without units of its own nnls stops too early.
    units = np.maximum(features.max(axis=0), 1e-300)
    per, _ = nnls(features / units, costs / sizes)
    off = float(np.sqrt(np.mean((features / units @ per - costs / sizes) ** 2)))
    floor = _SAME_KIND_SPREAD if "kind:" in name else _OTHER_KIND_SPREAD
    return {"per": (per / units).tolist(), "spread": max(off, floor), "n": len(row)}
