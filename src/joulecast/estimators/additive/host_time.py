"""Two clocks: what the host adds to the device's own energy and time.

    H = h0 + Σ_p h(p) + h·between          issuing a step: a piece costs by its calls, not its size
    De = D + gap·launches                  the device's time, with its pauses between launches
    T = (H^12 + De^12)^(1/12)              the slower of the two decides, a little more when equal
    E = G + P0·(T - D)                     a waiting device draws idle power and nothing else

Host times are learnt from eager steps (calls.py): by sort of call, so that a structure that nobody
timed has a time too, and by structure. What a net calls between its layers (views, masks,
positions) stands in no piece: each such call takes the host about as long as a launch, forward and
backward together. Gap and exponent are stated priors where nothing shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import mul
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.additive.decompose import Look
from joulecast.estimators.additive.host_calls import Timed, fit_calls
from joulecast.estimators.additive.pieces import Count, Piece
from joulecast.kinds import CALLS

Json = dict[str, Any]
Floats = NDArray[np.float64]

EXPONENT = 12.0
GAP_S = 1.9e-6
_GAP_SPREAD_S = 0.6e-6
_TIMING_SHARE = 0.01
LAUNCH_S = 10e-6
# Host times of one net differ by about this from hour to hour (7.7 % on a shared H200 host): what
# some nets show of it counts as much as this many nets would that differ so. It is never less.
_USUAL_SPREAD = 0.08
_USUAL_NETS = 4.0
_LEAST_SPREAD = 0.03
_UNKNOWN_SPREAD = 0.4
_FEW_NETS = 2
# Steps tell what a call takes where one has at least so many times the calls of the other.
_APART = 1.5
_BOUND = 1.2
# Of 900 steps on H200 hosts that took longer than their kernels, issuing one took at least half as
# long as a step in all but one.
_LATE_SHARE = 0.5


@dataclass(frozen=True)
class Clock:
    """What is known of a device's host.

    Attributes:
        calls_s: Seconds of a call of each of CALLS.
        habits: What the time of a structure is of that of its calls; any other is as its calls.
        spread: Relative deviation of whole steps from the sum.
        nets: How many whole nets were timed.
        gap_sd_s: How far the pause between two launches may be off.
    """

    begin_s: float
    calls_s: tuple[float, ...]
    habits: dict[str, float]
    gap_s: float
    spread: float
    nets: int = 0
    gap_sd_s: float = _GAP_SPREAD_S

    def to_dict(self) -> Json:
        return {**self.__dict__, "calls_s": list(self.calls_s)}

    @classmethod
    def from_dict(cls, data: Json) -> Clock:
        return cls(**{**data, "calls_s": tuple(data["calls_s"])})

    def scale(self, pace: float) -> Clock:
        """A host that takes so many times as long for everything."""
        calls_s = tuple(pace * call_s for call_s in self.calls_s)
        return replace(self, begin_s=pace * self.begin_s, calls_s=calls_s)

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
        guessed_s = between * self.calls_s[0]
        total_s = self.begin_s + guessed_s
        for piece, count in counts:
            piece_s = count * self._time_calls(piece)
            total_s += piece_s * self.habits.get(piece.frame, 1.0)
            guessed_s += 0.0 if piece.frame in self.habits else piece_s
        sd_s = ((self.spread * total_s) ** 2 + (_UNKNOWN_SPREAD * guessed_s) ** 2) ** 0.5
        return total_s, sd_s

    def _time_calls(self, piece: Piece) -> float:
        return float(sum(map(mul, piece.calls, self.calls_s)))


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
        unknown_s = (LAUNCH_S,) * len(CALLS)
        return Clock(0.0, unknown_s, {}, gap_s, _UNKNOWN_SPREAD, 0, gap_sd_s)
    begin_s, calls_s, habits = fit_calls(timed, _find_launch(timed))
    clock = Clock(begin_s, calls_s, habits, gap_s, 0.0, 0, gap_sd_s)
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


def _find_launch(timed: Sequence[Timed]) -> float:
    """Seconds of a call: the median slope between steps, so that what begins one is not in it.

    A recurrent layer issues many kernels at once, and a small net is mostly beginning: a median
    does not mind either.
    """
    groups: dict[float, list[float]] = {}
    for look, host_s in timed:
        calls = sum(count * sum(piece.calls) for piece, count in look.counts)
        groups.setdefault(calls, []).append(host_s)
    points = sorted((calls, median(times_s)) for calls, times_s in groups.items())
    slopes = [
        (later_s - sooner_s) / (more - fewer)
        for (fewer, sooner_s), (more, later_s) in combinations(points, 2)
        if more >= _APART * fewer
    ]
    slope = median(slopes) if slopes else 0.0
    return slope if slope > 0 else median(time_s / max(n, 1.0) for n, time_s in points)


def _host_time(look: Look, busy_s: float) -> float:
    """The host's seconds: a host-bound loop shows them; else one issue to a waiting device does.

    What the device takes may be guessed too low: a host that was done long before the step was over
    has not held it up.
    """
    assert look.issue_s is not None and look.duration_s is not None
    late = look.issue_s > _LATE_SHARE * look.duration_s
    bound = late and look.duration_s > _BOUND * busy_s > 0
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
