"""Measure an atlas: isolated layers and blocks of networks of all kinds.

    networks ─▶ trials in the order of a design ─▶ measure, store ─▶ … until the time is over
                        └ observed, refused or too slow for this device: left out

Every observation is stored as soon as it is made, refused trials too, and the list of trials
depends on the device alone: a campaign that was interrupted at any moment resumes. Fitting is left
to the caller, since measuring may happen in another process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from joulecast.campaign.anchors import (
    DeviceScale,
    MeasuredPeaks,
    apply_peaks,
    find_scale,
    read_peaks,
)
from joulecast.campaign.atlas import (
    MOST_TRIALS,
    AtlasTrial,
    draw_members,
    drop_observed,
    list_trials,
    split_members,
)
from joulecast.campaign.trial_log import (
    STOPPED_BY_REQUEST,
    ObservationLog,
    Progress,
    TrialLog,
    find_profile_key,
    repeat_doubtful,
)
from joulecast.errors import ContaminatedError
from joulecast.measurer import TrialMeasurer
from joulecast.records import Observation

# Networks of an atlas, for processors and for GPUs, which measure more trials in a second.
_NETWORKS = {False: 120, True: 300}
# The idle device is observed after this many trials.
_IDLE_EVERY = 100
# A step that would take longer at the measured peaks is left out, on processors and on GPUs. Layers
# of processors reach a smaller share of them.
_LONGEST_STEP_S = {False: 0.2, True: 0.5}
# So many trials with energy in a row that something disturbed end the campaign.
_MOST_DISTURBED = 3
# After this many trials, so many doubtful ones are measured again at most.
_REPEAT_EVERY, _REPEATS = 20, 5


@dataclass(frozen=True)
class AtlasLimits:
    """When an atlas ends, and what it tries.

    Attributes:
        seconds: Stop after this time on the measurer's clock.
        points: Stop at this many trials, those of earlier runs and refused ones included.
        most_trials: How many trials the design has.
        networks: Number of networks; None chooses it by the device.
        retries_refused: Try again what the device refused in earlier runs.
        phase: What its networks do: ``train`` or ``inference``.
    """

    seconds: float | None = None
    points: int | None = None
    most_trials: int = MOST_TRIALS
    networks: int | None = None
    retries_refused: bool = False
    phase: str = "train"


@dataclass(frozen=True)
class AtlasRun:
    """What one run of an atlas did.

    Attributes:
        new: Number of trials measured.
        stopped: Why it ended.
        repeated: Doubtful trials that were measured again.
        disturbances: How often something disturbed a measurement, by name.
        restarts: How often the measuring process had to be replaced.
    """

    profile_key: str
    new: int
    stopped: str
    elapsed_s: float
    repeated: int = 0
    disturbances: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0


def run_atlas(
    measurer: TrialMeasurer,
    log: ObservationLog,
    limits: AtlasLimits,
    *,
    on_trial: Callable[[Observation], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    is_stop_requested: Callable[[], bool] = lambda: False,
) -> AtlasRun:
    """Measure trials in their order and store them, until a limit is reached.

    Args:
        measurer: Measures trials.
        log: Stores observations as they are made.
        limits: When to stop.
        on_trial: Called before every measurement with what is stored should the process die.
        on_progress: Called before every measurement and at the end.
        is_stop_requested: Asked before every measurement; True ends the campaign.

    Raises:
        ContaminatedError: Something disturbed several measurements in a row.
        DeviceLostError: The process can no longer use the device; another one can continue.
    """
    if on_progress is not None:
        on_progress(Progress(0, 0.0, 0.0, None, "planning what to measure"))
    campaign = _AtlasCampaign(measurer, log, limits)
    stopped = ""
    while not stopped:
        one = campaign.choose_next()
        stopped = campaign.find_stop_reason(one)
        if not stopped and is_stop_requested():
            stopped = STOPPED_BY_REQUEST
        if on_progress is not None:
            on_progress(campaign.make_progress(stopped or _describe(one)))
        if one is not None and not stopped:
            if on_trial is not None:
                on_trial(measurer.make_refusal(one.trial, ""))
            campaign.measure(one)
    return campaign.finish(stopped)


def plan_atlas(measurer: TrialMeasurer, limits: AtlasLimits) -> tuple[AtlasTrial, ...]:
    """Return all trials of an atlas of the measurer's device, in the order of the design."""
    scale, modes = find_scale(measurer), measurer.runtime.modes
    count = limits.networks or _NETWORKS["graph" in modes]
    blocks = split_members(draw_members(count, scale, limits.phase))
    return list_trials(blocks, scale, modes, limits.most_trials, limits.phase)


class _AtlasCampaign:
    """A running atlas: what is left, what is known, and the time that has passed."""

    def __init__(self, measurer: TrialMeasurer, log: ObservationLog, limits: AtlasLimits) -> None:
        self._measurer, self._limits = measurer, limits
        self._started_s = measurer.now()
        self._key = find_profile_key(measurer)
        stored = list(log.load_observations(self._key))
        self._trials = TrialLog(measurer, log, stored, keeps_refusals=True)
        planned = plan_atlas(measurer, limits)
        seen = [one for one in stored if not (limits.retries_refused and one.refusal)]
        self._left = list(drop_observed(planned, seen))
        self._earlier = len(planned) - len(self._left)
        self._tried = self._disturbed = self._repeated = 0
        self._measured_scale: DeviceScale | None = None
        self._planned_s = measurer.now()

    def choose_next(self) -> AtlasTrial | None:
        """Return the next trial, or None after the last one."""
        while self._left:
            if self._is_time_over() or not self._is_too_slow(self._left[0]):
                return self._left[0]
            self._left.pop(0)
        return None

    def find_stop_reason(self, one: AtlasTrial | None) -> str:
        """Return why to stop, or an empty string to go on."""
        limits = self._limits
        if one is None:
            return "every trial of the atlas was tried"
        if limits.points is not None and self._count_done() >= limits.points:
            return f"{limits.points} trials are done"
        if self._is_time_over():
            return f"the budget of {limits.seconds:.0f} s is spent"
        return ""

    def make_progress(self, reason: str) -> Progress:
        """Return the state of the campaign."""
        elapsed_s, done = self._find_elapsed_s(), self._count_done()
        total = done + len(self._left)
        if self._limits.points is not None:
            total = min(total, max(done, self._limits.points))
        limits_s = []
        if self._limits.seconds is not None:
            limits_s.append(self._limits.seconds - elapsed_s)
        if self._tried:
            limits_s.append((total - done) * self._find_pace_s())
        left_s = max(0.0, min(limits_s)) if limits_s else None
        return Progress(done, 0.0, elapsed_s, left_s, reason, total)

    def measure(self, one: AtlasTrial) -> None:
        """Measure a trial; every now and then the idle device, and again what looks wrong."""
        self._left.pop(0)
        try:
            # What another campaign measures at the moment is left to it.
            self._trials.measure(one.trial, one.with_energy, one.label, waits=False)
            # Only a meter sees other programs and throttling, so times alone prove nothing.
            self._disturbed = 0 if one.with_energy else self._disturbed
        except ContaminatedError:
            # The device is to blame, not the trial: a later run tries it again.
            self._disturbed += 1
            if self._disturbed == _MOST_DISTURBED:
                raise
        if self._tried % _IDLE_EVERY == 0:
            self._trials.measure_idle()
        self._tried += 1
        if self._tried % _REPEAT_EVERY == 0:
            self._repeated += repeat_doubtful(self._trials, most=_REPEATS)

    def finish(self, stopped: str) -> AtlasRun:
        """Measure again what looks wrong, and return what was done."""
        if self._tried and not self._is_time_over():
            self._repeated += repeat_doubtful(self._trials, most=_REPEATS)
        disturbances = dict(self._measurer.disturbances)
        elapsed_s, new = self._find_elapsed_s(), self._trials.new
        return AtlasRun(self._key, new, stopped, elapsed_s, self._repeated, disturbances)

    def _count_done(self) -> int:
        return self._earlier + self._tried

    def _is_time_over(self) -> bool:
        """Return whether one more trial would take longer than the limit."""
        limit_s = self._limits.seconds
        return limit_s is not None and self._find_elapsed_s() + self._find_pace_s() > limit_s

    def _find_pace_s(self) -> float:
        """Return the seconds of one trial; 0 before the first."""
        return (self._measurer.now() - self._planned_s) / self._tried if self._tried else 0.0

    def _find_elapsed_s(self) -> float:
        return self._measurer.now() - self._started_s

    def _is_too_slow(self, one: AtlasTrial) -> bool:
        """Return whether a step would take very long at the rates that the anchors showed."""
        if one.reason == "anchor":
            return False
        scale = self._find_measured_scale()
        step_s = scale.duration_s(one.work, one.trial.setup.precision) * one.trial.execution.copies
        return step_s > _LONGEST_STEP_S["graph" in self._measurer.runtime.modes]

    def _find_measured_scale(self) -> DeviceScale:
        if self._measured_scale is None:
            scale, modes = find_scale(self._measurer), self._measurer.runtime.modes
            peaks = read_peaks(self._trials.believed, scale, modes)
            self._measured_scale = apply_peaks(scale, peaks)
        return self._measured_scale


def _describe(one: AtlasTrial | None) -> str:
    """Return what is measured, for people."""
    if one is None:
        return ""
    setup, layers = one.trial.setup, one.trial.network.layers
    what = "energy" if one.with_energy else "time"
    # Labels of blocks are hashes.
    name = f"a block of {len(layers)} layers {setup.precision}" if len(layers) > 1 else one.label
    return f"{what} of {name}, batch {setup.batch}"


@dataclass(frozen=True)
class AtlasSummary:
    """What is stored about a device.

    Attributes:
        trials: Distinct trials that were measured.
        with_energy: Those of them whose energy was measured.
        refused: Trials that the device refused, by reason, the most frequent first.
        idle_power_w: Median power of the idle device; None if it was not measured.
        peaks: The fastest rates seen.
    """

    trials: int
    with_energy: int
    refused: dict[str, int]
    idle_power_w: float | None
    peaks: MeasuredPeaks


def summarise_atlas(observations: Sequence[Observation], peaks: MeasuredPeaks) -> AtlasSummary:
    """Return a summary of the observations of a device."""
    measured = {one.trial for one in observations if one.duration_s and one.trial.network.layers}
    metered = {one.trial for one in observations if one.energy_j and one.trial.network.layers}
    refusals = {one.trial: _shorten(one.refusal) for one in observations if one.refusal}
    reasons = Counter(reason for trial, reason in refusals.items() if trial not in measured)
    idle_w = [
        one.energy_j / one.duration_s
        for one in observations
        if not one.trial.network.layers and one.energy_j is not None and one.duration_s
    ]
    power_w = median(idle_w) if idle_w else None
    return AtlasSummary(len(measured), len(metered), dict(reasons.most_common()), power_w, peaks)


def _shorten(reason: str) -> str:
    """Return the first clause of a refusal, so that equal ones are counted together."""
    return reason.partition(";")[0].partition(" (")[0].strip() or "no reason"
