"""Measure trials of a campaign, store every observation at once, and record how far it is.

    TrialLog         claims, measures and stores trials, and repeats what contradicts or looks wrong
    CampaignRecord   how far a campaign is, for other processes, and their request to stop it

A trial is claimed before it is measured: another campaign with the same store, on this machine or
on another one, does not measure it too, and what it has measured meanwhile is taken over.
A trial that contradicts an earlier observation of the same trial is measured again until two agree.
A trial that the device refuses (it cannot be built, does not fit into memory, does not train) is
noted. After some CUDA errors a process can no longer use the device: the trial that caused one is
stored as refused, so that the next process does not try it again.

Where energies are read later, from a power trace, time guides a campaign: estimators choose trials
by the uncertainty of energies, and at a constant power that is the uncertainty of durations, which
the paper uses where energy cannot be read live. Windows are stored, and no energies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Protocol

from joulecast.estimators.base import Json
from joulecast.estimators.plausibility import (
    agree,
    drop_contradicted,
    is_comparable,
    list_implausible,
    make_quick_key,
)
from joulecast.measurer import TrialMeasurer
from joulecast.measurer.device_lock import is_device_lost
from joulecast.records import Observation, Profile, Trial
from joulecast.system.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    JoulecastError,
    MeasurementError,
    MeterLostError,
    NetError,
)

if TYPE_CHECKING:
    from joulecast.store.campaigns import CampaignProgress, CampaignTables

STOPPED_BY_REQUEST = "it was stopped by request"
ATLAS_NAME = "atlas"
MOST_REPEATED = 20
"""How many doubtful trials a campaign measures again at most."""
# Windows of one measurement that differ by more than this share disagree.
_WIDE_SHARE = 0.25
# Progress is stored at most this often: trials may take milliseconds.
_LEAST_PAUSE_S = 0.5
# How often a trial that contradicts an earlier observation is repeated at most.
_MOST_REPEATS = 2
_LONGEST_REASON = 300
# A trial that another process holds for longer is measured twice rather than never.
_LONGEST_CLAIM_S = 600.0


class ObservationLog(Protocol):
    """Storage that a campaign reads from and writes to; ``store.Store`` is one.

    A class that inherits it, and nothing else, keeps no fits and serves one campaign alone.
    """

    @property
    def campaigns(self) -> CampaignTables | None:
        """How far campaigns are; None if that is not kept."""
        return None

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return all observations of a profile, in the order they were added."""

    def add_observation(self, observation: Observation) -> None:
        """Store an observation permanently."""

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return an estimator's fit to a profile, from which a campaign may start."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store an estimator's fit to a profile."""
        return

    def check_writable(self, profile: Profile) -> None:
        """Raise an error if observations of a profile cannot be stored."""
        return

    def claim_trial(
        self, planned: Observation, wait_s: float
    ) -> AbstractContextManager[Sequence[Observation] | None]:
        """Claim a trial; yield what is stored of it, or None if another campaign has claimed it."""
        return nullcontext(())


@dataclass(frozen=True)
class Progress:
    """The state of a running campaign.

    Attributes:
        points: Observations that the target can use, those of earlier runs included.
        left_s: Estimated remaining time; None while no limit applies.
        reason: What is measured next and why, or why the campaign ends.
        total: Number of points at which it ends at the latest; None if that is unknown.
    """

    points: int
    uncertainty_share: float
    elapsed_s: float
    left_s: float | None
    reason: str
    total: int | None = None


def find_profile_key(measurer: TrialMeasurer) -> str:
    """Return the key of the profile that a measurer's observations belong to."""
    return describe_profile(measurer).key


def describe_profile(measurer: TrialMeasurer) -> Profile:
    """Return the profile that a measurer's observations belong to, without observations."""
    runtime, meter = measurer.runtime, measurer.meter
    return Profile(runtime.device, runtime.name, meter.covers, meter.provenance)


@dataclass
class TrialLog:
    """The observations of a running campaign.

    Attributes:
        stored: All observations of the profile, read once and appended to.
        keeps_refusals: Whether refused trials are stored, so that no later run tries them again.
        believed: Those that no other one of the same trial contradicts.
        refused: Trials that the device refused, as observations without values.
        skipped: Those refused in this run, with the reasons.
        new: Number of trials measured in this run.
    """

    measurer: TrialMeasurer
    log: ObservationLog
    stored: list[Observation]
    keeps_refusals: bool = False
    believed: list[Observation] = field(init=False)
    refused: list[Observation] = field(init=False)
    skipped: list[str] = field(default_factory=list)
    new: int = 0

    def __post_init__(self) -> None:
        # Known before anything is measured in vain.
        self.log.check_writable(describe_profile(self.measurer))
        self.believed = list(drop_contradicted(self.stored))
        self.refused = [one for one in self.stored if one.refusal]
        self._taken_over: list[Observation] = []
        self._by_key: dict[Hashable, list[Observation]] = {}
        for one in self.stored:
            self._by_key.setdefault(make_quick_key(one.trial), []).append(one)

    def measure(
        self, trial: Trial, with_energy: bool, reason: str, *, waits: bool = True
    ) -> Observation | None:
        """Measure and store a trial; return None if the device refuses it.

        Where another campaign has measured the trial meanwhile, its observation is returned.

        Args:
            trial: What is measured.
            with_energy: Measure energy, not only time.
            reason: Why, for the list of refused trials.
            waits: Wait for another campaign that measures the trial; return None otherwise.

        Raises:
            ContaminatedError: Something disturbed the device in too many windows.
            DeviceAwayError: The agent of the device does not answer.
            DeviceLostError: The process can no longer use the device.
            MeterLostError: The meter can no longer be read.
        """
        planned = self.measurer.make_refusal(trial, "")
        with self.log.claim_trial(planned, _LONGEST_CLAIM_S if waits else 0.0) as stored:
            if stored is None and not waits:
                return None
            for one in add_stand_ins(self.measurer, stored or ()):
                self._take_over(one)
            found = self._find_taken_over(trial, with_energy)
            if found is None:
                return self._measure(trial, with_energy, reason)
            # Once: who asks for the trial again wants it to be repeated.
            self._taken_over.remove(found)
            return None if found.refusal else found

    def measure_idle(self) -> None:
        """Measure and store the idle device."""
        self.add(self.measurer.measure_idle())

    def add(self, observation: Observation) -> None:
        """Store an observation, without an energy that only stands in for one."""
        is_recorder = self.measurer.meter.is_recorder
        self.log.add_observation(drop_energy(observation) if is_recorder else observation)
        self._believe(observation)

    def _take_over(self, observation: Observation) -> None:
        """Add an observation of another campaign unless it is known."""
        if observation in self._by_key.get(make_quick_key(observation.trial), ()):
            return
        self._taken_over.append(observation)
        if observation.refusal:
            self._remember(observation)
            self.refused.append(observation)
        else:
            self._believe(observation)

    def _find_taken_over(self, trial: Trial, with_energy: bool) -> Observation | None:
        """Return what another campaign observed; energy only if it is wanted or all there is."""
        same = [one for one in self._taken_over if one.trial == trial]
        for one in sorted(same, key=lambda one: one.energy_j is not None):
            if one.refusal or one.energy_j is not None or not with_energy:
                return one
        return None

    def _measure(self, trial: Trial, with_energy: bool, reason: str) -> Observation | None:
        measure = self.measurer.measure if with_energy else self.measurer.time
        try:
            observation = measure(trial)
            earlier = list(self._find_earlier(trial))
            self.add(observation)
            for _ in range(_MOST_REPEATS):
                if not earlier or any(agree(observation, one) for one in earlier):
                    break
                earlier.append(observation)
                observation = measure(trial)
                self.add(observation)
        except (ContaminatedError, DeviceAwayError, MeterLostError):
            # The trial is not to blame: it would be left out for no reason.
            raise
        except (MeasurementError, NetError, RuntimeError) as error:
            self._refuse(trial, reason, error)
            return None
        self.new += 1
        return observation

    def _believe(self, observation: Observation) -> None:
        is_repeat = any(self._find_earlier(observation.trial))
        self._remember(observation)
        if is_repeat and observation.trial.network.layers:
            same = self._by_key[make_quick_key(observation.trial)]
            own = set(map(id, same))
            self.believed = [one for one in self.believed if id(one) not in own]
            self.believed.extend(drop_contradicted(same))
        else:
            self.believed.append(observation)

    def _find_earlier(self, trial: Trial) -> Iterator[Observation]:
        own = self.measurer.make_refusal(trial, "")
        for one in self._by_key.get(make_quick_key(trial), ()):
            if not one.refusal and is_comparable(one, own):
                yield one

    def _remember(self, observation: Observation) -> None:
        self.stored.append(observation)
        self._by_key.setdefault(make_quick_key(observation.trial), []).append(observation)

    def _refuse(self, trial: Trial, reason: str, error: Exception) -> None:
        text = " ".join(str(error).split())[:_LONGEST_REASON]
        refusal = self.measurer.make_refusal(trial, text or type(error).__name__)
        self.refused.append(refusal)
        self.skipped.append(f"{reason}: {refusal.refusal}")
        is_lost = is_device_lost(error)
        if self.keeps_refusals or is_lost:
            self.log.add_observation(refusal)
            self._remember(refusal)
        if is_lost:
            raise DeviceLostError(
                f"{self.measurer.runtime.device.name} failed at {reason} ({refusal.refusal}); "
                "this trial will be left out: run the same command again to continue"
            ) from error


class CampaignRecord:
    """A run of a campaign in the store.

    Args:
        tables: The campaigns of the store; None records nothing, as for campaigns of an evaluation.
        key: The run.
    """

    def __init__(self, tables: CampaignTables | None, key: str = "") -> None:
        self.key = key
        self._tables = tables
        self._due_s = -math.inf
        self._moments: list[CampaignProgress] = []

    def store_progress(self, progress: Progress, *, is_last: bool = False) -> None:
        """Store how far the run is; moments that follow closely are stored together."""
        if self._tables is None:
            return
        from joulecast.store.campaigns import CampaignProgress

        share = progress.uncertainty_share
        # An atlas has no uncertainty, and calls it 0.
        known = share if share and math.isfinite(share) else None
        self._moments.append(CampaignProgress(progress.elapsed_s, progress.points, known))
        if time.monotonic() < self._due_s and not is_last:
            return
        self._due_s = time.monotonic() + _LEAST_PAUSE_S
        self._tables.change(
            self.key,
            self._moments,
            reason=progress.reason,
            left_s=progress.left_s,
            total=progress.total,
        )
        self._moments = []

    def is_stop_requested(self) -> bool:
        """Return whether the run is to stop."""
        return self._tables is not None and self._tables.is_stop_requested(self.key)

    def finish(self, stopped: str) -> None:
        """Store that the run ended by itself or by request."""
        if self._tables is not None:
            from joulecast.store.campaigns import DONE, STOPPED

            state = STOPPED if stopped == STOPPED_BY_REQUEST else DONE
            self._tables.finish(self.key, state, stopped)


@contextmanager
def record_campaign(log: ObservationLog, profile: Profile, name: str) -> Iterator[CampaignRecord]:
    """Record a campaign in the store while a block runs, and an error that leaves it."""
    tables = log.campaigns
    if tables is None:
        yield CampaignRecord(None)
        return
    from joulecast.store.campaigns import FAILED, INTERRUPTED

    with tables.add(name, profile.device.name, profile.key, profile.provenance) as key:
        try:
            yield CampaignRecord(tables, key)
        except JoulecastError as error:
            tables.finish(key, FAILED, str(error))
            raise
        except BaseException as error:
            is_bug = isinstance(error, Exception)
            reason = f"{type(error).__name__}: {error}" if is_bug else "it was interrupted"
            tables.finish(key, FAILED if is_bug else INTERRUPTED, reason)
            raise


def list_doubtful(observations: Sequence[Observation], unit: str) -> list[Observation]:
    """Return observations that look wrong, the worst first.

    An observation is doubted if its windows disagreed, if another one of the same trial contradicts
    it and no third decides, or if it is implausible beside similar trials. A trial that was
    repeated is believed as ``drop_contradicted`` says, and is not doubted again.

    Args:
        observations: Everything stored about a device.
        unit: The unit of the device at hand; those of other units are not repeated on it.
    """
    own = [
        one
        for one in observations
        if not one.refusal and one.trial.network.layers and one.device.unit == unit
    ]
    places = {id(one) for one in own}
    unsure = [
        one
        for one in own
        for sd, value in ((one.duration_sd_s, one.duration_s), (one.energy_sd_j, one.energy_j))
        if sd and value and sd > _WIDE_SHARE * value
    ]
    implausible = [one for one in list_implausible(observations) if id(one) in places]
    doubted = list(dict.fromkeys([*unsure, *implausible]))
    return [one for one in doubted if not _is_settled(one, own)][:MOST_REPEATED]


def repeat_doubtful(
    trials: TrialLog, most: int = MOST_REPEATED, until_s: float | None = None
) -> int:
    """Measure doubtful trials again; return how many were."""
    unit, before, count = trials.measurer.runtime.device.unit, trials.new, 0
    for one in list_doubtful(trials.stored, unit)[:most]:
        if until_s is not None and trials.measurer.now() > until_s:
            break
        try:
            with_energy, reason = one.energy_j is not None, "doubtful, measured again"
            # Another campaign that measures it has the same doubts.
            done = trials.measure(one.trial, with_energy, reason, waits=False)
        except ContaminatedError as error:
            trials.skipped.append(f"doubtful, not measured again: {error}")
        else:
            count += done is not None
    # Repetitions are not new points.
    trials.new = before
    return count


def _is_settled(one: Observation, own: Sequence[Observation]) -> bool:
    """Return whether the trial was measured often enough to know which observation is right."""
    same = [other for other in own if other.trial == one.trial]
    return len(same) > 3 or any(agree(*pair) for pair in combinations(same, 2))


def drop_energy(observation: Observation) -> Observation:
    """Return an observation without its energy, which is to be read from a power trace."""
    return replace(observation, energy_j=None, energy_sd_j=None, unchecked=())


def add_stand_ins(
    measurer: TrialMeasurer, observations: Sequence[Observation]
) -> list[Observation]:
    """Return observations, with energies of a constant power if the measurer reads none."""
    is_recorder = measurer.meter.is_recorder
    return [add_stand_in(one) if is_recorder else one for one in observations]


def add_stand_in(observation: Observation) -> Observation:
    """Return a recorded observation with the energy of a constant power."""
    from joulecast.meters.file import STAND_IN_W

    if not observation.windows or observation.duration_s is None:
        return replace(observation, energy_j=None, energy_sd_j=None)
    spread_s = observation.duration_sd_s
    return replace(
        observation,
        energy_j=STAND_IN_W * observation.duration_s,
        energy_sd_j=None if spread_s is None else STAND_IN_W * spread_s,
    )
