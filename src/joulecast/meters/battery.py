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

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from joulecast.meters.base import GuardedMeter, MeterInfo, Reading, UnavailableError
from joulecast.meters.sampling import MakeTicker, Ticker
from joulecast.system.errors import InputError, MeasurementError

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
    """The batteries of this machine."""

    name = "battery"

    def __init__(
        self,
        root: Path = SUPPLIES,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        ticker: MakeTicker = Ticker,
    ) -> None:
        batteries = find_batteries(root)
        kind = choose_kind(batteries)
        read = _guard(lambda: read_batteries(root, batteries, kind))
        super().__init__(read, str(root.resolve()), _POLL_S, now, sleep, ticker)


def find_batteries(root: Path) -> tuple[Path, ...]:
    """Return the batteries that supply this machine.

    Raises:
        UnavailableError: There are none.
    """
    folders = tuple(sorted(path for path in root.glob("*") if _is_battery(path)))
    if not folders:
        raise UnavailableError(f"no battery under {root}", _ADVICE)
    return folders


def choose_kind(batteries: tuple[Path, ...]) -> str:
    """Return which number to read: the best that all batteries show.

    Raises:
        UnavailableError: There is none.
    """
    for kind in _KINDS:
        if all(_shows(folder, kind) for folder in batteries):
            return kind
    names = " and ".join(folder.name for folder in batteries)
    raise UnavailableError(f"{names} do not all show power, or energy, or charge", _ADVICE)


def read_batteries(root: Path, batteries: tuple[Path, ...], kind: str) -> BatteryState:
    """Return the sum of several batteries, of which one may rest while another discharges."""
    numbers = [_read_number(folder / f"{kind}_now") for folder in batteries]
    charger = _find_charger(root, batteries)
    if kind == "power":
        return BatteryState(charger, sum(map(abs, numbers)) * 1e-6)
    if kind == "energy":
        return BatteryState(charger, None, sum(numbers) * _PER_HOUR)
    voltages_v = [_read_number(folder / "voltage_now") * 1e-6 for folder in batteries]
    if kind == "charge":
        # Batteries of one machine have about the same voltage.
        return BatteryState(charger, None, sum(numbers) * _PER_HOUR, fmean(voltages_v))
    products = [abs(n) * 1e-6 * v for n, v in zip(numbers, voltages_v, strict=True)]
    return BatteryState(charger, sum(products))


def _is_battery(folder: Path) -> bool:
    is_present = _read(folder / "present") != "0"
    is_own = _read(folder / "scope") != "Device"
    return _read(folder / "type") == "Battery" and is_present and is_own


def _shows(folder: Path, kind: str) -> bool:
    """Return whether a battery shows a number; 0 while it discharges means that it does not."""
    names = [kind, "voltage"] if kind in ("current", "charge") else [kind]
    is_resting = _read(folder / "status") != _DISCHARGING
    texts = [_read(folder / f"{name}_now") for name in names]
    return all(text.lstrip("-").isdecimal() and (is_resting or int(text)) for text in texts)


def _find_charger(root: Path, batteries: tuple[Path, ...]) -> str:
    """Return what is wrong with the supply; empty while only batteries give power."""
    for supply in sorted(root.glob("*")):
        if _read(supply / "type") not in ("", "Battery") and _read(supply / "online") in ("1", "2"):
            return f"{supply.name} is online"
    statuses = {battery.name: _read(battery / "status") for battery in batteries}
    for name, status in statuses.items():
        if status == "Charging":
            return f"{name} is charging"
    if _DISCHARGING not in statuses.values():
        return ", ".join(f"{name}: {status or 'unknown'}" for name, status in statuses.items())
    return ""


def _read(path: Path) -> str:
    """Return the text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_number(path: Path) -> int:
    return int(path.read_text())


def _guard(read: Callable[[], BatteryState]) -> Callable[[], BatteryState]:
    """Turn errors of reading the batteries into one that says what to do."""

    def guarded() -> BatteryState:
        try:
            return read()
        except (OSError, ValueError) as error:
            raise MeasurementError(
                f"the battery can no longer be read ({error}): check that it is inserted"
            ) from error

    return guarded


def make_battery(argument: str) -> BatteryMeter:
    """Return the meter of ``battery``."""
    if argument:
        raise InputError(f"battery:{argument} is not a meter: give battery, which reads all")
    return BatteryMeter()


def detect_battery(root: Path = SUPPLIES) -> tuple[MeterInfo, ...]:
    """Return whether there is a battery that discharges, with its current power."""
    try:
        batteries = find_batteries(root)
        kind = choose_kind(batteries)
        state = _guard(lambda: read_batteries(root, batteries, kind))()
        if state.charger:
            raise UnavailableError(
                f"the battery does not supply the machine alone ({state.charger})",
                "unplug the charger",
            )
    except UnavailableError as error:
        return (error.to_info(BatteryMeter.name, BatteryMeter.covers),)
    except MeasurementError as error:
        failed = UnavailableError(str(error), _ADVICE)
        return (failed.to_info(BatteryMeter.name, BatteryMeter.covers),)
    names = " + ".join(folder.name for folder in batteries)
    return (
        MeterInfo(
            BatteryMeter.name,
            True,
            f"{kind} of {names}; how often it updates is measured at the start",
            covers=BatteryMeter.covers,
            idle_power_w=state.power_w,
        ),
    )
