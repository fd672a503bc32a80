"""Profile a device: propose a trial, measure it, store it, until the target is known well enough.

    store ─▶ observations ──propose──▶ Trial ──measure──▶ Observation ─▶ store ─▶ … ─▶ fit ─▶ store
                  ▲                                            │
                  └────────────────────────────────────────────┘

Every observation is stored as soon as it is made, and a proposal depends on the observations alone.
A campaign that was interrupted, even by ``kill -9``, therefore continues where it stopped: nothing
is lost and no trial is measured twice; only the idle device is observed again in each run. A trial
that the device refuses (it cannot be built, does not fit into memory, does not train) is left out
for the rest of the campaign. If the device refuses all trials, the first refusal is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from joulecast.errors import (
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
)
from joulecast.estimators.base import Estimator, Fitted, Json, Proposal, Target
from joulecast.measurer import Measurer
from joulecast.records import Observation, Profile, Trial


class ObservationLog(Protocol):
    """Storage that a campaign reads from and writes to; ``store.Store`` is one."""

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return all observations of a profile, in the order they were added."""

    def add_observation(self, observation: Observation) -> None:
        """Store an observation permanently."""

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store an estimator's fit to a profile."""


@dataclass(frozen=True)
class Progress:
    """The state of a running campaign.

    Attributes:
        points: Observations that the target can use, those of earlier runs included.
        left_s: Estimated remaining time; None while no limit applies.
        reason: What is measured next and why, or why the campaign ends.
    """

    points: int
    uncertainty_share: float
    elapsed_s: float
    left_s: float | None
    reason: str


@dataclass(frozen=True)
class CampaignResult:
    """The outcome of a campaign.

    Attributes:
        new: Number of observations made by this run.
        stopped: Why it ended.
        skipped: Trials that the device refused, with the reasons.
    """

    profile_key: str
    points: int
    new: int
    uncertainty_share: float
    elapsed_s: float
    stopped: str
    skipped: tuple[str, ...]


def find_profile_key(measurer: Measurer) -> str:
    """Return the key of the profile that a measurer's observations belong to."""
    runtime, meter = measurer.runtime, measurer.meter
    return Profile(runtime.device, runtime.name, meter.covers, meter.provenance).key


def run_campaign(
    measurer: Measurer,
    log: ObservationLog,
    estimator: Estimator,
    target: Target,
    *,
    points: int | None = None,
    seconds: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CampaignResult:
    """Measure what the estimator proposes, then fit it and store the fit.

    Args:
        measurer: Measures trials.
        log: Stores observations as they are made, and the fit.
        estimator: Proposes trials.
        target: What the profile is for.
        points: Stop at this many observations that the target can use.
        seconds: Stop before this much time on the measurer's clock has passed.
        on_progress: Called before every measurement and at the end.

    Raises:
        MeasurementError: The device could not be measured or refused everything. Observations
            made so far are stored.
        MissingError: The observations are too few to fit anything.
    """
    key = find_profile_key(measurer)
    target = replace(target, modes=measurer.runtime.modes)
    started_s = measurer.now()
    campaign = _Campaign(measurer, log, list(log.load_observations(key)))
    while True:
        proposal = estimator.propose(target, [*campaign.known, *campaign.refused])
        elapsed_s = measurer.now() - started_s
        stopped = _find_stop_reason(proposal, points, seconds, elapsed_s, campaign.new)
        share = proposal.uncertainty_share
        if on_progress is not None:
            left_s = _estimate_left_s(proposal, points, seconds, elapsed_s, campaign.new)
            reason = stopped or proposal.reason
            on_progress(Progress(proposal.points, share, elapsed_s, left_s, reason))
        if stopped or proposal.trial is None:
            break
        campaign.measure(proposal.trial, proposal)
    skipped = tuple(campaign.skipped)
    log.save_fit(key, estimator.name, _fit(estimator, campaign.known, skipped).to_dict())
    elapsed_s = measurer.now() - started_s
    return CampaignResult(key, proposal.points, campaign.new, share, elapsed_s, stopped, skipped)


@dataclass
class _Campaign:
    """The observations of a running campaign.

    Attributes:
        known: All observations of the profile, read once and appended to.
        refused: Trials that the device refused, as observations without values.
        skipped: These trials, with the reasons.
        new: Number of observations made by this run.
    """

    measurer: Measurer
    log: ObservationLog
    known: list[Observation]
    refused: list[Observation] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    new: int = 0

    def measure(self, trial: Trial, proposal: Proposal) -> None:
        """Measure and store a proposed trial, or note that the device refuses it."""
        measure = self.measurer.measure if proposal.with_energy else self.measurer.time
        try:
            self._add(measure(trial))
        except (OutOfMemoryError, NotTrainingError, NetError) as error:
            self.refused.append(Observation(trial))
            self.skipped.append(f"{proposal.reason}: {error}")
            return
        self.new += 1
        if self.new == 1:
            # After the first load, when clock rates are up as they are between steps.
            self._add(self.measurer.measure_idle())

    def _add(self, observation: Observation) -> None:
        self.log.add_observation(observation)
        self.known.append(observation)


def _fit(estimator: Estimator, known: Sequence[Observation], skipped: Sequence[str]) -> Fitted:
    """Fit the estimator; if nothing was measured, raise the device's first refusal."""
    try:
        return estimator.fit(known)
    except MissingError as error:
        if not skipped:
            raise
        raise MeasurementError(
            f"nothing could be measured, {len(skipped)} trials were refused: {skipped[0]}"
        ) from error


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


def _estimate_left_s(
    proposal: Proposal, points: int | None, seconds: float | None, elapsed_s: float, new: int
) -> float | None:
    """Return the time until a limit ends the campaign, at the pace of its points so far."""
    limits_s = [] if seconds is None else [seconds - elapsed_s]
    if points is not None and new:
        limits_s.append((points - proposal.points) * elapsed_s / new)
    return max(0.0, min(limits_s)) if limits_s else None
