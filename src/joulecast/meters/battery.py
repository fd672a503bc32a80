"""Measure a machine by its battery: this one by Linux's power_supply folder.

        power shown         ┌────┐
                    ───┐    │    └────     a number that appears at an update describes the time
                       └────┘              since the update before
        ────────┬──────┴────┴────┴──┬───
                t0    first … last  t1     power = energy from first to last / time between them

Gauges update every second to every minute. ``open`` watches the battery until it knows how often,
and the shortest window has ten updates. Where there is no power, a counter of energy or charge
serves, whose steps are updates as well. While a charger is connected, the battery does not tell
what the machine draws: such readings are refused. ``phones`` measures phones the same way.

    power_now                   µW
    current_now x voltage_now   µA x µV, if there is no power; some drivers show negative currents
    energy_now, charge_now      µWh, or µAh x voltage_now: only differences

Several batteries are added up, all by the first of these that each of them has. Batteries of mice
and the like (scope "Device") are ignored. Source: Documentation/ABI/testing/sysfs-class-power of
Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from joulecast.devices.detect import read_system
from joulecast.meters.base import (
    MeterInfo,
    MeterRequest,
    Reading,
    UnavailableError,
    explain_read_errors,
)
from joulecast.meters.sampling import TickedMeter

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


class DischargeMeter(TickedMeter):
    """The battery of a machine or a phone while it discharges."""

    covers = "battery"
    covers_machine = True
    window_s = _MIN_WINDOW_S

    def __init__(
        self,
        name: str,
        read: Callable[[], BatteryState],
        instrument: str,
        poll_s: float,
        is_forced: bool = False,  # measure even while a charger is connected
    ) -> None:
        self.name = name
        self.instrument = instrument
        self.tick_s = poll_s
        self.is_forced = is_forced
        if is_forced:
            self.covers = "battery while charging"
        self._read = read
        self._last: _Update | None = None
        self._charger = ""
        self._updates: list[_Update] = []

    def _connect(self) -> None:
        self._begin()
        self._check_charger()
        until_s = self.clock.now() + _LEARN_S
        while len(self._updates) < _LEARN_UPDATES and self.clock.now() < until_s:
            self.clock.sleep(self.tick_s)
            self._tick()
            self._check_charger()
        if len(self._updates) < 2:
            raise UnavailableError(
                f"the battery showed no new number in {_LEARN_S:.0f} s",
                "check that its gauge works, or use another meter",
            )
        times = [update.time_s for update in self._updates]
        steps = [after - before for before, after in pairwise(times)]
        self.update_interval_s = max(median(steps), self.tick_s)
        self.window_s = max(_MIN_WINDOW_S, _WINDOW_UPDATES * self.update_interval_s)
        if self._updates[-1].state.power_w is None:
            self.window_s = max(self.window_s, _COUNTER_READINGS * self.tick_s)

    def _check_charger(self) -> None:
        if not self.is_forced:
            _refuse_charger(self._charger)

    def _begin(self) -> None:
        self._last, self._updates, self._charger = None, [], ""
        self._tick()

    def _finish(self, end_s: float) -> Reading:
        self._tick()
        updates, duration_s, power_w = self._updates, end_s - self._begun_s, 0.0
        if len(updates) > 1:
            energy_j = sum(_energy_j(before, after) for before, after in pairwise(updates))
            power_w = max(energy_j, 0.0) / (updates[-1].time_s - updates[0].time_s)
        return Reading(power_w * duration_s, duration_s, tuple(self._find_faults(end_s)))

    def _tick(self) -> None:
        begin_s = self.clock.now()
        state = self._read()
        last, self._last = self._last, _Update((begin_s + self.clock.now()) / 2, state)
        self._charger = self._charger or state.charger
        if last is not None and state.number != last.state.number:
            self._updates.append(_Update((last.time_s + self._last.time_s) / 2, state))

    def _find_faults(self, end_s: float) -> Iterator[str]:
        if self._charger and not self.is_forced:
            yield f"charging: {self._charger}"
        times = [self._begun_s, *(update.time_s for update in self._updates), end_s]
        widest_s = max(after - before for before, after in pairwise(times))
        if widest_s > _STUCK_PERIODS * self.update_interval_s:
            yield f"stuck: the battery showed no new number for {widest_s:.3g} s"
        elif len(self._updates) < MIN_UPDATES:
            window = f"{end_s - self._begun_s:.3g} s"
            yield f"too short: {len(self._updates)} updates of the battery in {window}"
        if len({update.state.power_w is None for update in self._updates}) > 1:
            yield "gap: the battery showed its power only at times"
        if any(_energy_j(a, b) < 0 for a, b in pairwise(self._updates)):
            yield "reset: what is left in the battery rose"


def _refuse_charger(charger: str) -> None:
    if charger:
        raise UnavailableError(
            f"the battery does not supply the machine alone ({charger})", "unplug the charger"
        )


def _energy_j(before: _Update, after: _Update) -> float:
    """Return the energy that the battery gave between two updates."""
    old, new = before.state, after.state
    if new.power_w is not None:
        return new.power_w * (after.time_s - before.time_s)
    if old.left is None or new.left is None:
        return 0.0
    return (old.left - new.left) * (old.voltage_v + new.voltage_v) / 2


# ---------------------------------------------------------------------------------------------
# The battery of this machine

SUPPLIES = Path("/sys/class/power_supply")

_POLL_S = 0.25
# Joules of a µWh, and coulombs of a µAh.
_PER_HOUR = 3.6e-3
_KINDS = ("power", "current", "energy", "charge")
_DISCHARGING = "Discharging"
_ADVICE = "use another meter on a machine without a battery"


class BatteryMeter(DischargeMeter):
    """The batteries of this machine, by the best number that all of them show."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.batteries = tuple(
            folder
            for folder in sorted(root.glob("*"))
            if read_system(folder / "type") == "Battery"
            and read_system(folder / "present") != "0"
            and read_system(folder / "scope") != "Device"
        )
        if not self.batteries:
            raise UnavailableError(f"no battery under {root}", _ADVICE)
        shown = [kind for kind in _KINDS if all(_shows(one, kind) for one in self.batteries)]
        if not shown:
            names = " and ".join(folder.name for folder in self.batteries)
            raise UnavailableError(f"{names} do not all show power, or energy, or charge", _ADVICE)
        self.kind = shown[0]
        super().__init__("battery", self.read, str(root.resolve()), _POLL_S)

    def read(self) -> BatteryState:
        """Return the sum of several batteries, of which one may rest while another discharges."""
        with explain_read_errors("the battery", "check that it is inserted"):
            numbers = self._list_numbers(self.kind)
            charger = self._find_charger()
            if self.kind == "power":
                return BatteryState(charger, sum(map(abs, numbers)) * 1e-6)
            if self.kind == "energy":
                return BatteryState(charger, None, sum(numbers) * _PER_HOUR)
            voltages_v = [voltage * 1e-6 for voltage in self._list_numbers("voltage")]
            if self.kind == "charge":
                # Batteries of one machine have about the same voltage.
                return BatteryState(charger, None, sum(numbers) * _PER_HOUR, fmean(voltages_v))
            products = [abs(n) * 1e-6 * v for n, v in zip(numbers, voltages_v, strict=True)]
            return BatteryState(charger, sum(products))

    def _list_numbers(self, kind: str) -> list[int]:
        return [int((folder / f"{kind}_now").read_text()) for folder in self.batteries]

    def _find_charger(self) -> str:
        """Return what is wrong with the supply; empty while only batteries give power."""
        for supply in sorted(self._root.glob("*")):
            is_battery = read_system(supply / "type") in ("", "Battery")
            if not is_battery and read_system(supply / "online") in ("1", "2"):
                return f"{supply.name} is online"
        statuses = {battery.name: read_system(battery / "status") for battery in self.batteries}
        for name, status in statuses.items():
            if status == "Charging":
                return f"{name} is charging"
        if _DISCHARGING not in statuses.values():
            return ", ".join(f"{name}: {status or 'unknown'}" for name, status in statuses.items())
        return ""


def _shows(folder: Path, kind: str) -> bool:
    """Return whether a battery shows a number; 0 while it discharges means that it does not."""
    names = [kind, "voltage"] if kind in ("current", "charge") else [kind]
    is_resting = read_system(folder / "status") != _DISCHARGING
    texts = [read_system(folder / f"{name}_now") for name in names]
    return all(text.lstrip("-").isdecimal() and (is_resting or int(text)) for text in texts)


def make_battery(request: MeterRequest) -> BatteryMeter:
    """Return the meter of ``battery``."""
    return BatteryMeter(SUPPLIES)


def detect_battery() -> tuple[MeterInfo, ...]:
    """Return the battery, which has to discharge, with its current power."""
    meter = BatteryMeter(SUPPLIES)
    state = meter.read()
    _refuse_charger(state.charger)
    names = " + ".join(folder.name for folder in meter.batteries)
    reason = f"{meter.kind} of {names}; how often it updates is measured at the start"
    return (meter.to_info(reason, idle_power_w=state.power_w),)
