"""Align the clock of an instrument with the clock of a run, by load pulses.

    t' = a + (1 + d)·t          a: offset, d: drift (both unknown, |d| ≤ 500 ppm)

1. Search: for drifts on a grid, the trace is correlated with all pulses at once; the offset with
   the largest contrast between load and gaps is kept.
2. Shift: each group of pulses is moved by itself to where its contrast is largest.
3. Edges: where the power rises and falls, found to a fraction of a sample from the area under the
   trace: the energy around an edge says when the power changed.
4. A straight line through all edges, without outliers, gives a and d.

Groups whose edges are not where the line says do not match.

``attach_energies`` then reads the energy of recorded observations from the trace. The windows of
one run share its clock, so each run is aligned by itself. Energy per step is the mean power in a
window times its seconds per step, and an observation has the median over its windows, as with a
meter that is read live.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median, stdev

import numpy as np
import numpy.typing as npt

from joulecast.measurer.windows import PULSES
from joulecast.records import LoadWindow, Observation
from joulecast.system.errors import InputError
from joulecast.traces.power_trace import Floats, PowerTrace

MOST_DRIFT = 500e-6
"""Largest drift that is searched for: five times that of a cheap crystal."""
SLOWEST_INTERVAL_S = 0.025
"""Longest time between two samples with which pulses can be found."""

_BIN_S = 0.01
# How far a pulse may be from where the grid of drifts puts it.
_SMEAR_S = 0.03
_MOST_DRIFTS = 400
# Groups are shifted by at most this much, in such steps.
_SHIFT_S, _SHIFT_STEP_S = 0.1, 0.002
# Power changes within this time of an edge.
_EDGE_S = 0.04
# Edges further from the line than this belong to something else.
_LARGEST_RESIDUAL_S = 0.02
_LEAST_MATCHED_SHARE = 0.75
# Pulses of a group are the same load: a much smaller step of the power is something else.
_LEAST_STEP_SHARE = 0.3
# Before and after one trial.
_LEAST_GROUPS = 2


@dataclass(frozen=True)
class PulseGroup:
    """Pulses that follow each other, with gaps around and between them."""

    pulses: tuple[LoadWindow, ...]

    @property
    def loads_s(self) -> Floats:
        """Start and end of each pulse."""
        return np.array([[one.start_s, one.end_s] for one in self.pulses])

    @property
    def gaps_s(self) -> Floats:
        """Start and end of the time without load between two pulses."""
        loads = self.loads_s
        return np.column_stack([loads[:-1, 1], loads[1:, 0]])


@dataclass(frozen=True)
class ClockAlignment:
    """How the time of a trace follows from the time of a run.

    Attributes:
        origin_s: A moment of the run near its middle.
        offset_s: Time of the trace at that moment, minus that moment.
        drift: Seconds that the clock of the trace gains in a second of the run.
        residual_s: Root mean square distance of edges from the line.
        matched: For each group of pulses: whether it matches; None outside the trace.
    """

    origin_s: float
    offset_s: float
    drift: float
    residual_s: float
    matched: tuple[bool | None, ...]

    def convert(self, times_s: npt.ArrayLike) -> Floats:
        """Return times of the trace for times of the run."""
        times = np.asarray(times_s, float)
        return np.asarray(times + self.offset_s + self.drift * (times - self.origin_s))


def align_clocks(trace: PowerTrace, groups: Sequence[PulseGroup]) -> ClockAlignment:
    """Return the alignment of a trace with a run.

    Raises:
        InputError: The samples are too far apart, or the pulses are not in the trace.
    """
    if trace.interval_s > SLOWEST_INTERVAL_S:
        raise InputError(
            f"its samples are {trace.interval_s * 1e3:.0f} ms apart: record at least "
            f"{1 / SLOWEST_INTERVAL_S:.0f} a second, so that load pulses can be found"
        )
    origin_s = float(np.mean([group.loads_s.mean() for group in groups]))
    found = _search(trace, groups, origin_s)
    found = _shift_groups(trace, groups, found)
    for _ in range(2):
        found = _fit_edges(trace, groups, found)
    inside = [one for one in found.matched if one is not None]
    if sum(inside) < max(_LEAST_GROUPS, _LEAST_MATCHED_SHARE * len(inside)):
        raise InputError(
            f"its power does not follow the load pulses of the run ({sum(inside)} of "
            f"{len(groups)} groups match): give the trace that was recorded during this run"
        )
    return found


def _search(trace: PowerTrace, groups: Sequence[PulseGroup], origin_s: float) -> ClockAlignment:
    """Return the offset and drift with the largest contrast between pulses and gaps."""
    edges_s = np.arange(trace.times_s[0], trace.times_s[-1], _BIN_S)
    powers = trace.find_power(edges_s[:-1], edges_s[1:])
    # A few spikes must not decide.
    low, high = np.percentile(powers, [1, 99.5])
    powers = np.clip(powers, low, high) - np.median(powers)
    starts = np.concatenate([group.loads_s.ravel() for group in groups])
    span_s = float(np.ptp(starts))
    count = min(_MOST_DRIFTS, 1 + 2 * int(np.ceil(MOST_DRIFT * span_s / (2 * _SMEAR_S))))
    drifts = np.linspace(-MOST_DRIFT, MOST_DRIFT, count) if count > 1 else np.zeros(1)
    size = len(powers) + int(span_s * (1 + MOST_DRIFT) / _BIN_S) + 2
    length = 1 << (size - 1).bit_length()
    spectrum = np.fft.rfft(powers, length)
    best = (-np.inf, 0.0, 0.0)
    for drift in drifts:
        first_s = origin_s + (1 + drift) * (starts.min() - origin_s)
        template = _draw_template(groups, origin_s, float(drift), first_s, span_s)
        scores = np.fft.irfft(spectrum * np.conj(np.fft.rfft(template, length)), length)
        place = int(np.argmax(scores))
        if scores[place] > best[0]:
            # A trace may begin after the run: then the place is negative, which wraps around.
            bins = place if place < len(powers) else place - length
            best = (float(scores[place]), edges_s[0] + bins * _BIN_S - first_s, float(drift))
    return ClockAlignment(origin_s, best[1], best[2], 0.0, ())


def _draw_template(
    groups: Sequence[PulseGroup], origin_s: float, drift: float, first_s: float, span_s: float
) -> Floats:
    """Return weights whose product with powers is the sum of contrasts of all groups."""
    template = np.zeros(int(span_s * (1 + MOST_DRIFT) / _BIN_S) + 2)
    for group in groups:
        for windows, sign in ((group.loads_s, 1.0), (group.gaps_s, -1.0)):
            total_s = float(np.sum(windows[:, 1] - windows[:, 0]))
            moved = origin_s + (1 + drift) * (windows - origin_s) - first_s
            for start, end in np.rint(moved / _BIN_S).astype(int):
                template[start:end] += sign * _BIN_S / total_s
    return template


def _shift_groups(
    trace: PowerTrace, groups: Sequence[PulseGroup], found: ClockAlignment
) -> ClockAlignment:
    """Move each group to where its contrast is largest, and fit a line through the shifts."""
    shifts = np.arange(-_SHIFT_S, _SHIFT_S + _SHIFT_STEP_S / 2, _SHIFT_STEP_S)
    middles, moved = [], []
    for group in groups:
        loads, gaps = found.convert(group.loads_s), found.convert(group.gaps_s)
        if not trace.covers(loads[0, 0] - _SHIFT_S, loads[-1, 1] + _SHIFT_S):
            continue
        contrast = _mean_power(trace, loads, shifts) - _mean_power(trace, gaps, shifts)
        middles.append(group.loads_s.mean())
        moved.append(shifts[int(np.argmax(contrast))])
    return _fit_line(found, np.array(middles), np.array(moved))


def _mean_power(trace: PowerTrace, windows: Floats, shifts: Floats) -> Floats:
    starts, ends = windows[:, :1] + shifts, windows[:, 1:] + shifts
    energies_j = trace.find_energy(ends) - trace.find_energy(starts)
    return np.asarray(energies_j.sum(axis=0) / np.sum(windows[:, 1] - windows[:, 0]))


def _fit_edges(
    trace: PowerTrace, groups: Sequence[PulseGroup], found: ClockAlignment
) -> ClockAlignment:
    """Find all edges near where they are expected, and fit a line through them."""
    times, residuals, places = [], [], []
    matched: list[bool | None] = []
    for place, group in enumerate(groups):
        loads = found.convert(group.loads_s)
        if not trace.covers(loads[0, 0] - _EDGE_S, loads[-1, 1] + _EDGE_S):
            matched.append(None)
            continue
        late_s = _find_edges(trace, loads.ravel())
        times.append(group.loads_s.ravel()[1:-1])
        residuals.append(late_s)
        places.append(np.full(len(late_s), place))
        matched.append(False)
    if not times:
        return ClockAlignment(found.origin_s, found.offset_s, found.drift, 0.0, tuple(matched))
    at, late = np.concatenate(times), np.concatenate(residuals)
    good = np.isfinite(late) & (np.abs(late) < _LARGEST_RESIDUAL_S)
    line = _fit_line(found, at[good], late[good])
    # What is left after the line has moved.
    left = late - (line.convert(at) - found.convert(at))
    fine = np.isfinite(left) & (np.abs(left) < _LARGEST_RESIDUAL_S)
    for place, own in zip(np.unique(np.concatenate(places)), residuals, strict=True):
        share = fine[np.concatenate(places) == place].mean() if len(own) else 0.0
        matched[int(place)] = bool(share >= _LEAST_MATCHED_SHARE)
    residual_s = float(np.sqrt(np.mean(left[fine] ** 2))) if fine.any() else 0.0
    return ClockAlignment(line.origin_s, line.offset_s, line.drift, residual_s, tuple(matched))


def _find_edges(trace: PowerTrace, edges_s: Floats) -> Floats:
    """Return how much later than expected each inner edge is; NaN where there is no such edge.

    The energy from before an edge to after it is that of the power before, up to the edge, and of
    the power after it: the moment of the edge follows from it.
    """
    before, here, after = edges_s[:-2], edges_s[1:-1], edges_s[2:]
    level_before = trace.find_power(before + _EDGE_S, here - _EDGE_S)
    level_after = trace.find_power(here + _EDGE_S, after - _EDGE_S)
    energy_j = trace.find_energy(here + _EDGE_S) - trace.find_energy(here - _EDGE_S)
    rise = level_after - level_before
    # The first inner edge falls, from a pulse to a gap.
    falls = np.arange(len(here)) % 2 == 0
    signed = np.where(falls, -rise, rise)
    is_right = signed > max(_LEAST_STEP_SHARE * float(np.median(signed)), _find_noise(trace))
    with np.errstate(divide="ignore", invalid="ignore"):
        late_s = _EDGE_S - (energy_j - level_before * 2 * _EDGE_S) / rise
    return np.where(is_right, late_s, np.nan)


def _find_noise(trace: PowerTrace) -> float:
    """Return three standard errors of a mean power between two edges, in watts."""
    return 3 * trace.noise_w / math.sqrt(max(1.0, _EDGE_S / trace.interval_s))


def _fit_line(found: ClockAlignment, times_s: Floats, late_s: Floats) -> ClockAlignment:
    """Return the alignment moved by a line through what it is late by, without outliers."""
    if not len(times_s):
        return found
    at = times_s - found.origin_s
    keep = np.ones(len(at), bool)
    slope = level = 0.0
    for _ in range(3):
        slope, level = _regress(at[keep], late_s[keep])
        left = late_s - level - slope * at
        spread = 1.4826 * float(np.median(np.abs(left[keep])))
        keep = np.abs(left) <= 3 * spread + 1e-4
    return ClockAlignment(
        found.origin_s, found.offset_s + level, found.drift + slope, 0.0, found.matched
    )


def _regress(at: Floats, late_s: Floats) -> tuple[float, float]:
    """Return slope and level of a line; the slope is 0 where a drift could not be told."""
    middle, level = float(at.mean()), float(np.median(late_s))
    centred = at - middle
    square = float(np.sum(centred**2))
    if not square:
        return 0.0, level
    slope = float(np.sum(centred * late_s) / square)
    slope = float(np.clip(slope, -MOST_DRIFT, MOST_DRIFT))
    return slope, float(np.mean(late_s)) - slope * middle


@dataclass(frozen=True)
class RunAttachment:
    """What a trace says about one run.

    Attributes:
        run: Identifies the run of Joulecast.
        alignment: How the clocks are aligned; None if the trace does not belong to the run.
        completed: Each recorded observation, and the same with its energy.
        refused: Other observations, and why the trace says nothing about them.
    """

    run: str
    alignment: ClockAlignment | None
    completed: tuple[tuple[Observation, Observation], ...]
    refused: tuple[tuple[Observation, str], ...]


def attach_energies(
    trace: PowerTrace, observations: Sequence[Observation], source: str
) -> list[RunAttachment]:
    """Return what a trace says about recorded observations, one run after the other.

    Args:
        trace: Power on the clock of an instrument.
        observations: Recorded observations of one profile.
        source: Name of the trace, which observations keep.
    """
    by_run = sorted(observations, key=lambda one: one.run)
    return [
        _attach_run(trace, run, list(own), source)
        for run, own in groupby(by_run, key=lambda one: one.run)
    ]


def _attach_run(
    trace: PowerTrace, run: str, observations: list[Observation], source: str
) -> RunAttachment:
    owners = [number for number, one in enumerate(observations) for _ in split_pulses(one)]
    groups = [group for one in observations for group in split_pulses(one)]
    try:
        if not groups:
            raise InputError("the run recorded no load pulses: record a trial again")
        alignment = align_clocks(trace, groups)
    except InputError as error:
        return RunAttachment(run, None, (), tuple((one, str(error)) for one in observations))
    completed, refused = [], []
    for number, one in enumerate(observations):
        own = [
            matched
            for owner, matched in zip(owners, alignment.matched, strict=True)
            if owner == number
        ]
        reason = _find_refusal(trace, alignment, one, own)
        if reason:
            refused.append((one, reason))
        else:
            completed.append((one, _complete(trace, alignment, one, source)))
    return RunAttachment(run, alignment, tuple(completed), tuple(refused))


def split_pulses(observation: Observation) -> list[PulseGroup]:
    """Return the pulses before and those after the windows of an observation."""
    pulses = observation.pulses
    parts = [pulses[first : first + PULSES] for first in range(0, len(pulses), PULSES)]
    return [PulseGroup(part) for part in parts if len(part) > 1]


def _find_refusal(
    trace: PowerTrace,
    alignment: ClockAlignment,
    observation: Observation,
    matched: Sequence[bool | None],
) -> str:
    """Return why a trace says nothing about an observation; empty if it does."""
    for window in observation.windows:
        start_s, end_s = alignment.convert([window.start_s, window.end_s])
        if not trace.covers(start_s, end_s):
            missing_s = max(trace.times_s[0] - start_s, end_s - trace.times_s[-1])
            side = "begins" if start_s < trace.times_s[0] else "ends"
            where = "after it began" if side == "begins" else "before it ended"
            return f"the trace {side} {missing_s:.1f} s {where}"
        gap_s = trace.find_gap(start_s, end_s)
        if gap_s:
            return f"the trace has no sample for {gap_s:.3g} s of it"
    if False in matched:
        return "its load pulses are not where the trace should have them"
    return ""


def _complete(
    trace: PowerTrace, alignment: ClockAlignment, observation: Observation, source: str
) -> Observation:
    """Return an observation with its energy."""
    energies_j = []
    for window in observation.windows:
        start_s, end_s = alignment.convert([window.start_s, window.end_s])
        # Samples at the ends of a window are partly those of the idle device.
        rim_s = min(1.5 * trace.interval_s, 0.1 * (end_s - start_s))
        power_w = float(trace.find_power(start_s + rim_s, end_s - rim_s))
        is_idle = not observation.trial.network.layers
        step_s = 1.0 if is_idle else (window.end_s - window.start_s) / window.steps
        energies_j.append(max(power_w, 0.0) * step_s * observation.trial.execution.steps)
    spread_j = stdev(energies_j) if len(energies_j) > 1 else None
    return replace(observation, energy_j=median(energies_j), energy_sd_j=spread_j, source=source)
