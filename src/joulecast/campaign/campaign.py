"""Profile a device: propose a trial, measure it, store it, until the target is known well enough.

    store ─▶ observations ──propose──▶ Trial ──measure──▶ Observation ─▶ store ─▶ … ─▶ fit ─▶ store
                  ▲                                            │
                  └────────────────────────────────────────────┘

Every observation is stored as soon as it is made, and a proposal depends on the observations alone.
A campaign that was interrupted, even by ``kill -9``, therefore continues where it stopped: nothing
is lost and no trial is measured twice without need; the idle device is observed again in each run.
Two campaigns with one store measure no trial twice either: one waits while the other measures it.
The peaks of the device come first, for estimators that use them. At the end, observations that look
wrong are measured again, earlier runs' included: running a campaign again repairs a profile. A
trial that the device refuses (it cannot be built, does not fit into memory, does not train) is left
out for the rest of the campaign. If the device refuses all trials, the first refusal is raised.
The store also knows how far a campaign is, and whether it is to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulecast.campaign.anchors import measure_anchors
from joulecast.campaign.trial_log import (
    STOPPED_BY_REQUEST,
    ObservationLog,
    Progress,
    TrialLog,
    add_stand_ins,
    describe_profile,
    record_campaign,
    repeat_doubtful,
)
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target, restore_fit
from joulecast.measurer import TrialMeasurer
from joulecast.records import Observation
from joulecast.system.errors import MeasurementError, MissingError

# Doubtful trials are measured again for at most this share of a campaign's time, or this long.
_REPAIR_SHARE, _LEAST_REPAIR_S = 0.1, 10.0


@dataclass(frozen=True)
class CampaignResult:
    """The outcome of a campaign.

    Attributes:
        new: Number of observations made by this run.
        stopped: Why it ended.
        skipped: Trials that the device refused, with the reasons.
        repeated: Doubtful trials that were measured again.
        disturbances: How often something disturbed a measurement, by name.
    """

    profile_key: str
    points: int
    new: int
    uncertainty_share: float
    elapsed_s: float
    stopped: str
    skipped: tuple[str, ...]
    repeated: int = 0
    disturbances: Mapping[str, int] = field(default_factory=dict)


def run_campaign(
    measurer: TrialMeasurer,
    log: ObservationLog,
    estimator: Estimator,
    target: Target,
    *,
    points: int | None = None,
    seconds: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CampaignResult:
    """Measure what the estimator proposes, then fit it and store the fit.

    Raises:
        MeasurementError: The device could not be measured or refused everything. Observations
            made so far are stored.
        MissingError: The observations are too few to fit anything.
    """
    own = describe_profile(measurer)
    target = replace(target, modes=measurer.runtime.modes, runtime=measurer.runtime.name)
    with record_campaign(log, own, target.network.name) as record:
        started_s = measurer.now()
        trials = TrialLog(measurer, log, add_stand_ins(measurer, log.load_observations(own.key)))
        # What is stored was fitted to other energies than those that stand in for them.
        is_recorder = measurer.meter.is_recorder
        fitted = (
            None if is_recorder else restore_fit(estimator, log.load_fit(own.key, estimator.name))
        )
        if estimator.uses_anchors:
            measure_anchors(trials, target.setup.precision, target.setup.phase)
        while True:
            proposal = estimator.propose(target, [*trials.believed, *trials.refused], fitted)
            fitted = proposal.fitted or fitted
            elapsed_s = measurer.now() - started_s
            stopped = _find_stop_reason(proposal, points, seconds, elapsed_s, trials.new)
            if not stopped and record.is_stop_requested():
                stopped = STOPPED_BY_REQUEST
            # The time until a limit ends the campaign, at the pace of its points so far.
            limits_s = [] if seconds is None else [seconds - elapsed_s]
            if points is not None and trials.new:
                limits_s.append((points - proposal.points) * elapsed_s / trials.new)
            left_s = max(0.0, min(limits_s)) if limits_s else None
            share, reason = proposal.uncertainty_share, stopped or proposal.reason
            progress = Progress(proposal.points, share, elapsed_s, left_s, reason, points)
            record.store_progress(progress, is_last=bool(stopped))
            if on_progress is not None:
                on_progress(progress)
            if stopped or proposal.trial is None:
                break
            _measure_proposed(trials, proposal, started_s + seconds if seconds else math.inf)
        repeated, repair_s = 0, _find_repair_time(estimator, target, seconds or elapsed_s)
        if repair_s:
            repeated = repeat_doubtful(trials, until_s=measurer.now() + repair_s)
        fitted = fit_estimator(estimator, trials.believed, trials.skipped, fitted)
        if not is_recorder:
            log.save_fit(own.key, estimator.name, fitted.to_dict())
        result = CampaignResult(
            own.key,
            proposal.points,
            trials.new,
            share,
            measurer.now() - started_s,
            stopped,
            tuple(trials.skipped),
            repeated,
            dict(measurer.disturbances),
        )
        record.finish(stopped)
        return result


def fit_estimator(
    estimator: Estimator,
    believed: Sequence[Observation],
    skipped: Sequence[str] = (),
    fitted: Fitted | None = None,
) -> Fitted:
    """Fit an estimator; if nothing was measured, raise the device's first refusal."""
    try:
        return estimator.fit(believed, fitted)
    except MissingError as error:
        if not skipped:
            raise
        raise MeasurementError(
            f"nothing could be measured, {len(skipped)} trials were refused: {skipped[0]}"
        ) from error


def _find_repair_time(estimator: Estimator, target: Target, campaign_s: float) -> float:
    """Return how long doubtful trials are measured again; a probe's user waits for it."""
    if target.acquisition == "probe" or not getattr(estimator, "repeats_doubtful", True):
        return 0.0
    return max(_LEAST_REPAIR_S, _REPAIR_SHARE * campaign_s)


def _measure_proposed(trials: TrialLog, proposal: Proposal, until_s: float) -> None:
    """Measure a proposed trial, or all probes, which no further proposal would change."""
    assert proposal.trial is not None
    for probe in proposal.probes:
        if trials.measurer.now() < until_s:
            trials.measure(probe, proposal.with_energy, proposal.reason)
    if proposal.probes:
        return
    before = trials.new
    trials.measure(proposal.trial, proposal.with_energy, proposal.reason)
    if before < trials.new == 1:
        # After the first load, when clock rates are up as they are between steps.
        trials.measure_idle()


def _find_stop_reason(
    proposal: Proposal, points: int | None, seconds: float | None, elapsed_s: float, new: int
) -> str:
    """Return why to stop, or an empty string to go on."""
    if proposal.trial is None:
        return proposal.reason
    if points is not None and proposal.points >= points:
        return f"{points} points are measured"
    if seconds is not None and new and elapsed_s + elapsed_s / new > seconds:
        return f"the budget of {seconds:.0f} s is spent"
    return ""
