"""What a meter is: something that says how many joules passed between two moments.

        open ─┬─ begin ── (load runs) ── end → Reading ─┬─ … ─ close
              └─────────── as often as wanted ──────────┘

One file per instrument stands beside this one. A meter converts to joules and seconds once, at its
own door, and names what it noticed in ``Reading.faults`` instead of hiding it: the rig decides
whether to try again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from joulecast.errors import MissingError

Json = dict[str, Any]

# Names of faults: what made a reading untrustworthy. A colon and details may follow.
FAULTS = ("gap", "reset", "stuck", "negative", "throttled", "other load", "too short")


@dataclass(frozen=True)
class Reading:
    """Joules between ``begin`` and ``end``, over ``duration_s`` of the meter's own clock."""

    energy_j: float
    duration_s: float
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeterInfo:
    """What ``joulecast detect`` says of a meter, there or not.

    Attributes:
        reason: Why it is not available, or what it was found as.
        covers: What its joules include: ``gpu``, ``cpu``, ``cpu+dram``, ``board``, ``battery`` ...
        advice: What to do where something is missing; empty where nothing is.
    """

    name: str
    available: bool
    reason: str
    covers: str = ""
    provenance: str = "measured"
    period_s: float | None = None
    resolution_j: float | None = None
    idle_power_w: float | None = None
    advice: str = ""

    def to_dict(self) -> Json:
        return dict(self.__dict__)


class UnavailableError(MissingError):
    """An instrument is not there, or may not be read: why, and what to do about it."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason
        self.advice = advice

    def to_info(self, name: str, covers: str) -> MeterInfo:
        """The row of ``joulecast detect`` for a meter that is not there."""
        return MeterInfo(name, False, self.reason, covers=covers, advice=self.advice)


class Meter(ABC):
    """One instrument. Use it as a context manager.

    Attributes:
        name: How it is asked for (``nvml``).
        covers: What its joules include.
        provenance: ``measured``, ``modelled`` or ``simulated``.
        window_s: The shortest window that it measures well.
        period_s: How often its number moves.
    """

    name: str = ""
    covers: str = ""
    provenance: str = "measured"
    window_s: float = 1.0
    period_s: float = 0.0

    def __enter__(self) -> Meter:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:  # noqa: B027 - most meters need nothing
        """Take hold of the instrument."""

    def close(self) -> None:  # noqa: B027
        """Let go of it. Closing twice does no harm."""

    @abstractmethod
    def begin(self) -> None:
        """Mark the start of a window."""

    @abstractmethod
    def end(self) -> Reading:
        """Close the window and say what passed in it."""
