"""Define what campaigns need of a measurer, whether its device is here or elsewhere."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Protocol, TypeVar

from joulecast.records import Device, Observation, Trial

M = TypeVar("M", bound="TrialMeasurer")


class RuntimeIdentity(Protocol):
    """Which framework runs on which device."""

    @property
    def name(self) -> str:
        """Framework and version: ``torch-2.13.0``."""

    @property
    def device(self) -> Device:
        """What runs the steps."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of ``records.MODES`` that it can run."""


class MeterIdentity(Protocol):
    """Which meter is read; see ``meters.Meter``."""

    @property
    def name(self) -> str:
        """How users write it."""

    @property
    def covers(self) -> str:
        """What its energy includes."""

    @property
    def provenance(self) -> str:
        """Where its energy comes from: ``measured``, ``modelled`` or ``simulated``."""

    @property
    def is_recorder(self) -> bool:
        """Whether energy comes later, from a power trace."""


class TrialMeasurer(Protocol):
    """Measures trials on one device. Use it as a context manager."""

    @property
    def runtime(self) -> RuntimeIdentity:
        """What runs trials."""

    @property
    def meter(self) -> MeterIdentity:
        """What reads energy."""

    @property
    def rounds(self) -> int:
        """Valid windows per trial."""

    @property
    def run(self) -> str:
        """Identifies this run of Joulecast in observations."""

    @property
    def disturbances(self) -> Counter[str]:
        """How often windows were rejected, by the name of the fault."""

    def __enter__(self: M) -> M: ...

    def __exit__(self, *exc: object) -> None: ...

    def now(self) -> float:
        """Return the time on the clock of windows."""

    def measure(self, trial: Trial) -> Observation:
        """Measure energy, duration, host time and memory of a trial."""

    def time(self, trial: Trial) -> Observation:
        """Measure duration and host time of a trial without its energy."""

    def measure_idle(self) -> Observation:
        """Measure the idle device over one second."""

    def make_refusal(self, trial: Trial, reason: str) -> Observation:
        """Return the observation of a trial that the device refuses: it has no values."""

    def change_run(self: M, run: str, rounds: int | None = None) -> M:
        """Return the measurer for another run, and perhaps with another number of rounds."""


def make_run() -> str:
    """Return a new name of a run of Joulecast."""
    return uuid.uuid4().hex[:12]


def describe_refusal(
    measurer: TrialMeasurer, trial: Trial, reason: str, taken_at_s: float | None = None
) -> Observation:
    """Return the observation of a trial that a measurer's device refuses.

    Args:
        measurer: Whose device refuses it.
        trial: What is refused.
        reason: Why.
        taken_at_s: When, in seconds since 1970; now by default.
    """
    runtime, meter = measurer.runtime, measurer.meter
    return Observation(
        trial,
        count=0,
        run=measurer.run,
        device=runtime.device,
        runtime=runtime.name,
        meter=meter.name,
        covers=meter.covers,
        provenance=meter.provenance,
        taken_at_s=time.time() if taken_at_s is None else taken_at_s,
        refusal=reason,
    )
