"""Read the energy of recorded observations from a power trace.

The windows of one run share its clock, so each run is aligned with the trace by itself. Energy per
step is the mean power in a window times its seconds per step, and an observation has the median
over its windows, as with a meter that is read live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median, stdev

from joulecast.errors import InputError
from joulecast.measurer.load_pulses import PULSES
from joulecast.records import Observation
from joulecast.traces.alignment import ClockAlignment, PulseGroup, align_clocks
from joulecast.traces.power_trace import PowerTrace


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
