"""Fit how long the host takes for its calls, from steps whose host time is known.

    h = (Σ_j x_j·c_j)·e^δ     a piece: its calls of each type j, and a factor of its structure
    H = o + Σ_p n_p·h_p       a step, with a fixed overhead o; inference has none

The pace of a host changes by some 13 % from one measurement window to the next (one standard
deviation), and a window shows a structure at the pace of that window: a network that repeats one
block would inherit all of it. So what all structures share, the durations of a launch, a weight, a
product and a cast, is fitted to all windows together, and the factor of a single structure has a
tight prior. Where few steps were timed, the prior pulls calls of every type towards the duration of
a launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.pieces import Piece
from joulecast.gp.linalg import Floats
from joulecast.kinds import HOST_CALLS

# Standard deviations of logarithms. Timing of one step, of a network and of an isolated piece:
_NETWORK_TIMING_SD = 0.08
_ISOLATED_TIMING_SD = 0.25
# Factor of a structure: its residual on one H200 host hardly predicted that on another (49 pairs),
# so that nearly all of it was the window.
_STRUCTURE_SD = 0.15
# Duration of one type of call, and of a step's overhead, around the duration of launches.
_CALL_SD = 0.5
# The overhead of a step, its start and end, takes about as long as this many launches.
_OVERHEAD_LAUNCHES = 10.0


@dataclass(frozen=True)
class TimedStep:
    """An observed step and the time that its host took."""

    observation: DecomposedObservation
    host_s: float


@dataclass(frozen=True)
class CallDurations:
    """How long the host takes for what a step consists of.

    Attributes:
        step_overhead_s: Fixed cost of a training step: what starts and ends it.
        per_call_s: Duration of one call, for each type in HOST_CALLS.
        structure_factors: Time of a structure over that of its calls.
    """

    step_overhead_s: float
    per_call_s: tuple[float, ...]
    structure_factors: dict[str, float]


def fit_call_durations(steps: Sequence[TimedStep], launch_s: float) -> CallDurations:
    """Fit durations by robust least squares with log-normal priors.

    Args:
        steps: Observed steps.
        launch_s: About how long a launch takes.
    """
    from scipy.optimize import least_squares

    structures = sorted({piece.structure for one in steps for piece in one.observation.counts})
    problem, types = _LeastSquares.make(steps, structures), len(HOST_CALLS)
    medians = np.log([_OVERHEAD_LAUNCHES * launch_s, *[launch_s] * types, *[1.0] * len(structures)])
    weights = 1.0 / np.array([_CALL_SD] * (1 + types) + [_STRUCTURE_SD] * len(structures))
    found = least_squares(
        lambda theta: np.hstack([problem.residuals(theta), weights * (theta - medians)]),
        medians,
        lambda theta: np.vstack([problem.jacobian(theta), np.diag(weights)]),
        loss="soft_l1",
    )
    step_overhead_s, *values = np.exp(found.x).tolist()
    factors = dict(zip(structures, values[types:], strict=True))
    return CallDurations(step_overhead_s, tuple(values[:types]), factors)


def trains(pieces: Iterable[Piece]) -> bool:
    """Return whether pieces are those of a training step."""
    return any(piece.phase == "train" for piece in pieces)


@dataclass(frozen=True)
class _LeastSquares:
    """Timed steps as sums; θ is the logarithms of overhead, calls and structure factors.

    Attributes:
        log_times: Logarithms of the host times, n.
        sds: Their standard deviations, n.
        counts: How often each step runs each of m distinct pieces, n x m.
        overheads: Number of overheads in each step, one or none, n.
        calls: Calls of these pieces, m x types.
        structures: Which of f structures each of them has, m x f, ones and zeros.
    """

    log_times: Floats
    sds: Floats
    counts: Floats
    overheads: Floats
    calls: Floats
    structures: Floats

    @classmethod
    def make(cls, steps: Sequence[TimedStep], structures: Sequence[str]) -> _LeastSquares:
        """Return the sums of timed steps, with one column for pieces that the host cannot tell."""
        distinct = {(p.structure, p.host_calls) for one in steps for p in one.observation.counts}
        index = {key: at for at, key in enumerate(sorted(distinct))}
        counts = np.zeros((len(steps), len(index)))
        for row, one in zip(counts, steps, strict=True):
            for piece, count in one.observation.counts.items():
                row[index[piece.structure, piece.host_calls]] += count
        calls = np.array([calls for _, calls in index]).reshape(len(index), len(HOST_CALLS))
        indicators = np.array([[float(own == name) for name in structures] for own, _ in index])
        sds = [
            _ISOLATED_TIMING_SD if one.observation.is_isolated else _NETWORK_TIMING_SD
            for one in steps
        ]
        log_times = np.log([one.host_s for one in steps])
        overheads = np.array([float(trains(one.observation.counts)) for one in steps])
        return cls(log_times, np.array(sds), counts, overheads, calls, indicators)

    def residuals(self, theta: Floats) -> Floats:
        """Return log ratios of modelled and measured times, in standard deviations."""
        step_overhead_s, calls_s = self._unpack(theta)
        total_s = step_overhead_s * self.overheads + self.counts @ calls_s.sum(axis=1)
        return np.asarray((np.log(total_s) - self.log_times) / self.sds)

    def jacobian(self, theta: Floats) -> Floats:
        """Return the Jacobian of the residuals with respect to θ."""
        step_overhead_s, calls_s = self._unpack(theta)
        pieces_s = calls_s.sum(axis=1)
        grad_overhead = step_overhead_s * self.overheads[:, None]
        total_s = grad_overhead[:, 0] + self.counts @ pieces_s
        grad_structure = (self.counts * pieces_s) @ self.structures
        gradients = np.hstack([grad_overhead, self.counts @ calls_s, grad_structure])
        return np.asarray(gradients / (total_s * self.sds)[:, None])

    def _unpack(self, theta: Floats) -> tuple[float, Floats]:
        """Return the duration of a step's overhead, and of the calls of each piece."""
        types = len(HOST_CALLS)
        factors = np.exp(self.structures @ theta[1 + types :])
        return math.exp(theta[0]), self.calls * np.exp(theta[1 : 1 + types]) * factors[:, None]
