"""Measure trials of a campaign and store every observation as soon as it is made.

A trial that contradicts an earlier observation of the same trial is measured again until two agree.
A trial that the device refuses (it cannot be built, does not fit into memory, does not train) is
noted. After some errors of CUDA a process can use the device no more: the trial that caused one is
stored as refused, so that the next process does not try it again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from joulecast.errors import (
    ContaminatedError,
    DeviceLostError,
    MeasurementError,
    NetError,
)
from joulecast.estimators.base import Json
from joulecast.estimators.contradictions import (
    agree,
    drop_contradicted,
    is_comparable,
    make_quick_key,
)
from joulecast.measurer import Measurer
from joulecast.records import Observation, Trial

# How often a trial that contradicts an earlier observation is repeated at most.
_MOST_REPEATS = 2
# Errors after which every further call of the process fails.
_LOST = ("cuda error", "cuda runtime error", "device-side assert")
_LONGEST_REASON = 300


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

    measurer: Measurer
    log: ObservationLog
    stored: list[Observation]
    keeps_refusals: bool = False
    believed: list[Observation] = field(init=False)
    refused: list[Observation] = field(init=False)
    skipped: list[str] = field(default_factory=list)
    new: int = 0

    def __post_init__(self) -> None:
        self.believed = list(drop_contradicted(self.stored))
        self.refused = [one for one in self.stored if one.refusal]
        self._by_key: dict[Hashable, list[Observation]] = {}
        for one in self.stored:
            self._by_key.setdefault(make_quick_key(one.trial), []).append(one)

    def measure(self, trial: Trial, with_energy: bool, reason: str) -> Observation | None:
        """Measure and store a trial; return None if the device refuses it.

        Raises:
            ContaminatedError: Something disturbed the device in too many windows.
            DeviceLostError: The process can no longer use the device.
        """
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
        except ContaminatedError:
            raise
        except (MeasurementError, NetError, RuntimeError) as error:
            self._refuse(trial, reason, error)
            return None
        self.new += 1
        return observation

    def measure_idle(self) -> None:
        """Measure and store the idle device."""
        self.add(self.measurer.measure_idle())

    def add(self, observation: Observation) -> None:
        """Store an observation."""
        is_repeat = any(self._find_earlier(observation.trial))
        self.log.add_observation(observation)
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
        is_lost = _is_device_lost(error)
        if self.keeps_refusals or is_lost:
            self.log.add_observation(refusal)
            self._remember(refusal)
        if is_lost:
            raise DeviceLostError(
                f"{self.measurer.runtime.device.name} failed at {reason} ({refusal.refusal}); "
                "this trial will be left out: run the same command again to continue"
            ) from error


def _is_device_lost(error: BaseException | None) -> bool:
    while error is not None:
        text = str(error).lower()
        if any(part in text for part in _LOST) and "out of memory" not in text:
            return True
        error = error.__cause__
    return False
