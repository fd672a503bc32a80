"""What the host's calls take, learnt from steps that were timed, all in logarithms.

    h = (Σ_j x_j·c_j)·e^δ     a piece: its calls of each sort, and a habit of its structure
    H = begin + Σ_p n_p·h_p   a step

A window shows a structure at the pace that the host has just then, and that moves by some 13 % from
window to window (one deviation): a net that repeats one block would take all of it over. So what is
common to all structures, the seconds of a launch, a weight, a product and a cast, is learnt from
all windows together, and what is left to a single structure, its habit δ, is drawn to none. Where
few steps were timed, calls of every sort are drawn to the time of a launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.decompose import Look
from joulecast.gp.kernels import Floats
from joulecast.kinds import CALLS

Timed = tuple[Look, float]

# How far one timing of a step may be from the truth, of a net or of a piece alone; logarithms.
_LOOK_SPREAD = 0.08
_ALONE_SPREAD = 0.25
# How far a structure's time may be from that of its calls. What a structure left over on one H200
# host hardly told what it left over on another (49 pairs): nearly all of it was the window.
_HABIT_SPREAD = 0.15
# How far what a call of one sort takes may be from a launch; likewise what begins a step.
_CALL_SPREAD = 0.5
# What begins and ends a step, whatever the net: about as much as so many launches.
_BEGIN_LAUNCHES = 10.0


@dataclass(frozen=True)
class _Steps:
    """Timed steps as sums.

    Attributes:
        times: Logarithms of their seconds, n; ``spreads`` how far each may be off.
        counts: How often each runs each of m sorts of pieces, n x m.
        calls: Calls of each sort of pieces, m x 4.
        frames: Which of f structures each sort of pieces has, m x f, ones and zeros.
    """

    times: Floats
    spreads: Floats
    counts: Floats
    calls: Floats
    frames: Floats

    def compare(self, theta: Floats) -> Floats:
        """How far the sums are from what was timed, in deviations."""
        begin_s, each = self._open(theta)
        total_s = begin_s + self.counts @ each.sum(axis=1)
        return np.asarray((np.log(total_s) - self.times) / self.spreads)

    def lean(self, theta: Floats) -> Floats:
        """What that changes by with each number learnt."""
        begin_s, each = self._open(theta)
        own_s = each.sum(axis=1)
        total_s = begin_s + self.counts @ own_s
        begins = np.full((len(total_s), 1), begin_s)
        by_habit = (self.counts * own_s) @ self.frames
        slopes = np.hstack([begins, self.counts @ each, by_habit])
        return np.asarray(slopes / (total_s * self.spreads)[:, None])

    def _open(self, theta: Floats) -> tuple[float, Floats]:
        """Seconds of what begins a step, and of the calls of each sort of pieces, m x 4."""
        sorts = len(CALLS)
        habits = np.exp(self.frames @ theta[1 + sorts :])
        return math.exp(theta[0]), self.calls * np.exp(theta[1 : 1 + sorts]) * habits[:, None]


def fit_calls(
    timed: Sequence[Timed], launch_s: float
) -> tuple[float, tuple[float, ...], dict[str, float]]:
    """Seconds of what begins a step and of each sort of calls, and what structures multiply.

    Args:
        timed: Looks and the host's seconds of each.
        launch_s: What a launch takes, about.
    """
    from scipy.optimize import least_squares

    names = sorted({piece.frame for look, _ in timed for piece, _ in look.counts})
    steps, sorts = _gather(timed, names), len(CALLS)
    middle = np.log([_BEGIN_LAUNCHES * launch_s, *[launch_s] * sorts, *[1.0] * len(names)])
    weights = 1.0 / np.array([_CALL_SPREAD] * (1 + sorts) + [_HABIT_SPREAD] * len(names))
    found = least_squares(
        lambda theta: np.hstack([steps.compare(theta), weights * (theta - middle)]),
        middle,
        lambda theta: np.vstack([steps.lean(theta), np.diag(weights)]),
        loss="soft_l1",
    )
    numbers = np.exp(found.x).tolist()
    habits = dict(zip(names, numbers[1 + sorts :], strict=True))
    return numbers[0], tuple(numbers[1 : 1 + sorts]), habits


def _gather(timed: Sequence[Timed], names: Sequence[str]) -> _Steps:
    pieces = {(p.frame, p.calls) for look, _ in timed for p, _ in look.counts}
    place = {piece: at for at, piece in enumerate(sorted(pieces))}
    counts = np.zeros((len(timed), len(place)))
    for row, (look, _) in zip(counts, timed, strict=True):
        for piece, count in look.counts:
            row[place[piece.frame, piece.calls]] += count
    calls = np.array([calls for _, calls in place]).reshape(len(place), len(CALLS))
    frames = np.array([[float(frame == name) for name in names] for frame, _ in place])
    spreads = [_LOOK_SPREAD if look.whole else _ALONE_SPREAD for look, _ in timed]
    times = np.log([host_s for _, host_s in timed])
    return _Steps(times, np.array(spreads), counts, calls, frames)
