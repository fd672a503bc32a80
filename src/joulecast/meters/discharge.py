"""Measure the energy that a battery gives, from numbers that its gauge updates slowly.

        power shown         ┌────┐
                    ───┐    │    └────     a number that appears at an update describes the time
                       └────┘              since the update before
        ────────┬──────┴────┴────┴──┬───
                t0    first … last  t1     power = energy from first to last / time between them

Gauges update every second to every minute. ``open`` watches the battery until it knows how often,
and the shortest window has ten updates. Where there is no power, a counter of energy or charge
serves, whose steps are updates as well. While a charger is connected, the battery does not tell
what the machine draws: such readings are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from joulecast.meters.base import Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.ticker import MakeTicker, Ticker

MIN_UPDATES = 4
_MIN_WINDOW_S = 10.0
_WINDOW_UPDATES = 10
# The moment at which a counter steps is known to half the time between two readings.
_COUNTER_READINGS = 100
_LEARN_UPDATES = 4
_LEARN_S = 180.0
# A battery without an update for this many intervals is stuck.
_STUCK_PERIODS = 5.0


class BatteryState(NamedTuple):
    """What a battery shows at a moment: its power, or what is left in it.

    Attributes:
        charger: What powers the machine besides the battery; empty while the battery alone does.
        power_w: The power that it gives; None if it does not show that.
        left: What is left, in joules, or in coulombs if ``voltage_v`` is given.
        voltage_v: Volts by which to multiply what left; 1 for energy.
    """

    charger: str
    power_w: float | None
    left: float | None = None
    voltage_v: float = 1.0

    @property
    def number(self) -> float | None:
        """The number that changes at an update."""
        return self.left if self.power_w is None else self.power_w


class _Update(NamedTuple):
    time_s: float
    state: BatteryState


class DischargeMeter(GuardedMeter):
    """The battery of a machine or a phone while it discharges."""

    covers = "battery"
    covers_machine = True
    window_s = _MIN_WINDOW_S

    def __init__(
        self,
        read: Callable[[], BatteryState],
        instrument: str,
        poll_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        ticker: MakeTicker = Ticker,
    ) -> None:
        """Make the meter.

        Args:
            read: Reads the battery, or raises MeasurementError.
            instrument: Identifies the battery.
            poll_s: How often to read it.
            now: The clock.
            sleep: Waits.
            ticker: Makes the ticker that reads the battery while a window is open.
        """
        self.instrument = instrument
        self.is_forced = False
        self._read = read
        self._poll_s = poll_s
        self._now = now
        self._sleep = sleep
        self._ticker = ticker(poll_s, self._poll)
        self._begun_s = 0.0
        self._last: _Update | None = None
        self._charger = ""
        self._updates: list[_Update] = []

    def force(self) -> None:
        """Measure even while a charger is connected; what it covers then says so."""
        self.is_forced = True
        self.covers = "battery while charging"

    def _connect(self) -> None:
        self._restart()
        self._poll()
        self._check_charger()
        until_s = self._now() + _LEARN_S
        while len(self._updates) < _LEARN_UPDATES and self._now() < until_s:
            self._sleep(self._poll_s)
            self._poll()
            self._check_charger()
        if len(self._updates) < 2:
            raise UnavailableError(
                f"the battery showed no new number in {_LEARN_S:.0f} s",
                "check that its gauge works, or use another meter",
            )
        times = [update.time_s for update in self._updates]
        steps = [after - before for before, after in pairwise(times)]
        self.update_interval_s = max(median(steps), self._poll_s)
        self.window_s = max(_MIN_WINDOW_S, _WINDOW_UPDATES * self.update_interval_s)
        if self._updates[-1].state.power_w is None:
            self.window_s = max(self.window_s, _COUNTER_READINGS * self._poll_s)

    def _check_charger(self) -> None:
        if self._charger and not self.is_forced:
            raise UnavailableError(
                f"the battery does not supply the machine alone ({self._charger})",
                "unplug the charger",
            )

    def _restart(self) -> None:
        self._last, self._updates, self._charger = None, [], ""

    def _start(self) -> None:
        # It stops an earlier window's ticks; its own first one is a period away.
        self._ticker.start()
        self._restart()
        self._poll()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        end_s = self._now()
        self._ticker.stop()
        self._poll()
        power_w = _mean_power_w(self._updates)
        duration_s = end_s - self._begun_s
        return Reading(power_w * duration_s, duration_s, tuple(self._find_faults(end_s)))

    def _release(self) -> None:
        self._ticker.stop()

    def _poll(self) -> None:
        begin_s = self._now()
        state = self._read()
        last, self._last = self._last, _Update((begin_s + self._now()) / 2, state)
        self._charger = self._charger or state.charger
        if last is not None and state.number != last.state.number:
            self._updates.append(_Update((last.time_s + self._last.time_s) / 2, state))

    def _find_faults(self, end_s: float) -> list[str]:
        faults = []
        if self._charger and not self.is_forced:
            faults.append(f"charging: {self._charger}")
        times = [self._begun_s, *(update.time_s for update in self._updates), end_s]
        widest_s = max(after - before for before, after in pairwise(times))
        if widest_s > _STUCK_PERIODS * self.update_interval_s:
            faults.append(f"stuck: the battery showed no new number for {widest_s:.3g} s")
        elif len(self._updates) < MIN_UPDATES:
            window = f"{end_s - self._begun_s:.3g} s"
            faults.append(f"too short: {len(self._updates)} updates of the battery in {window}")
        if len({update.state.power_w is None for update in self._updates}) > 1:
            faults.append("gap: the battery showed its power only at times")
        if any(_energy_j(a, b) < 0 for a, b in pairwise(self._updates)):
            faults.append("reset: what is left in the battery rose")
        return faults


def _mean_power_w(updates: Sequence[_Update]) -> float:
    """Return the mean power from the first update to the last; 0 for fewer than two."""
    if len(updates) < 2:
        return 0.0
    energy_j = sum(_energy_j(before, after) for before, after in pairwise(updates))
    return max(energy_j, 0.0) / (updates[-1].time_s - updates[0].time_s)


def _energy_j(before: _Update, after: _Update) -> float:
    """Return the energy that the battery gave between two updates."""
    old, new = before.state, after.state
    if new.power_w is not None:
        return new.power_w * (after.time_s - before.time_s)
    if old.left is None or new.left is None:
        return 0.0
    return (old.left - new.left) * (old.voltage_v + new.voltage_v) / 2
