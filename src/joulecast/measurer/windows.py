"""Collect the measured windows of a trial and decide which of them are valid.

A window is rejected if the meter reports a fault, if the meter counted no energy, or if its steps
took far longer or shorter than those of the other windows, which is how other load shows. The
tolerance is wide on purpose: steps on a shared processor easily differ by 20 % from round to round,
the median tolerates one bad round in three, and an honest spread is worth more than a refusal.

One slow window must not become a result either: other load only ever slows steps down, so a result
far above the fastest time seen, warm-up included, is checked by a few more windows. If they do not
settle it, the fast time stays in the spread of the observation, which shows that it is in doubt. So
is a power far above the lowest one: other load on the device only ever adds to it.

The idle device is checked as well, before a trial, every two minutes: other programs may be hidden
from this one, as in a container, and only while nothing of ours runs can they be told apart.

    busy for 30 % of the time        other load
    a load below 0.8 times idle      implausible (H200s: idle 121 to 131 W, no load below 120 W)
    a load at exactly idle power     stuck: the meter does not see the load

Load pulses before and after a trial align a power trace with the clock of the run:

    load  ▁▁▁▔▔▔▁▁▔▔▔▔▔▁▁▁▁▔▔▔▁▁▁▔▔▔▔▁▁▁    windows of the trial    ▁▁▁▔▔▔▔▁▁▔▔▔ …
          └─ before ──────────────────┘                            └─ after ─ …

Each trial draws the lengths of its pulses and gaps from its key, so that no two trials look alike
in the trace. Steps are not interrupted: a pulse lasts for a whole number of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median, median_high

from joulecast.meters.base import OTHER_LOAD, Reading
from joulecast.records import LoadWindow, Trial

# Reject a window whose steps take more than 1 + this times the median, or less than the median
# divided by it.
_OUTLIER_SHARE = 1.0
# Steps of a result may take longer than the fastest by this share, and draw more power than the
# lowest; above, more windows are measured. Steps on a shared processor easily differ by a fifth.
_CONFIRM_SHARE = 0.25


@dataclass(frozen=True)
class MeasureLimits:
    """Lengths of warm-ups and windows that users choose; 0 for as many steps as are needed.

    Attributes:
        window_steps: Fewest steps of a window with a meter.
        warmup_steps: Steps of every warm-up.
    """

    window_steps: int = 0
    warmup_steps: int = 0


@dataclass(frozen=True)
class MeasuredWindow:
    """Energy and duration per step, and the faults that make them invalid.

    Attributes:
        unchecked: What the meter could not check.
        load: When its steps ran, if the meter is a recorder.
    """

    energy_j: float | None
    duration_s: float
    faults: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    load: LoadWindow | None = None
    steps: int = 0


@dataclass
class TrialMeasurements:
    """Everything measured for one trial so far.

    Attributes:
        step_times_s: Seconds per step at the end of each warm-up.
        issues_s: Host seconds to issue one step.
        cost_s: Device time used, warm-ups included.
        begun_s: When its preparation began, on the clock of windows.
        pulses: Loads around the windows, if the meter is a recorder.
    """

    trial: Trial
    windows: list[MeasuredWindow] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    issues_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    cost_s: float = 0.0
    begun_s: float = 0.0
    pulses: list[LoadWindow] = field(default_factory=list)
    warmup_steps: int = 0

    def valid_windows(self) -> list[MeasuredWindow]:
        """Return windows without a fault whose step time is near the median."""
        return [window for window in self.windows if not self.find_faults(window)]

    def count_rejected(self) -> int:
        return len(self.windows) - len(self.valid_windows())

    def is_confirmed(self) -> bool:
        """Return whether most valid windows are about as fast, and draw as little, as the best."""
        windows = [one for one in self.valid_windows() if one.energy_j is not None]
        powers_w = [(one.energy_j or 0.0) / one.duration_s for one in windows] or [0.0]
        most_w = min(powers_w) * (1 + _CONFIRM_SHARE)
        return self._is_time_confirmed() and median_high(powers_w) <= most_w

    def count_slow(self) -> int:
        """Return the number of valid windows whose steps were far slower than the fastest seen."""
        return sum(window.duration_s > self._find_slow_s() for window in self.valid_windows())

    def list_durations_s(self) -> list[float]:
        """Return step times of valid windows, and the fastest warm-up if it contradicts them."""
        durations_s = [window.duration_s for window in self.valid_windows()]
        return durations_s if self._is_time_confirmed() else [*durations_s, min(self.step_times_s)]

    def list_unchecked(self) -> tuple[str, ...]:
        """Return what the meter could not check in any one of the valid windows."""
        unchecked = [check for window in self.valid_windows() for check in window.unchecked]
        return tuple(dict.fromkeys(unchecked))

    def find_faults(self, window: MeasuredWindow) -> tuple[str, ...]:
        """Return the faults of a window; one with an unusual step time has ``other load``."""
        if window.faults:
            return window.faults
        durations_s = [one.duration_s for one in self.windows if not one.faults]
        ratio = window.duration_s / median(durations_s + self.step_times_s)
        if max(ratio, 1 / ratio) <= 1 + _OUTLIER_SHARE:
            return ()
        return (f"other load: a step took {ratio:.1f} times as long as usual",)

    def window_factor(self) -> int:
        """Return how many times longer windows must be, because some were too short."""
        return 1 << sum("too short" in map(name_fault, one.faults) for one in self.windows)

    def _is_time_confirmed(self) -> bool:
        durations_s = [window.duration_s for window in self.valid_windows()]
        return not durations_s or median_high(durations_s) <= self._find_slow_s()

    def _find_slow_s(self) -> float:
        durations_s = [window.duration_s for window in self.valid_windows()]
        return min(durations_s + self.step_times_s) * (1 + _CONFIRM_SHARE)


def make_window(
    reading: Reading, duration_s: float, *, steps: int = 1, allows_zero: bool = False
) -> MeasuredWindow:
    """Return energy per step from the power that was read, with faults that the meter missed.

    The meter may have read a part of the window only; ``duration_s`` is that of a step.
    """
    faults = reading.faults
    if not faults and reading.duration_s <= 0:
        faults = ("too short: no time passed on the meter's clock",)
    if not faults and reading.energy_j == 0 and not allows_zero:
        faults = (f"stuck: no energy in {reading.duration_s:.3g} s",)
    if faults:
        return MeasuredWindow(None, duration_s, faults)
    energy_j = reading.power_w * duration_s
    load = LoadWindow(*reading.span_s, steps) if reading.span_s else None
    return MeasuredWindow(energy_j, duration_s, unchecked=reading.unchecked, load=load, steps=steps)


def name_fault(fault: str) -> str:
    """Return the name of a fault without its details."""
    return fault.split(":")[0]


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


PULSES = 4  # before a trial, and after it
# An instrument with 100 samples a second has at least ten of them in a pulse.
_SHORTEST_S, _LONGEST_S = 0.12, 0.3
LAST_GAP_S = _LONGEST_S


def draw_pulses(trial: Trial, place: str) -> Iterator[tuple[float, float]]:
    """Yield seconds without and then with load, ``before`` or ``after`` the windows of a trial."""
    rng = random.Random(f"{trial.key} {place}")
    for _ in range(PULSES):
        yield rng.uniform(_SHORTEST_S, _LONGEST_S), rng.uniform(_SHORTEST_S, _LONGEST_S)
