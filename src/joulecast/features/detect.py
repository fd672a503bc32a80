"""List the meters and devices of this machine, and compare meters with Zeus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from joulecast.devices.detect import detect_device
from joulecast.features.arguments import Argument, verb
from joulecast.records import Device
from joulecast.system.errors import JoulecastError
from joulecast.system.units import format_bytes, format_duration, format_energy, format_power
from joulecast.views.report import Answer, Block, Report, Text, make_table
from joulecast.views.words import format_optional

if TYPE_CHECKING:
    from joulecast.meters import MeterInfo
    from joulecast.meters.cross_check import CrossCheck

_METER_COLUMNS = ("meter", "available", "covers", ">update interval", ">resolution", ">idle power")
_CHECK_COLUMNS = ("meter", "covers", ">power", ">power by Zeus", ">difference")

CrossChecked = Annotated[bool, Argument("Compare nvml and rapl with Zeus, for 10 s.")]


@verb
def detect(*, cross_check: CrossChecked = False) -> Answer:
    """List the meters and devices of this machine.

    For each meter: whether it is available, what its energy covers, how often its reading updates,
    its resolution, the idle power of the device, and what to do if it is not available.
    """
    from joulecast.meters import detect_meters

    if cross_check:
        return _cross_check()
    meters, devices = detect_meters(), find_devices()
    data = {
        "meters": [meter.to_dict() for meter in meters],
        "devices": [{"on": on, **device.to_dict()} for on, device in devices.items()],
    }
    blocks: list[Block] = [make_table(_METER_COLUMNS, map(_format_meter, meters))]
    for meter in meters:
        details = f"{meter.reason}; {meter.advice}" if meter.advice else meter.reason
        blocks.append(Text(f"{meter.name}: {details}."))
    rows = [_format_device(on, device) for on, device in devices.items()]
    blocks.append(make_table(("--on", "device", "~processor", ">memory"), rows))
    return Answer(data, Report("", tuple(blocks), kind="machine"))


def _cross_check() -> Answer:
    """Compare meters with Zeus."""
    from joulecast.meters.cross_check import cross_check_meters

    found = cross_check_meters()
    rows = [{**check.to_dict(), "agrees": check.agrees} for check in found.checks]
    blocks: list[Block] = [make_table(_CHECK_COLUMNS, map(_format_check, found.checks))]
    for name, reason in found.refused.items():
        blocks.append(Text(f"{name} was not compared: {reason}."))
    for check in found.checks:
        if not check.agrees:
            blocks.append(Text(f"{check.meter} and Zeus disagree: {_explain(check)}."))
    data = {"cross_checks": rows, "refused": dict(found.refused)}
    return Answer(data, Report("", tuple(blocks), kind="cross-check"))


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
