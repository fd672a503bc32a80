"""Measure the phone that this runs on, in Termux, by its battery.

    termux           what termux-battery-status shows: current (µA) x voltage (mV), else charge
    termux:force     although it charges

Source: app/src/main/java/com/termux/api/apis/BatteryStatusAPI.java of
https://github.com/termux/termux-api. ``discharge`` does the measuring.
"""

from __future__ import annotations

import json
import shutil

from joulecast.errors import InputError, MeasurementError
from joulecast.meters.android import PhoneMeter, make_phone_state, parse_number
from joulecast.meters.base import MeterInfo, UnavailableError
from joulecast.meters.command import RunProgram, run_program
from joulecast.meters.discharge import BatteryState

_PROGRAM = "termux-battery-status"


def make_termux(argument: str, run: RunProgram = run_program) -> PhoneMeter:
    """Return the meter of ``termux`` or ``termux:force``."""
    if argument not in ("", "force"):
        raise InputError(f"termux:{argument} is not a meter: give termux or termux:force")
    if shutil.which(_PROGRAM) is None:
        raise UnavailableError(
            f"there is no {_PROGRAM}",
            "in Termux on the phone, run: pkg install termux-api, and install the app Termux:API",
        )
    meter = PhoneMeter("termux", lambda: parse_termux(run([_PROGRAM])), _PROGRAM)
    if argument:
        meter.force()
    return meter


def parse_termux(text: str) -> BatteryState:
    """Return the state that ``termux-battery-status`` prints as JSON.

    Raises:
        MeasurementError: The text is not a battery.
    """
    try:
        shown = json.loads(text)
        plugged, status = str(shown["plugged"]), str(shown["status"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(
            f"{_PROGRAM} printed no battery ({text.strip()[:60]!r}): check the app Termux:API"
        ) from error
    charger = plugged if plugged != "UNPLUGGED" else "" if status == "DISCHARGING" else status
    current, voltage_mv, charge_uah = (
        parse_number(shown.get(name)) for name in ("current", "voltage", "charge_counter")
    )
    return make_phone_state(charger, current, voltage_mv * 1e-3, charge_uah)


def detect_termux() -> tuple[MeterInfo, ...]:
    """Return whether this machine is a phone with Termux:API."""
    try:
        make_termux("")
    except UnavailableError as error:
        return (error.to_info("termux", PhoneMeter.covers),)
    reason = f"{_PROGRAM}; how often it updates is measured at the start"
    return (MeterInfo("termux", True, reason, covers=PhoneMeter.covers),)
