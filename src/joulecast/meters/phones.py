"""Measure an Android phone by its battery: over adb, or in Termux on the phone itself.

    android              the only phone that adb lists; one connected without a cable is preferred
    android:SERIAL       one of several, as ``adb devices`` lists them
    android:,force       although it charges; android:SERIAL,force
    termux               what termux-battery-status shows: current (µA) x voltage (mV), else charge
    termux:force         although it charges

A phone on a USB cable charges, and its battery then tells nothing: connect adb over Wi-Fi. Current
times voltage of /sys/class/power_supply/battery is used where the shell may read it, otherwise the
charge counter of ``dumpsys battery``. Sources: BatteryService.java of Android
(frameworks/base/services/core/java/com/android/server), the output of phones that users have
published, and app/src/main/java/com/termux/api/apis/BatteryStatusAPI.java of
https://github.com/termux/termux-api. ``battery.DischargeMeter`` does the measuring.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from functools import partial
from typing import NamedTuple

from joulecast.meters.base import MeterInfo, MeterRequest, UnavailableError, explain_missing
from joulecast.meters.battery import BatteryState, DischargeMeter
from joulecast.meters.command import run_program
from joulecast.system.errors import InputError, MeasurementError

# Each reading wakes the radio of the phone.
POLL_S = 2.0
_NODES = "/sys/class/power_supply/battery"
# One command, because each start of adb takes a tenth of a second.
_SHELL = f"dumpsys battery; cd {_NODES} 2>/dev/null && grep -s . current_now voltage_now; true"
# Currents are in µA; some phones show mA. No phone that runs something draws less than 10 mA.
_LARGEST_MA = 10_000
_COULOMB_PER_UAH = 3.6e-3
_PORT = 5037
_CONNECT_S = 0.2
_NO_ADB = "install the Android platform tools (on Debian: apt-get install adb)"
_UNLOCK = "unlock the phone and allow debugging"
_CONNECT = "turn on wireless debugging on the phone, and run: adb connect PHONE:PORT"


class AdbDevice(NamedTuple):
    """A phone that adb lists, and its state: ``device`` if it is ready."""

    serial: str
    state: str

    @property
    def is_wireless(self) -> bool:
        """Whether it is connected over the network: by address, or by its mDNS name."""
        return re.search(r":\d+$|_adb-tls-connect", self.serial) is not None


# ---------------------------------------------------------------------------------------------
# adb


def make_android(request: MeterRequest) -> DischargeMeter:
    """Return the meter of ``android``, ``android:SERIAL`` or ``android:SERIAL,force``."""
    serial, _, option = request.argument.partition(",")
    if option not in ("", "force"):
        raise InputError(f"android:{request.argument} is not a phone: give android:SERIAL[,force]")
    device = choose_device(list_devices(), serial)
    read = partial(read_adb, device.serial)
    return DischargeMeter("android", read, device.serial, POLL_S, bool(option))


def list_devices() -> tuple[AdbDevice, ...]:
    """Return the phones that adb knows; it starts its server if there is none."""
    _check_adb()
    lines = run_program(["adb", "devices"]).splitlines()
    rows = [line.split("\t") for line in lines if "\t" in line]
    return tuple(AdbDevice(row[0], row[1].strip()) for row in rows)


def _check_adb() -> None:
    if shutil.which("adb") is None:
        raise UnavailableError("adb is not installed", _NO_ADB)


def choose_device(devices: tuple[AdbDevice, ...], serial: str) -> AdbDevice:
    """Return the phone of a serial number, or the only one; without a cable where possible."""
    named = [one for one in devices if serial in ("", one.serial)]
    if not named:
        listed = ", ".join(one.serial for one in devices) or "none"
        reason = f"adb lists no phone {serial}".rstrip()
        raise UnavailableError(f"{reason} (it lists {listed})", _CONNECT)
    ready = [one for one in named if one.state == "device"]
    if not ready:
        states = ", ".join(f"{one.serial} is {one.state}" for one in named)
        raise UnavailableError(states, _UNLOCK)
    best = [one for one in ready if one.is_wireless] or ready
    if len(best) > 1:
        names = ", ".join(f"android:{one.serial}" for one in best)
        raise UnavailableError(f"adb lists {len(best)} phones", f"choose from {names}")
    return best[0]


def read_adb(serial: str) -> BatteryState:
    """Return the state of a phone's battery."""
    return parse_dumpsys(run_program(["adb", "-s", serial, "shell", _SHELL]))


def parse_dumpsys(text: str) -> BatteryState:
    """Return the state that ``dumpsys battery`` and the files of the battery show."""
    if "UPDATES STOPPED" in text:
        raise MeasurementError(
            "the phone shows a made-up battery: run adb shell dumpsys battery reset"
        )
    found = re.findall(r"^\s*([\w ]+?):\s*(\S+)\s*$", text, re.MULTILINE)
    # The first of equal names is Android's own; makers of phones add others.
    shown = dict(reversed(found))
    chargers = [name for name, value in shown.items() if name.endswith(" powered")]
    powered = sorted(name for name in chargers if shown[name] == "true")
    if not chargers:
        raise MeasurementError("the phone shows no battery: run adb shell dumpsys battery by hand")
    charger = powered[0] if powered else "" if shown.get("status") == "3" else "it does not drain"
    # Phones of Samsung show their current in dumpsys.
    current = parse_number(shown.get("current_now", shown.get("current now")))
    voltage_uv = parse_number(shown.get("voltage_now"))
    voltage_v = voltage_uv * 1e-6 or parse_number(shown.get("voltage")) * 1e-3
    return make_phone_state(charger, current, voltage_v, parse_number(shown.get("Charge counter")))


def make_phone_state(charger: str, current: int, voltage_v: float, charge_uah: int) -> BatteryState:
    """Return the state of a battery by its current, else by its charge; 0 means unknown."""
    if voltage_v > 0 and current:
        current_a = abs(current) / (1e3 if abs(current) < _LARGEST_MA else 1e6)
        return BatteryState(charger, current_a * voltage_v)
    if voltage_v > 0 and charge_uah > 0:
        return BatteryState(charger, None, charge_uah * _COULOMB_PER_UAH, voltage_v)
    raise MeasurementError(
        "the phone shows neither current nor charge: use a power monitor and --meter later"
    )


def parse_number(value: object) -> int:
    """Return a number as an integer; 0 if it is not one."""
    try:
        return int(str(value))
    except ValueError:
        return 0


def detect_android() -> tuple[MeterInfo, ...]:
    """Return the phones of a running adb server; starting one takes seconds."""
    _check_adb()
    port = os.environ.get("ANDROID_ADB_SERVER_PORT", _PORT)
    try:
        socket.create_connection(("127.0.0.1", int(port)), timeout=_CONNECT_S).close()
    except ValueError as error:
        raise MeasurementError(f"ANDROID_ADB_SERVER_PORT is not a port ({error})") from error
    except OSError as error:
        raise UnavailableError("the adb server is not running", _CONNECT) from error
    devices = list_devices()
    if not devices:
        raise UnavailableError("adb lists no phone", _CONNECT)
    return tuple(_describe(device) for device in devices)


def _describe(device: AdbDevice) -> MeterInfo:
    name, covers = f"android:{device.serial}", DischargeMeter.covers
    if device.state != "device":
        return explain_missing(name, covers, UnavailableError(f"it is {device.state}", _UNLOCK))
    how = "without a cable" if device.is_wireless else "by a cable, which charges it"
    return MeterInfo(name, True, f"a phone connected {how}", covers=covers)


_TERMUX = "termux-battery-status"


def make_termux(request: MeterRequest) -> DischargeMeter:
    """Return the meter of ``termux`` or ``termux:force``."""
    option = request.argument
    if option not in ("", "force"):
        raise InputError(f"termux:{option} is not a meter: give termux or termux:force")
    if shutil.which(_TERMUX) is None:
        raise UnavailableError(
            f"there is no {_TERMUX}",
            "in Termux on the phone, run: pkg install termux-api, and install the app Termux:API",
        )
    return DischargeMeter("termux", read_termux, _TERMUX, POLL_S, bool(option))


def read_termux() -> BatteryState:
    """Return the state of the battery of this phone."""
    return parse_termux(run_program([_TERMUX]))


def parse_termux(text: str) -> BatteryState:
    """Return the state that ``termux-battery-status`` prints as JSON."""
    try:
        shown = json.loads(text)
        plugged, status = str(shown["plugged"]), str(shown["status"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(
            f"{_TERMUX} printed no battery ({text.strip()[:60]!r}): check the app Termux:API"
        ) from error
    charger = plugged if plugged != "UNPLUGGED" else "" if status == "DISCHARGING" else status
    current, voltage_mv, charge_uah = (
        parse_number(shown.get(name)) for name in ("current", "voltage", "charge_counter")
    )
    return make_phone_state(charger, current, voltage_mv * 1e-3, charge_uah)


def detect_termux() -> tuple[MeterInfo, ...]:
    """Return this machine, if it is a phone with Termux:API."""
    meter = make_termux(MeterRequest())
    return (meter.to_info(f"{_TERMUX}; how often it updates is measured at the start"),)
