"""Measure a machine by its own battery, in Linux's power_supply folder.

    power_now                   µW
    current_now x voltage_now   µA x µV, if there is no power; some drivers show negative currents
    energy_now, charge_now      µWh, or µAh x voltage_now: only differences

Several batteries are added up, all by the first of these that each of them has. Batteries of mice
and the like (scope "Device") are ignored, and the battery counts only while it discharges and no
charger is online. Source: Documentation/ABI/testing/sysfs-class-power of Linux. ``discharge`` does
the measuring.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.base import MeterInfo, UnavailableError
from joulecast.meters.discharge import BatteryState, DischargeMeter
from joulecast.meters.ticker import MakeTicker, Ticker

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
        """Make the meter.

        Args:
            root: The power_supply folder.
            now: The clock.
            sleep: Waits.
            ticker: Makes the ticker that reads the batteries while a window is open.
        """
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
