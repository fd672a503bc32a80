"""A rough cost for layers that were never profiled: joules per FLOP, byte and launch.

    y ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0, least squares of the relative error

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
# A point for the table: a part, how it was trained, its joules or seconds.
Seen = tuple[Part, Setup, float]

_LEAST_POINTS = 4
_SAME_KIND_SPREAD = 0.3
_OTHER_KIND_SPREAD = 0.6


@lru_cache(maxsize=8192)
def part_work(part: Part, setup: Setup) -> Work:
    """FLOPs, bytes and launches of a part in one step."""
    works = [layer_work(layer, setup).total for layer in part.layers]
    return sum(works[1:], works[0])


def fit_rates(points: Iterable[Seen]) -> Json:
    """The table of rates, by row name."""
    rows: dict[str, list[Seen]] = {}
    for point in points:
        if point[2] > 0:
            for name in _row_names(point[0], point[1]):
                rows.setdefault(name, []).append(point)
    least = {name: _LEAST_POINTS if name != "*" else 1 for name in rows}
    return {name: _fit_row(name, row) for name, row in rows.items() if len(row) >= least[name]}


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


def _fit_row(name: str, row: Sequence[Seen]) -> Json:
    from scipy.optimize import nnls

    costs = np.array([cost for _, _, cost in row])
    features = np.array([_features(part, setup) for part, setup, _ in row])
    relative = features / costs[:, None]
    # FLOPs and launches lie twelve orders apart: without units of its own nnls stops too early.
    units = np.maximum(relative.max(axis=0), 1e-300)
    per, _ = nnls(relative / units, np.ones(len(costs)))
    off = float(np.sqrt(np.mean((relative / units @ per - 1.0) ** 2)))
    floor = _SAME_KIND_SPREAD if "kind:" in name else _OTHER_KIND_SPREAD
    return {"per": (per / units).tolist(), "spread": max(off, floor), "n": len(row)}
