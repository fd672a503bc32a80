"""Record when energy is to be read, for instruments whose data comes after the measurement.

    later          board: what the instrument will measure
    later:battery  the same with another name of what it measures

A power monitor on a phone's battery writes a file that somebody copies afterwards. This meter notes
the start and the end of each window; `joulecast data attach` reads the energy from that file. Until
then a reading has the energy of a constant power, so that a campaign is guided by time: the
relative uncertainty of such an energy is that of the duration. Nothing of it is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from joulecast.meters.base import MeterInfo, Reading
from joulecast.meters.guarded import GuardedMeter

STAND_IN_W = 1.0
"""The constant power of readings until a trace is attached."""


class LaterMeter(GuardedMeter):
    """A recorder of windows, whose energy a power trace provides later."""

    name = "later"
    is_recorder = True

    def __init__(
        self,
        covers: str = "board",
        provenance: str = "measured",
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make the meter.

        Args:
            covers: What the instrument will measure.
            provenance: ``measured``, or ``simulated`` on a simulated device.
            now: The clock of the run.
            wall: Returns seconds since 1970.
        """
        self.covers = covers
        self.provenance = provenance
        self._now = now
        # Read once: whoever sets the clock of the system must not move windows.
        self._origin_s = wall() - now()
        self._begun_s = 0.0

    def _start(self) -> None:
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        duration_s = end_s - self._begun_s
        span_s = (self._origin_s + self._begun_s, self._origin_s + end_s)
        return Reading(STAND_IN_W * duration_s, duration_s, span_s=span_s)


def make_later(argument: str) -> LaterMeter:
    """Return the meter of ``later`` or ``later:COVERS``."""
    return LaterMeter(argument) if argument else LaterMeter()


def detect_later() -> tuple[MeterInfo, ...]:
    """Return the one recorder, which is always available."""
    reason = "records windows; `joulecast data attach trace.csv` fills the joules in later"
    return (MeterInfo(LaterMeter.name, True, reason, covers="board"),)
