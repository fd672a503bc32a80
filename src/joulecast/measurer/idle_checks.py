"""Check the idle device: nothing else may run on it, and a load draws more than it.

Other programs may be hidden from this one, as in a container. Only while nothing of ours runs can
they be told apart: before a trial, every two minutes, the meter reads the idle device.

    busy for 30 % of the time        other load
    a load below 0.8 times idle      implausible
    a load at exactly idle power     stuck: the meter does not see the load

On H200s the idle device drew 121 to 131 W and no load less than 120 W.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from joulecast.meters.base import OTHER_LOAD, Reading

IDLE_POWER = "idle power"
"""What is unchecked if the power of the idle device is unknown."""

CHECK_EVERY_S = 120.0
# Longer than the second over which the sensor of a GPU averages.
CHECK_S = 1.5
BUSY_SHARE = 0.3
IDLE_FACTOR = 0.8
# Faults of the idle device that a load has as well.
_SERIOUS = (OTHER_LOAD, "implausible")
# No two averages of a working instrument agree so well.
_EQUAL_SHARE = 1e-6


@dataclass
class IdleChecks:
    """What is known about the idle device in this run.

    Attributes:
        power_w: The lowest power of the idle device; None while it is unknown.
        sees_load: Whether the meter tells how busy the device is.
        due_s: When to check again, on the clock of windows.
        load_w: The power of the last load.
    """

    power_w: float | None = None
    sees_load: bool = False
    due_s: float = -math.inf
    load_w: float | None = None

    def check_idle(self, reading: Reading, now_s: float) -> tuple[str, ...]:
        """Note a reading of the idle device; return what forbids to measure on it."""
        faults = tuple(self._find_idle_faults(reading))
        if faults:
            return faults
        # Others, such as those of a counter that sleeps, say nothing about a device under load.
        if not reading.faults:
            self.sees_load = reading.busy_share is not None
            self.power_w = min(reading.power_w, self.power_w or math.inf)
        self.due_s = now_s + CHECK_EVERY_S if self.sees_load or reading.faults else math.inf
        return ()

    def check_load(self, reading: Reading) -> tuple[str, ...]:
        """Return what contradicts a reading under load that has no faults."""
        if not self.power_w or reading.power_w <= 0:
            return ()
        if _is_same(reading.power_w, self.power_w):
            return (_describe_stuck(reading.power_w),)
        self.load_w = reading.power_w
        if reading.power_w >= IDLE_FACTOR * self.power_w:
            return ()
        if not self.sees_load:
            # Another program may have run while the device should have been idle.
            self.due_s = -math.inf
        powers = f"{reading.power_w:.4g} W under load, {self.power_w:.4g} W without"
        return (f"implausible: {powers}",)

    def _find_idle_faults(self, reading: Reading) -> Iterator[str]:
        yield from (fault for fault in reading.faults if fault.startswith(_SERIOUS))
        if is_busy(reading):
            busy = f"{reading.busy_share:.0%} of the time"
            yield f"other load: the device is busy {busy}, although it should be idle"
        if not reading.faults and _is_same(reading.power_w, self.load_w):
            yield _describe_stuck(reading.power_w)


def is_busy(reading: Reading) -> bool:
    """Return whether the device was busy throughout a window."""
    return reading.busy_share is not None and reading.busy_share >= BUSY_SHARE


def _is_same(power_w: float, other_w: float | None) -> bool:
    return other_w is not None and math.isclose(power_w, other_w, rel_tol=_EQUAL_SHARE)


def _describe_stuck(power_w: float) -> str:
    return f"stuck: {power_w:.4g} W under load, and exactly as much without"
