"""Define what a meter is: an instrument that returns the energy between two moments.

    open ─┬─ begin ── (load runs) ── end → Reading ─┬─ … ─ close
          └─────────── any number of times ─────────┘

An instrument derives from ``GuardedMeter``, which checks the order of calls, and implements four
hooks. It converts to joules and seconds where it reads its instrument. It reports problems in
``Reading.faults``; the measurer decides whether to try again. What it cannot check is listed in
``Reading.unchecked``, which observations keep. A meter has its clock as an attribute and takes
whatever else touches the outside as an argument, so that tests need neither time nor hardware.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from joulecast.devices.detect import UnavailableError as UnavailableError
from joulecast.records.codec import Record
from joulecast.system.errors import JoulecastError, MeasurementError, MeterLostError

# Problems that make a reading invalid. A colon and details may follow.
FAULTS = (
    "gap", "reset", "stuck", "negative", "invalid", "implausible", "limit changed", "throttled",
    "other load", "charging", "too short",
)  # fmt: skip

# What a meter may be unable to check: whether other programs use the device, whether its power is
# within the limit of the device, and whether a second sensor agrees.
OTHER_LOAD = "other load"
POWER_LIMIT = "power limit"
SECOND_SENSOR = "second sensor"
METER_CHECKS = (OTHER_LOAD, POWER_LIMIT, SECOND_SENSOR)


@dataclass(frozen=True)
class MeasureClock:
    """The clock of windows and pauses, and the seconds since 1970."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wall_time: Callable[[], float] = time.time


@dataclass(frozen=True)
class MeterRequest:
    """What a meter is made from: its argument, and the device that runs the load.

    Attributes:
        argument: The text after the colon of ``NAME:ARGUMENT``; empty without one.
        on: The device that runs the load: ``cpu``, ``cuda:0`` or the name of a plug-in.
        gpu: NVML's index or UUID of the GPU that runs the load; None without a GPU.
    """

    argument: str = ""
    on: str = "cpu"
    gpu: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether the load runs on a GPU."""
        return self.on.partition(":")[0] == "cuda"


class Meter(ABC):
    """An instrument that measures energy. Use it as a context manager.

    Attributes:
        name: How users write it (``nvml``).
        covers: What its energy includes: ``gpu``, ``cpu``, ``cpu+dram``, ``board``, ``battery`` ...
        provenance: ``measured``, ``modelled`` or ``simulated``.
        instrument: Identifies what it reads where a machine may have several: the UUID of a GPU,
            the path of a file. Only meters of different instruments can be added up.
        covers_machine: Whether it covers a whole machine, to which only its own rails can be added.
        parts: Sensors whose energy it includes; meters that share one cannot be added up.
        window_s: Shortest window that it measures well.
        update_interval_s: Time between two updates of its number.
        is_recorder: It reads no energy, but records when energy is to be read from a power trace.
        clock: The clock of windows, which tests and simulated devices replace.
    """

    name: str = ""
    covers: str = ""
    instrument: str = ""
    covers_machine: bool = False
    parts: frozenset[str] = frozenset()
    provenance: str = "measured"
    window_s: float = 1.0
    update_interval_s: float = 0.0
    is_recorder: bool = False
    clock: MeasureClock = MeasureClock()

    def __enter__(self) -> Meter:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:  # noqa: B027 - most meters need nothing
        """Connect to the instrument."""

    def close(self) -> None:  # noqa: B027
        """Disconnect. Closing twice is allowed."""

    @abstractmethod
    def begin(self) -> None:
        """Mark the start of a window."""

    @abstractmethod
    def end(self) -> Reading:
        """End the window and return its energy."""

    def to_info(
        self, reason: str, resolution_j: float | None = None, idle_power_w: float | None = None
    ) -> MeterInfo:
        """Return the row of ``joulecast detect`` for a meter that is available."""
        return MeterInfo(
            self.name,
            True,
            reason,
            self.covers,
            self.provenance,
            self.update_interval_s or None,
            resolution_j,
            idle_power_w,
        )


@dataclass(frozen=True)
class Reading:
    """Energy between ``begin`` and ``end``, over ``duration_s`` on the meter's clock.

    A value that is negative, not finite or not a number becomes 0 and a fault.

    Attributes:
        busy_share: The device was busy for at least this share of the time throughout the window,
            whoever used it; None if the meter cannot tell.
        unchecked: Those of ``METER_CHECKS`` that the meter could not make.
        span_s: Start and end on the clock of the run, in seconds since 1970; only of a recorder.
    """

    energy_j: float
    duration_s: float
    faults: tuple[str, ...] = ()
    busy_share: float | None = None
    unchecked: tuple[str, ...] = METER_CHECKS
    span_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name, unit in (("energy_j", "J"), ("duration_s", "s")):
            value = _to_float(getattr(self, name))
            if not 0 <= value < math.inf:
                fault = "negative" if -math.inf < value < 0 else "invalid"
                if not any(one.startswith(fault) for one in self.faults):
                    faults = (*self.faults, f"{fault}: the meter returned {value:.3g} {unit}")
                    object.__setattr__(self, "faults", faults)
                value = 0.0
            object.__setattr__(self, name, value)

    @property
    def power_w(self) -> float:
        """Average power; 0 where no time passed."""
        return self.energy_j / self.duration_s if self.duration_s > 0 else 0.0


@contextmanager
def explain_read_errors(what: str, advice: str) -> Iterator[None]:
    """Turn errors of reading files of an instrument into one that says what to do."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{what} can no longer be read ({error}): {advice}") from error


def _to_float(value: Any) -> float:
    """Return a number as a float; NaN if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class MeterInfo(Record):
    """What ``joulecast detect`` shows about a meter.

    ``reason`` says why it is not available, or what was found; ``advice``, what to do if it is not.
    """

    name: str
    available: bool
    reason: str
    covers: str = ""
    provenance: str = "measured"
    update_interval_s: float | None = None
    resolution_j: float | None = None
    idle_power_w: float | None = None
    advice: str = ""


def explain_missing(name: str, covers: str, error: JoulecastError) -> MeterInfo:
    """Return the row of ``joulecast detect`` for a meter that is not available."""
    if isinstance(error, UnavailableError):
        return MeterInfo(name, False, error.reason, covers, advice=error.advice)
    return MeterInfo(name, False, str(error), covers, advice="use another meter")


class GuardedMeter(Meter):
    """A meter that checks the order of calls; an instrument implements the four hooks.

    Opening and closing twice does nothing, ``begin`` needs an open meter, and ``end`` needs
    ``begin``. A second ``begin`` restarts the window, because a load that failed never reaches its
    ``end``. An instrument that fails in between raises MeterLostError.
    """

    _is_open = False
    _has_begun = False

    def open(self) -> None:
        if not self._is_open:
            self._connect()
            self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = self._has_begun = False
            self._release()

    def begin(self) -> None:
        if not self._is_open:
            raise MeasurementError(
                f"begin() was called on meter {self.name} before open(): use `with`"
            )
        with _name_loss():
            self._start()
        self._has_begun = True

    def end(self) -> Reading:
        if not self._has_begun:
            raise MeasurementError(
                f"end() was called on meter {self.name} before begin(): call begin() first"
            )
        self._has_begun = False
        with _name_loss():
            return self._stop()

    def _connect(self) -> None:
        """Connect to the instrument; most need nothing."""

    def _release(self) -> None:
        """Disconnect; a window may still be open."""

    @abstractmethod
    def _start(self) -> None:
        """Mark the start of a window, discarding one that was not ended."""

    @abstractmethod
    def _stop(self) -> Reading:
        """Return the energy since the start."""


@contextmanager
def _name_loss() -> Iterator[None]:
    """Raise an error of the instrument as MeterLostError, so that the trial is retried."""
    try:
        yield
    except MeasurementError as error:
        raise MeterLostError(str(error)) from error
