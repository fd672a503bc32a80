"""Measure trials of a campaign and store every observation as soon as it is made.

A trial is claimed before it is measured: another campaign with the same store, on this machine or
on another one, does not measure it too, and what it has measured meanwhile is taken over.
A trial that contradicts an earlier observation of the same trial is measured again until two agree.
A trial that the device refuses (it cannot be built, does not fit into memory, does not train) is
noted. After some errors of CUDA a process can use the device no more: the trial that caused one is
stored as refused, so that the next process does not try it again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from joulecast.errors import (
    ContaminatedError,
    DeviceAwayError,
    DeviceLostError,
    MeasurementError,
    MeterLostError,
    NetError,
)
from joulecast.estimators.base import Json
from joulecast.estimators.plausibility import (
    agree,
    drop_contradicted,
    is_comparable,
    make_quick_key,
)
from joulecast.measurer import TrialMeasurer
from joulecast.measurer.lost_devices import is_device_lost
from joulecast.records import Observation, Profile, Trial

# How often a trial that contradicts an earlier observation is repeated at most.
_MOST_REPEATS = 2
_LONGEST_REASON = 300
# A trial that another process holds for longer is measured twice rather than never.
_LONGEST_CLAIM_S = 600.0


class ObservationLog(Protocol):
    """Storage that a campaign reads from and writes to; ``store.Store`` is one."""

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return all observations of a profile, in the order they were added."""

    def add_observation(self, observation: Observation) -> None:
        """Store an observation permanently."""

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return an estimator's fit to a profile, from which a campaign may start."""

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store an estimator's fit to a profile."""


@runtime_checkable
class SharedLog(Protocol):
    """Storage that several campaigns write to at once."""

    def check_writable(self, profile: Profile) -> None:
        """Raise an error if observations of a profile cannot be stored."""

    def claim_trial(
        self, planned: Observation, wait_s: float
    ) -> AbstractContextManager[Sequence[Observation] | None]:
        """Claim a trial; yield what is stored of it, or None if another campaign has claimed it."""


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
        if isinstance(self.log, SharedLog):
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
        with self._claim(trial, waits) as stored:
            if stored is None and not waits:
                return None
            for one in stored or ():
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
        """Store an observation."""
        self.log.add_observation(observation)
        self._believe(observation)

    def _claim(
        self, trial: Trial, waits: bool
    ) -> AbstractContextManager[Sequence[Observation] | None]:
        if not isinstance(self.log, SharedLog):
            return nullcontext(())
        planned = self.measurer.make_refusal(trial, "")
        return self.log.claim_trial(planned, _LONGEST_CLAIM_S if waits else 0.0)

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
            self.believed = list(drop_contradicted(self.stored))
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
