"""Define what a meter is: an instrument that returns the energy between two moments.

    open ─┬─ begin ── (load runs) ── end → Reading ─┬─ … ─ close
          └─────────── any number of times ─────────┘

A meter converts to joules and seconds where it reads its instrument. It reports problems in
``Reading.faults``; the measurer decides whether to try again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from joulecast.errors import MissingError
from joulecast.records.codec import Record

# Problems that make a reading invalid. A colon and details may follow.
FAULTS = ("gap", "reset", "stuck", "negative", "throttled", "other load", "too short")


class Meter(ABC):
    """An instrument that measures energy. Use it as a context manager.

    Attributes:
        name: How users write it (``nvml``).
        covers: What its energy includes: ``gpu``, ``cpu``, ``cpu+dram``, ``board``, ``battery`` ...
        provenance: ``measured``, ``modelled`` or ``simulated``.
        window_s: Shortest window that it measures well.
        update_interval_s: Time between two updates of its number.
    """

    name: str = ""
    covers: str = ""
    provenance: str = "measured"
    window_s: float = 1.0
    update_interval_s: float = 0.0

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


@dataclass(frozen=True)
class Reading:
    """Energy between ``begin`` and ``end``, over ``duration_s`` on the meter's clock."""

    energy_j: float
    duration_s: float
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeterInfo(Record):
    """What ``joulecast detect`` shows about a meter.

    Attributes:
        available: Whether it can be used.
        reason: Why it is not available, or what was found.
        covers: What its energy includes.
        update_interval_s: Time between two updates of its number.
        advice: What to do if it is not available.
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


class UnavailableError(MissingError):
    """An instrument was not found, or cannot be read: why, and what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason
        self.advice = advice

    def to_info(self, name: str, covers: str) -> MeterInfo:
        """Return the row of ``joulecast detect`` for a meter that is not available."""
        return MeterInfo(name, False, self.reason, covers=covers, advice=self.advice)
