"""Define what campaigns need of a measurer, whether its device is here or elsewhere."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median, stdev
from typing import Any, TypeVar

from joulecast.meters.base import Meter
from joulecast.records import Device, Network, Observation, Setup, Trial
from joulecast.records.runtime import Runtime

IDLE_TRIAL = Trial(Network(), Setup())
"""The empty network, which stands for one second of the idle device."""

M = TypeVar("M", bound="TrialMeasurer")
R = TypeVar("R")


@dataclass(frozen=True)
class RemoteRuntime:
    """The framework of a device elsewhere; see ``records.runtime.Runtime``."""

    name: str
    device: Device
    modes: tuple[str, ...]


@dataclass(frozen=True)
class RemoteMeter:
    """The meter of a device elsewhere; see ``meters.Meter``."""

    name: str
    covers: str
    provenance: str
    is_recorder: bool


@dataclass(frozen=True)
class TrialMeasurer(ABC):
    """Measures trials on one device. Use it as a context manager.

    Attributes:
        rounds: Valid windows per trial.
        run: Identifies this run of Joulecast in observations.
        disturbances: How often windows were rejected, by the name of the fault.
    """

    runtime: Runtime | RemoteRuntime
    meter: Meter | RemoteMeter
    rounds: int = 3
    run: str = ""
    disturbances: Counter[str] = field(default_factory=Counter, compare=False)

    def __enter__(self: M) -> M:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None: ...

    @abstractmethod
    def now(self) -> float:
        """Return the time on the clock of windows."""

    @abstractmethod
    def measure(self, trial: Trial) -> Observation:
        """Measure energy, duration, host time and memory of a trial.

        Raises:
            ContaminatedError: Something disturbed the device in too many windows.
            MeasurementError: The runtime refuses the trial, or it does not fit on the device.
            DeviceAwayError: The device is elsewhere, and its agent does not answer.
        """

    @abstractmethod
    def time(self, trial: Trial) -> Observation:
        """Measure duration and host time of a trial without its energy, which is quicker."""

    @abstractmethod
    def measure_idle(self) -> Observation:
        """Measure the idle device: return the observation of the empty network over one second."""

    def watch_idle(self, work: Callable[[], R]) -> R:
        """Do work that leaves the device idle, and return its result; the device may be read."""
        return work()

    def make_observation(self, trial: Trial, **fields: Any) -> Observation:
        """Return an observation of a trial by this device, runtime and meter."""
        runtime, meter = self.runtime, self.meter
        return Observation(
            trial,
            run=self.run,
            device=runtime.device,
            runtime=runtime.name,
            meter=meter.name,
            covers=meter.covers,
            provenance=meter.provenance,
            taken_at_s=self.wall_time(),
            **fields,
        )

    def make_refusal(self, trial: Trial, reason: str) -> Observation:
        """Return the observation of a trial that the device refuses: it has no values."""
        return self.make_observation(trial, count=0, refusal=reason)

    def change_run(self: M, run: str, rounds: int | None = None) -> M:
        """Return the measurer for another run, and perhaps with another number of rounds."""
        return replace(self, run=run, rounds=self.rounds if rounds is None else rounds)

    def wall_time(self) -> float:
        return time.time()


def make_run() -> str:
    """Return a new name of a run of Joulecast."""
    return uuid.uuid4().hex[:12]


def summarise_values(quantity: str, unit: str, values: list[float]) -> dict[str, Any]:
    """Return median and standard deviation as fields of an Observation; empty for no values."""
    if not values:
        return {}
    spread = stdev(values) if len(values) > 1 else None
    return {f"{quantity}_{unit}": median(values), f"{quantity}_sd_{unit}": spread}
