"""Learning a device: propose, measure, keep, until enough is known.

    store ──▶ observations ──propose──▶ Trial ──rig──▶ Observation ──▶ store ──▶ … ──▶ fit ──▶ store
                   ▲                                        │
                   └────────────────────────────────────────┘

Every observation is stored as it is made, and a proposal depends on the stored observations alone,
so a campaign that was cut, even by kill -9, goes on where it was: nothing is lost and no trial is
measured twice; only the waiting device is observed anew in each run. A trial that the device
refuses (it cannot be built, does not fit, does not train) is left out for the rest of the campaign;
where it refuses all of them, the first reason is the error. The rig is given; this module makes
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from joulecast.errors import (
    MeasurementError,
    MissingError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
)
from joulecast.estimators.base import Estimator, Proposal, Target
from joulecast.measure import Measurer
from joulecast.records import Observation, Profile

Json = dict[str, Any]


class Keeper(Protocol):
    """What a campaign needs of a store."""

    def add_observation(self, observation: Observation) -> None:
        """Keep an observation for good."""

    def observations(self, profile_key: str) -> Sequence[Observation]:
        """All that was kept for a profile, in order."""

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Keep what an estimator learnt."""


@dataclass(frozen=True)
class Progress:
    """Where a campaign stands.

    Attributes:
        points: Observations of this target's curves, those of earlier runs included.
        left_s: Seconds that are likely left; None where nothing limits them yet.
        why: What is measured next and why, or why it ends.
    """

    points: int
    uncertainty_share: float
    elapsed_s: float
    left_s: float | None
    why: str


@dataclass(frozen=True)
class CampaignResult:
    """How a campaign ended.

    Attributes:
        new: Observations that this run made.
        stopped: Why it ended, in words.
        skipped: What the device refused, in words.
    """

    profile_key: str
    points: int
    new: int
    uncertainty_share: float
    elapsed_s: float
    stopped: str
    skipped: tuple[str, ...]


def find_profile_key(rig: Measurer) -> str:
    """The key of the profile that a rig's observations belong to."""
    runtime, meter = rig.runtime, rig.meter
    return Profile(runtime.device, runtime.name, meter.covers, meter.provenance).key


def run_campaign(
    rig: Measurer,
    store: Keeper,
    estimator: Estimator,
    target: Target,
    *,
    points: int | None = None,
    seconds: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CampaignResult:
    """Measure what the estimator asks for, then fit and keep the fit.

    Args:
        rig: Measures trials.
        store: Keeps observations as they are made.
        estimator: Proposes and fits.
        target: What the profile is for.
        points: Stop at this many points of the target's curves.
        seconds: Stop before this much time on the rig's clock is spent.
        on_progress: Is told before every measurement and at the end.

    Raises:
        MeasurementError: The device could not be measured, or refused everything; what was
            measured so far is kept.
        MissingError: Too little was measured to fit anything.
    """
    key = find_profile_key(rig)
    target = replace(target, modes=rig.runtime.modes)
    started_s = rig.now()
    refused: list[Observation] = []
    skipped: list[str] = []
    new = 0
    while True:
        known = list(store.observations(key))
        proposal = estimator.propose(target, [*known, *refused])
        spent_s = rig.now() - started_s
        stopped = _why_stop(proposal, points, seconds, spent_s, new)
        if on_progress is not None:
            share, why = proposal.uncertainty_share, stopped or proposal.why
            left_s = _guess_left(proposal, points, seconds, spent_s, new)
            on_progress(Progress(proposal.points, share, spent_s, left_s, why))
        if stopped or proposal.trial is None:
            break
        try:
            look = rig.measure if proposal.energy else rig.time
            store.add_observation(look(proposal.trial))
        except (OutOfMemoryError, NotTrainingError, NetError) as error:
            refused.append(Observation(proposal.trial))
            skipped.append(f"{proposal.why}: {error}")
            continue
        new += 1
        if new == 1:
            # After the first load, so that the clocks are up as they are between steps.
            store.add_observation(rig.idle())
    store.save_fit(key, estimator.name, _fit(estimator, store.observations(key), skipped))
    share = proposal.uncertainty_share
    return CampaignResult(
        key, proposal.points, new, share, rig.now() - started_s, stopped, tuple(skipped)
    )


def _fit(estimator: Estimator, known: Sequence[Observation], skipped: Sequence[str]) -> Json:
    """What the estimator learns; where there is nothing, what the device said first."""
    try:
        return estimator.fit(known)
    except MissingError as error:
        if not skipped:
            raise
        raise MeasurementError(
            f"nothing could be measured, {len(skipped)} trials were refused: {skipped[0]}"
        ) from error


def _why_stop(
    proposal: Proposal, points: int | None, seconds: float | None, spent_s: float, new: int
) -> str:
    """Why there is nothing more to measure; empty while there is."""
    if proposal.trial is None:
        return proposal.why
    if points is not None and proposal.points >= points:
        return f"{points} points are measured"
    if seconds is not None and new and spent_s + spent_s / new > seconds:
        return f"the budget of {seconds:.0f} s is spent"
    return ""


def _guess_left(
    proposal: Proposal, points: int | None, seconds: float | None, spent_s: float, new: int
) -> float | None:
    """Seconds until a limit ends the campaign, if points go on taking as long as they did."""
    limits = [] if seconds is None else [seconds - spent_s]
    if points is not None and new:
        limits.append((points - proposal.points) * spent_s / new)
    return max(0.0, min(limits)) if limits else None
