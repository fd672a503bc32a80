"""``joulecast detect``: list the meters and devices of this machine."""

from __future__ import annotations

import click

from joulecast.cli import options
from joulecast.cli.terminal import format_optional, make_console, print_json, print_table
from joulecast.devices import detect_device
from joulecast.errors import JoulecastError
from joulecast.meters import MeterInfo, detect_meters
from joulecast.records import Device
from joulecast.units import format_bytes, format_duration, format_energy, format_power

_METER_COLUMNS = (
    "meter",
    "available",
    "covers",
    ">update interval",
    ">resolution",
    ">idle power",
)


@click.command()
@options.json
def detect(json: bool) -> None:
    """List the meters and devices of this machine.

    For each meter: whether it is available, what its energy covers, how often its reading updates,
    its resolution, the idle power of the device, and what to do if it is not available.
    """
    meters, devices = detect_meters(), find_devices()
    if json:
        rows = [{"on": on, **device.to_dict()} for on, device in devices.items()]
        print_json({"meters": [meter.to_dict() for meter in meters], "devices": rows})
        return
    console = make_console()
    print_table(console, _METER_COLUMNS, map(_format_meter, meters))
    for meter in meters:
        details = f"{meter.reason}; {meter.advice}" if meter.advice else meter.reason
        console.print(f"{meter.name}: {details}.")
    console.print()
    rows_of_devices = [_format_device(on, device) for on, device in devices.items()]
    print_table(console, ("--on", "device", "~processor", ">memory"), rows_of_devices)


def find_devices() -> dict[str, Device]:
    """Return the processor and every GPU by their names for ``--on``."""
    found = {"cpu": detect_device("cpu")}
    while True:
        on = f"cuda:{len(found) - 1}"
        try:
            found[on] = detect_device(on)
        except JoulecastError:
            return found


def _format_meter(meter: MeterInfo) -> tuple[str, ...]:
    return (
        meter.name,
        "yes" if meter.available else "no",
        meter.covers,
        format_optional(meter.update_interval_s, format_duration),
        format_optional(meter.resolution_j, format_energy),
        format_optional(meter.idle_power_w, format_power),
    )


def _format_device(on: str, device: Device) -> tuple[str, ...]:
    name = f"{device.name} ({device.power_mode})" if device.power_mode else device.name
    return (on, name, device.processor, format_bytes(device.memory_bytes))
