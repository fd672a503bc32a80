"""Two clocks: what the host adds to the device's own energy and time.

    H = h0 + Σ_p h_frame(p) + h·between    issuing a step: a piece costs by its structure, not size
    De = D + gap·launches                  the device's time, with its pauses between launches
    T = (H^12 + De^12)^(1/12)              the slower of the two decides, a little more when equal
    E = G + P0·(T - D)                     a waiting device draws idle power and nothing else

Host times are fitted by non-negative least squares to eager steps, drawn towards one time per
launch, so that a structure that nobody timed has a time too. What a net calls between its layers
(views, masks, positions) stands in no piece: each such call takes the host about as long as a
launch, forward and backward together. Gap and exponent are stated priors where nothing shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.looks import Look
from joulecast.estimators.pieces import Count

Json = dict[str, Any]
Floats = NDArray[np.float64]

EXPONENT = 12.0
GAP_S = 1.9e-6
_GAP_SPREAD_S = 0.6e-6
_TIMING_SHARE = 0.01
LAUNCH_S = 10e-6
# How far one structure's time per launch may be from the usual one, and one timing from the truth.
_FRAME_SPREAD = 0.8
_LOOK_SPREAD = 0.08
_ALONE_SPREAD = 0.25
# What begins and ends a step, whatever the net: about as much as so many launches.
_BEGIN_LAUNCHES = 5.0
# Host times of one net differ by about this from hour to hour (7.7 % on a shared H200 host): what
# some nets show of it counts as much as this many nets would that differ so. It is never less.
_USUAL_SPREAD = 0.08
_USUAL_NETS = 4.0
_LEAST_SPREAD = 0.03
_UNKNOWN_SPREAD = 0.4
_FEW_NETS = 2
# Steps tell what a launch takes where one has at least so many times the launches of the other.
_APART = 1.5
_BOUND = 1.2


@dataclass(frozen=True)
class Clock:
    """What is known of a device's host.

    Attributes:
        frames: Seconds to issue a piece, by structure; ``launch_s`` a launch of any other.
        spread: Relative deviation of whole steps from the sum.
        nets: How many whole nets were timed.
        gap_sd_s: How far the pause between two launches may be off.
    """

    begin_s: float
    launch_s: float
    frames: dict[str, float]
    gap_s: float
    spread: float
    nets: int = 0
    gap_sd_s: float = _GAP_SPREAD_S

    def to_dict(self) -> Json:
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Json) -> Clock:
        return cls(**data)

    def scale(self, pace: float) -> Clock:
        """A host that takes so many times as long for everything."""
        frames = {name: pace * time_s for name, time_s in self.frames.items()}
        return replace(
            self, begin_s=pace * self.begin_s, launch_s=pace * self.launch_s, frames=frames
        )

    @property
    def gain_share(self) -> float:
        """What timing one more net takes off the variance of host times, about."""
        return 0.0 if self.spread <= _LEAST_SPREAD else 1.0 / (_USUAL_NETS + self.nets + 1.0)

    def issue(self, counts: Sequence[Count], between: float = 0.0) -> tuple[float, float]:
        """Seconds to issue a step of these pieces, and their standard deviation.

        Args:
            counts: The pieces, and how often each is run.
            between: Calls that stand in no piece.
        """
        guessed_s = between * self.launch_s
        total_s = self.begin_s + guessed_s
        for piece, count in counts:
            known = self.frames.get(piece.frame)
            total_s += count * (piece.launches * self.launch_s if known is None else known)
            guessed_s += count * piece.launches * self.launch_s if known is None else 0.0
        sd_s = ((self.spread * total_s) ** 2 + (_UNKNOWN_SPREAD * guessed_s) ** 2) ** 0.5
        return total_s, sd_s


def step_time(host_s: Floats, device_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of eager steps, and their slopes by the host's and by the device's time."""
    top = np.maximum(host_s, device_s)
    host, device = host_s / top, device_s / top
    total = host**EXPONENT + device**EXPONENT
    time_s = top * total ** (1.0 / EXPONENT)
    slope = total ** (1.0 / EXPONENT - 1.0)
    return time_s, slope * host ** (EXPONENT - 1.0), slope * device ** (EXPONENT - 1.0)


def fit_clock(looks: Sequence[Look], device_s: Floats, device_var: Floats, unit: str = "") -> Clock:
    """Learn the host from eager looks, given what each takes on the device alone.

    Args:
        looks: All there are.
        device_s: What each takes on the device alone.
        device_var: Its variance.
        unit: The unit in question: structures are learnt from all, how quick its host is from it.
    """
    timed = [
        (look, _host_time(look, busy_s))
        for look, busy_s in zip(looks, device_s, strict=True)
        if look.mode == "eager" and look.issue_s and look.duration_s
    ]
    gap_s, gap_sd_s = _fit_gap(looks, device_s, device_var)
    if not timed:
        return Clock(0.0, LAUNCH_S, {}, gap_s, _UNKNOWN_SPREAD, 0, gap_sd_s)
    launch_s = _find_launch(timed)
    begin_s, frames = _fit_frames(timed, launch_s)
    clock = Clock(begin_s, launch_s, frames, gap_s, 0.0, 0, gap_sd_s)
    nets = [(look, host_s) for look, host_s in timed if look.whole]
    own = [(look, host_s) for look, host_s in nets if look.unit == unit]
    if _FEW_NETS <= len(own) < len(nets):
        pace = median(host_s / clock.issue(look.counts)[0] for look, host_s in own)
        clock, nets = clock.scale(pace), own
    off = [clock.issue(look.counts)[0] / host_s - 1.0 for look, host_s in nets]
    return replace(clock, spread=_find_spread(off), nets=len(off))


def _find_spread(off: Sequence[float]) -> float:
    """How far whole nets are from the sum, given what is usual."""
    if len(off) < _FEW_NETS:
        return 2.0 * _USUAL_SPREAD
    # Fitted times are nearer to what they were fitted to than to what comes.
    free = len(off) / max(1.0, len(off) - 1.0)
    total = _USUAL_NETS * _USUAL_SPREAD**2 + free * float(np.square(off).sum())
    return max(_LEAST_SPREAD, math.sqrt(total / (_USUAL_NETS + len(off))))


def _find_launch(timed: Sequence[tuple[Look, float]]) -> float:
    """Seconds of a launch: the median slope between steps, so that what begins one is not in it.

    A recurrent layer issues many kernels at once, and a small net is mostly beginning: a median
    does not mind either.
    """
    groups: dict[float, list[float]] = {}
    for look, host_s in timed:
        groups.setdefault(look.launches, []).append(host_s)
    points = sorted((launches, median(times_s)) for launches, times_s in groups.items())
    slopes = [
        (later_s - sooner_s) / (more - fewer)
        for (fewer, sooner_s), (more, later_s) in combinations(points, 2)
        if more >= _APART * fewer
    ]
    slope = median(slopes) if slopes else 0.0
    return slope if slope > 0 else median(time_s / max(n, 1.0) for n, time_s in points)


def _host_time(look: Look, busy_s: float) -> float:
    """The host's seconds: a host-bound loop shows them; else one issue to a waiting device does."""
    assert look.issue_s is not None and look.duration_s is not None
    bound = look.duration_s > _BOUND * busy_s > 0
    return look.duration_s if bound else min(look.issue_s, look.duration_s)


def _fit_gap(looks: Sequence[Look], device_s: Floats, device_var: Floats) -> tuple[float, float]:
    """Pause of a device-bound step between two launches, and how far it may be off."""
    weight = 1.0 / _GAP_SPREAD_S**2
    total = GAP_S * weight
    for look, busy_s, var in zip(looks, device_s.tolist(), device_var.tolist(), strict=True):
        if look.mode != "eager" or not look.whole or not look.duration_s or not look.issue_s:
            continue
        if look.issue_s * _BOUND < busy_s:
            precision = look.launches**2 / (var + (_TIMING_SHARE * look.duration_s) ** 2)
            weight += precision
            total += precision * (look.duration_s - busy_s) / look.launches
    return max(0.0, total / weight), weight**-0.5


def _fit_frames(
    timed: Sequence[tuple[Look, float]], launch_s: float
) -> tuple[float, dict[str, float]]:
    """Begin and structures by non-negative least squares, drawn towards time per launch."""
    from scipy.optimize import nnls

    names = sorted({piece.frame for look, _ in timed for piece, _ in look.counts})
    place = {name: at + 1 for at, name in enumerate(names)}
    usual = np.zeros(len(names) + 1)
    rows = []
    for look, host_s in timed:
        row = np.zeros(len(names) + 1)
        row[0] = 1.0
        for piece, count in look.counts:
            row[place[piece.frame]] += count
            usual[place[piece.frame]] = max(piece.launches, 1) * launch_s
        rows.append(row / host_s / (_LOOK_SPREAD if look.whole else _ALONE_SPREAD))
    aims = [1.0 / (_LOOK_SPREAD if look.whole else _ALONE_SPREAD) for look, _ in timed]
    usual[0] = _BEGIN_LAUNCHES * launch_s
    matrix = np.vstack([*rows, np.diag(1.0 / (_FRAME_SPREAD * usual))])
    found, _ = nnls(matrix, np.array([*aims, *([1.0 / _FRAME_SPREAD] * len(usual))]))
    return float(found[0]), {name: float(found[place[name]]) for name in names}
