"""``joulecast detect``: list the meters and devices of this machine, and check meters with Zeus."""

from __future__ import annotations

import click

from joulecast.cli import options
from joulecast.cli.progress import show_activity
from joulecast.cli.terminal import format_optional, make_console, print_json, print_table
from joulecast.devices import detect_device
from joulecast.errors import JoulecastError
from joulecast.meters import MeterInfo, detect_meters
from joulecast.meters.cross_check import WINDOW_S, CrossCheck, cross_check_meters
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
_CHECK_COLUMNS = ("meter", "covers", ">power", ">power by Zeus", ">difference")


@click.command()
@click.option(
    "--cross-check",
    is_flag=True,
    help=f"Compare nvml and rapl with Zeus, for {WINDOW_S:.0f} s.",
)
@options.json
def detect(cross_check: bool, json: bool) -> None:
    """List the meters and devices of this machine.

    For each meter: whether it is available, what its energy covers, how often its reading updates,
    its resolution, the idle power of the device, and what to do if it is not available.
    """
    if cross_check:
        _cross_check(json)
        return
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


def _cross_check(json: bool) -> None:
    """Compare meters with Zeus and print both powers."""
    with show_activity(f"measuring for {WINDOW_S:.0f} s"):
        found = cross_check_meters()
    if json:
        rows = [{**check.to_dict(), "agrees": check.agrees} for check in found.checks]
        print_json({"cross_checks": rows, "refused": dict(found.refused)})
        return
    console = make_console()
    print_table(console, _CHECK_COLUMNS, map(_format_check, found.checks))
    for name, reason in found.refused.items():
        console.print(f"{name} was not compared: {reason}.")
    for check in found.checks:
        if not check.agrees:
            console.print(f"{check.meter} and Zeus disagree: {_explain(check)}.")


def _format_check(check: CrossCheck) -> tuple[str, ...]:
    powers = (format_power(check.power_w), format_power(check.zeus_power_w))
    return (check.meter, check.covers, *powers, f"{100 * check.difference_share:+.1f} %")


def _explain(check: CrossCheck) -> str:
    if check.covers != check.zeus_covers:
        return f"it covers {check.covers}, Zeus {check.zeus_covers}"
    if check.faults:
        return "; ".join(check.faults)
    return (
        "check with another instrument which of them is right, and do not trust either until then"
    )


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
