"""Measure an atlas: isolated layers and blocks of networks of all kinds.

    networks ─▶ trials in the order of a design ─▶ measure, store ─▶ … until the time is over
                        └ observed, refused or too slow for this device: left out

Every observation is stored as soon as it is made, refused trials too, and the list of trials
depends on the device alone: a campaign that was interrupted at any moment resumes. Fitting is left
to the caller, since measuring may happen in another process.
"""

from __future__ import annotations

from collections import Counter, deque
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
from joulecast.measurer import TrialMeasurer
from joulecast.records import Observation
from joulecast.system.errors import ContaminatedError

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

    Raises:
        ContaminatedError: Something disturbed several measurements in a row.
        DeviceLostError: The process can no longer use the device; another one can continue.
    """
    if on_progress is not None:
        on_progress(Progress(0, 0.0, 0.0, None, "planning what to measure"))
    started_s, key, modes = measurer.now(), find_profile_key(measurer), measurer.runtime.modes
    stored = list(log.load_observations(key))
    trials = TrialLog(measurer, log, stored, keeps_refusals=True)
    planned = plan_atlas(measurer, limits)
    seen = [one for one in stored if not (limits.retries_refused and one.refusal)]
    left = deque(drop_observed(planned, seen))
    earlier, planned_s = len(planned) - len(left), measurer.now()
    tried = disturbed = repeated = 0
    measured_scale: DeviceScale | None = None

    def find_pace_s() -> float:
        return (measurer.now() - planned_s) / tried if tried else 0.0

    def is_time_over() -> bool:
        """Return whether one more trial would take longer than the limit."""
        elapsed_s = measurer.now() - started_s
        return limits.seconds is not None and elapsed_s + find_pace_s() > limits.seconds

    while True:
        while left and left[0].reason != "anchor" and not is_time_over():
            # A step that would take very long at the rates that the anchors showed is left out.
            if measured_scale is None:
                scale = find_scale(measurer)
                measured_scale = apply_peaks(scale, read_peaks(trials.believed, scale, modes))
            one, own = left[0], left[0].trial
            step_s = measured_scale.duration_s(one.work, own.setup.precision)
            if step_s * own.execution.copies <= _LONGEST_STEP_S["graph" in modes]:
                break
            left.popleft()
        done, stopped = earlier + tried, ""
        if not left:
            stopped = "every trial of the atlas was tried"
        elif limits.points is not None and done >= limits.points:
            stopped = f"{limits.points} trials are done"
        elif is_time_over():
            stopped = f"the budget of {limits.seconds:.0f} s is spent"
        elif is_stop_requested():
            stopped = STOPPED_BY_REQUEST
        if on_progress is not None:
            elapsed_s, total = measurer.now() - started_s, done + len(left)
            if limits.points is not None:
                total = min(total, max(done, limits.points))
            limits_s = [] if limits.seconds is None else [limits.seconds - elapsed_s]
            limits_s += [(total - done) * find_pace_s()] if tried else []
            left_s = max(0.0, min(limits_s)) if limits_s else None
            reason = stopped or _describe(left[0])
            on_progress(Progress(done, 0.0, elapsed_s, left_s, reason, total))
        if stopped:
            break
        one = left.popleft()
        if on_trial is not None:
            on_trial(measurer.make_refusal(one.trial, ""))
        try:
            # What another campaign measures at the moment is left to it.
            trials.measure(one.trial, one.with_energy, one.label, waits=False)
            # Only a meter sees other programs and throttling, so times alone prove nothing.
            disturbed = 0 if one.with_energy else disturbed
        except ContaminatedError:
            # The device is to blame, not the trial: a later run tries it again.
            disturbed += 1
            if disturbed == _MOST_DISTURBED:
                raise
        if tried % _IDLE_EVERY == 0:
            trials.measure_idle()
        tried += 1
        if tried % _REPEAT_EVERY == 0:
            repeated += repeat_doubtful(trials, most=_REPEATS)
    if tried and not is_time_over():
        repeated += repeat_doubtful(trials, most=_REPEATS)
    elapsed_s, disturbances = measurer.now() - started_s, dict(measurer.disturbances)
    return AtlasRun(key, trials.new, stopped, elapsed_s, repeated, disturbances)


def plan_atlas(measurer: TrialMeasurer, limits: AtlasLimits) -> tuple[AtlasTrial, ...]:
    """Return all trials of an atlas of the measurer's device, in the order of the design."""
    scale, modes = find_scale(measurer), measurer.runtime.modes
    count = limits.networks or _NETWORKS["graph" in modes]
    blocks = split_members(draw_members(count, scale, limits.phase))
    return list_trials(blocks, scale, modes, limits.most_trials, limits.phase)


def _describe(one: AtlasTrial) -> str:
    """Return what is measured, for people."""
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
