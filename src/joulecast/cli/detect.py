"""``joulecast detect``: which meters and devices there are, and what to do about those missing."""

from __future__ import annotations

from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.show import make_console, print_json, print_table
from joulecast.devices import detect_device
from joulecast.errors import JoulecastError
from joulecast.meters import MeterInfo, detect_meters
from joulecast.records import Device
from joulecast.units import format_bytes, format_duration, format_energy, format_power


@click.command()
@options.json
def detect(json: bool) -> None:
    """Say which meters and devices there are.

    Of each meter: whether it is there, what its joules include, how often its number moves, how
    fine it is, what the waiting device draws, and what to do where something is missing.
    """
    meters, devices = detect_meters(), find_devices()
    if json:
        rows = [{"on": on, **device.to_dict()} for on, device in devices.items()]
        print_json({"meters": [meter.to_dict() for meter in meters], "devices": rows})
        return
    console = make_console()
    columns = (
        "meter",
        "there",
        "covers",
        ">moves every",
        ">by",
        ">idle",
        "~what it is, what to do",
    )
    print_table(console, columns, map(_show_meter, meters))
    shown = [_show_device(on, device) for on, device in devices.items()]
    print_table(console, ("--on", "device", "~processor", ">memory"), shown)


def find_devices() -> dict[str, Device]:
    """The processor and every GPU, by what ``--on`` calls them."""
    found = {"cpu": detect_device("cpu")}
    while True:
        on = f"cuda:{len(found) - 1}"
        try:
            found[on] = detect_device(on)
        except JoulecastError:
            return found


def _show_meter(meter: MeterInfo) -> tuple[str, ...]:
    return (
        meter.name,
        "yes" if meter.available else "no",
        meter.covers,
        _show(meter.period_s, format_duration),
        _show(meter.resolution_j, format_energy),
        _show(meter.idle_power_w, format_power),
        f"{meter.reason}; {meter.advice}" if meter.advice else meter.reason,
    )


def _show_device(on: str, device: Device) -> tuple[str, ...]:
    name = f"{device.name} ({device.power_mode})" if device.power_mode else device.name
    return (on, name, device.processor, format_bytes(device.memory_bytes))


def _show(value: float | None, form: Any) -> str:
    return "-" if value is None else str(form(value))
