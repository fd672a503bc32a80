"""Joules and seconds of any stage: by the regression of its kind, else by a guess.

    guess ≈ a·FLOPs + b·bytes + c·launches,  a, b, c ≥ 0      one for each Setup, one for all

Outside the sizes that a regression has seen a polynomial may say anything. There its value at the
nearest ones is carried on in proportion to the guess, and the stage counts as unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.baselines.regressions import SPECIAL, Regression, list_columns, list_costs
from joulecast.estimators.baselines.stages import SeenStage, Stage
from joulecast.records import Setup, stable_hash

Json = dict[str, Any]
Floats = NDArray[np.float64]

ANY = "*"
# A guess may fit what it was made from and still be far off elsewhere.
_GUESS_SPREAD = 0.6
# No point counts as if it were lighter than this share of the usual one.
_LIGHT_SHARE = 0.1


class Cost(NamedTuple):
    """What a stage costs.

    Attributes:
        spread: The share by which the joules may be off.
        known: A regression answers.
        seen: It does so within the sizes that were profiled.
    """

    energy_j: float
    duration_s: float
    spread: float
    known: bool
    seen: bool


def fit_guesses(points: Sequence[SeenStage]) -> Json:
    """Joules and seconds per FLOP, byte and launch, by Setup and for all of them."""
    rows: dict[str, list[SeenStage]] = {ANY: list(points)}
    for point in points:
        rows.setdefault(_name_row(point.stage.setup), []).append(point)
    return {name: _fit_guess(row) for name, row in sorted(rows.items())}


def cost_stages(
    regressions: Mapping[str, Json], guesses: Mapping[str, Json], stages: Iterable[Stage]
) -> dict[Stage, Cost]:
    """What each of many stages costs; those of one kind are asked for together."""
    groups: dict[str, list[Stage]] = {}
    for stage in dict.fromkeys(stages):
        groups.setdefault(stage.kind, []).append(stage)
    costs: dict[Stage, Cost] = {}
    for kind, group in groups.items():
        guess = guesses.get(_name_row(group[0].setup), guesses[ANY])
        data = regressions.get(kind)
        found = _ask(Regression.from_dict(data), guess, group) if data else _guess(guess, group)
        costs.update(zip(group, found, strict=True))
    return costs


def _guess(guess: Json, stages: Sequence[Stage]) -> list[Cost]:
    works = _count_work(stages)
    pairs = zip(works @ guess["energy"], works @ guess["time"], strict=True)
    return [Cost(float(j), float(s), guess["spread"], False, False) for j, s in pairs]


def _ask(known: Regression, guess: Json, stages: Sequence[Stage]) -> list[Cost]:
    columns = list_columns(stages)
    near = np.clip(columns, known.lows, known.highs)
    times, powers = known.predict(near)
    works = _count_work(stages)
    close = np.hstack([near[:, -SPECIAL:], works[:, SPECIAL:]])
    per = np.array(guess["time"])
    factors = (works @ per) / np.maximum(close @ per, 1e-300)
    inside = (near == columns).all(axis=1)
    factors = np.where(inside | (close @ per <= 0), 1.0, factors)
    costs = []
    for time, power, factor, seen in zip(times, powers, factors, inside, strict=True):
        # What is carried on is as doubtful as the guess that carries it.
        carried = abs(factor - 1.0) / max(factor, 1.0)
        spread = known.spread + float(carried) * guess["spread"]
        duration_s = float(time * factor)
        costs.append(Cost(float(power) * duration_s, duration_s, spread, True, bool(seen)))
    return costs


def _fit_guess(points: Sequence[SeenStage]) -> Json:
    works = _count_work([point.stage for point in points])
    times, energies = list_costs(points)
    per_j, spread = _fit_rates(works, energies)
    return {"energy": per_j, "time": _fit_rates(works, times)[0], "spread": spread}


def _fit_rates(works: Floats, costs: Floats) -> tuple[list[float], float]:
    """Rates of least relative error, and how far they are off."""
    from scipy.optimize import nnls

    # Sorted, so that the order of points leaves no trace.
    order = np.lexsort((costs, *works.T))
    sizes = np.maximum(costs, _LIGHT_SHARE * np.median(costs))[order]
    rows, aims = works[order] / sizes[:, None], costs[order] / sizes
    # FLOPs and launches lie twelve orders apart: without units of its own nnls stops too early.
    units = np.maximum(rows.max(axis=0), 1e-300)
    found, _ = nnls(rows / units, aims)
    off = float(np.sqrt(np.mean((rows / units @ found - aims) ** 2)))
    return (found / units).tolist(), max(off, _GUESS_SPREAD)


def _count_work(stages: Sequence[Stage]) -> Floats:
    works = [stage.work for stage in stages]
    return np.array([[w.flops, w.size_bytes, float(w.launches)] for w in works])


def _name_row(setup: Setup) -> str:
    return stable_hash(setup.to_dict())
