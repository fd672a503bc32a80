"""Fill in the energy of observations that were recorded with the meter ``later``.

The windows of one run share its clock, so each run is aligned with the trace by itself. Energy per
step is the mean power in a window times its seconds per step, and an observation has the median
over its windows, as with a meter that is read live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median, stdev
from typing import TYPE_CHECKING, Annotated

import numpy as np

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.data.import_runs import refit_profile
from joulecast.features.data.power_trace import (
    ClockAlignment,
    Floats,
    PowerTrace,
    align_clocks,
    read_trace,
)
from joulecast.features.profile import From
from joulecast.features.profiles import SHORT_KEY
from joulecast.measurer.windows import PULSES
from joulecast.records import Json, Observation
from joulecast.system.errors import FileError, InputError, MissingError, arg
from joulecast.system.units import format_duration
from joulecast.views.report import Block, Columns, Report, Reportable, Text, tabulate
from joulecast.views.words import format_optional, plural

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary, Store

# Reasons are often the same for many trials.
_MOST_REASONS = 10

TraceFile = Annotated[str, Argument("A CSV file of time and power.")]
RecordedDevice = Annotated[
    str, Argument("Device of the recordings.", metavar="NAME", default="the only one")
]
RunName = Annotated[
    str, Argument("Only this run of Joulecast.", metavar="NAME", default="all of them")
]


@verb
def attach_trace(
    trace: TraceFile,
    *,
    device: RecordedDevice = "",
    run: RunName = "",
    estimator: given.Estimator = "auto",
    from_: From = (),
    store: given.Store = None,
) -> TraceAttachment:
    """Fill in joules from TRACE, a CSV file of time and power.

    For campaigns that were recorded with --meter later. Load pulses are found in the trace, its
    clock is aligned with that of the run, and the power in each window is integrated. What the
    trace does not cover stays as it was.
    """
    from joulecast.features.transfer_sources import make_estimator
    from joulecast.store import open_store

    path = Path(trace)
    with open_store(store, create=False) as opened:
        summary, pending = _find_pending(opened, device, run)
        runs = attach_energies(read_trace(path), pending, path.name)
        pairs = [pair for one in runs for pair in one.completed]
        if not pairs:
            reason = next(reason for one in runs for _, reason in one.refused)
            raise FileError(f"{path} says nothing about {summary.device}: {reason}")
        method = make_estimator(estimator, from_, opened.load_profile(summary.key), store)
        completed = opened.complete_observations(pairs)
        is_fitted = refit_profile(opened, summary.key, method)
        left = sum(one.is_pending for one in opened.load_observations(summary.key))
    return TraceAttachment(summary.key, summary.device, completed, left, tuple(runs), is_fitted)


@dataclass(frozen=True)
class RunAttachment:
    """What a trace says about one run.

    Attributes:
        alignment: How the clocks are aligned; None if the trace does not belong to the run.
        completed: Each recorded observation, and the same with its energy.
        refused: Other observations, and why the trace says nothing about them.
    """

    run: str  # identifies the run of Joulecast
    alignment: ClockAlignment | None
    completed: tuple[tuple[Observation, Observation], ...]
    refused: tuple[tuple[Observation, str], ...]

    @property
    def clock(self) -> dict[str, float | None]:
        """Offset, drift and residual of the alignment; None without one."""
        found = self.alignment
        numbers = (found.offset_s, 1e6 * found.drift, found.residual_s) if found else (None,) * 3
        return dict(zip(("offset_s", "drift_ppm", "residual_s"), numbers, strict=True))


_RUN_COLUMNS: Columns = (
    ("run", lambda one: one.run),
    (">completed", lambda one: str(len(one.completed))),
    (">refused", lambda one: str(len(one.refused))),
    (">offset", lambda one: format_optional(one.clock["offset_s"], "{:.3f} s".format)),
    (">drift", lambda one: format_optional(one.clock["drift_ppm"], "{:.1f} ppm".format)),
    (">residual", lambda one: format_optional(one.clock["residual_s"], format_duration)),
)


@dataclass(frozen=True)
class TraceAttachment(Reportable):
    """What a power trace has filled in.

    Attributes:
        is_fitted: Whether there was enough to fit the estimator, so that networks can be estimated.
    """

    profile_key: str
    device: str
    completed: int  # number of observations that got their energy
    pending: int  # number of observations of the profile that still have none
    runs: tuple[RunAttachment, ...]
    is_fitted: bool

    def to_dict(self) -> Json:
        return {
            "profile": self.profile_key,
            "device": self.device,
            "completed": self.completed,
            "pending": self.pending,
            "is_fitted": self.is_fitted,
            "runs": [
                {
                    "run": one.run,
                    "completed": len(one.completed),
                    "refused": [
                        {"network": seen.trial.network.name, "reason": reason}
                        for seen, reason in one.refused
                    ],
                    **one.clock,
                }
                for one in self.runs
            ],
        }

    def report(self) -> Report:
        refused = [pair for one in self.runs for pair in one.refused]
        lines = [
            f"Refused: {one.trial.network.name or 'idle device'}: {reason}."
            for one, reason in refused[:_MOST_REASONS]
        ]
        if len(refused) > _MOST_REASONS:
            lines.append(f"Refused: {len(refused) - _MOST_REASONS} more, see --json.")
        if self.pending:
            lines.append(f"{plural(self.pending, 'observation')} still wait for a trace.")
        blocks: list[Block] = [tabulate(_RUN_COLUMNS, self.runs), *map(Text, lines)]
        blocks.append(
            Text(f"Next: joulecast estimate NET --device {self.device}", "command")
            if self.is_fitted
            else Text("These are too few to estimate networks: record more.")
        )
        title = f"{plural(self.completed, 'observation')} of {self.device} got their energy."
        return Report(title, tuple(blocks), kind="attachment")


def _find_pending(
    store: Store, device: str, run: str
) -> tuple[ProfileSummary, Sequence[Observation]]:
    """Return the profile that waits for a trace, and its recorded observations."""
    found = []
    for summary in store.list_matches(device) if device else store.list_profiles():
        known = () if summary.shipped else store.load_observations(summary.key)
        own = [one for one in known if one.is_pending and one.run.startswith(run)]
        if own:
            found.append((summary, own))
    if not found:
        whose = f" of {device}" if device else ""
        which = f" from run {run}" if run else ""
        raise MissingError(
            f"no observation{whose}{which} waits for a trace: record some with `joulecast profile "
            "NET --meter later` first"
        )
    if len(found) > 1:
        names = "; ".join(f"{one.device} ({one.key[:SHORT_KEY]})" for one, _ in found)
        raise InputError(
            f"{len(found)} profiles wait for a trace: give {arg('device')}, one of {names}"
        )
    return found[0]


def attach_energies(
    trace: PowerTrace, observations: Sequence[Observation], source: str
) -> list[RunAttachment]:
    """Return what a trace says about recorded observations of one profile, run by run.

    Observations that get their energy keep ``source``, the name of the trace.
    """
    by_run = sorted(observations, key=lambda one: one.run)
    return [
        _attach_run(trace, run, list(own), source)
        for run, own in groupby(by_run, key=lambda one: one.run)
    ]


def split_pulses(observation: Observation) -> list[Floats]:
    """Return the pulses before and those after the windows of an observation."""
    edges_s = [(one.start_s, one.end_s) for one in observation.pulses]
    parts = [edges_s[first : first + PULSES] for first in range(0, len(edges_s), PULSES)]
    return [np.array(part) for part in parts if len(part) > 1]


def _attach_run(
    trace: PowerTrace, run: str, observations: list[Observation], source: str
) -> RunAttachment:
    groups = [split_pulses(one) for one in observations]
    try:
        if not any(groups):
            raise InputError("the run recorded no load pulses: record a trial again")
        alignment = align_clocks(trace, [group for own in groups for group in own])
    except InputError as error:
        return RunAttachment(run, None, (), tuple((one, str(error)) for one in observations))
    completed, refused, matched = [], [], iter(alignment.matched)
    for one, own in zip(observations, groups, strict=True):
        try:
            is_matched = False not in [next(matched) for _ in own]
            energies_j = _integrate_windows(trace, alignment, one, is_matched)
        except InputError as error:
            refused.append((one, str(error)))
            continue
        spread_j = stdev(energies_j) if len(energies_j) > 1 else None
        energy_j = median(energies_j)
        completed.append(
            (one, replace(one, energy_j=energy_j, energy_sd_j=spread_j, source=source))
        )
    return RunAttachment(run, alignment, tuple(completed), tuple(refused))


def _integrate_windows(
    trace: PowerTrace, alignment: ClockAlignment, observation: Observation, is_matched: bool
) -> list[float]:
    """Return the energy in each window; raise InputError if the trace says nothing about one."""
    energies_j = []
    for window in observation.windows:
        start_s, end_s = alignment.convert([window.start_s, window.end_s])
        if not trace.covers(start_s, end_s):
            missing_s = max(trace.times_s[0] - start_s, end_s - trace.times_s[-1])
            is_late = start_s < trace.times_s[0]
            where = ("begins", "after it began") if is_late else ("ends", "before it ended")
            raise InputError(f"the trace {where[0]} {missing_s:.1f} s {where[1]}")
        gap_s = trace.find_gap(start_s, end_s)
        if gap_s:
            raise InputError(f"the trace has no sample for {gap_s:.3g} s of it")
        # Samples at the ends of a window are partly those of the idle device.
        rim_s = min(1.5 * trace.interval_s, 0.1 * (end_s - start_s))
        power_w = float(trace.find_power(start_s + rim_s, end_s - rim_s))
        is_idle = not observation.trial.network.layers
        step_s = 1.0 if is_idle else (window.end_s - window.start_s) / window.steps
        energies_j.append(max(power_w, 0.0) * step_s * observation.trial.execution.steps)
    if not is_matched:
        raise InputError("its load pulses are not where the trace should have them")
    return energies_j
