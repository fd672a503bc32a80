"""Read the devices of a fleet from a TOML file, and check that their agents answer.

    [[device]]    name address token_file, runtime meter power_mode, battery_wh charge reserve
                  rest_w memory

The agent of a device has chosen runtime and meter already. If the file names them, a device that
answers with others is refused. Every error of a file is one line that names table and key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.agent.addresses import parse_address, read_token
from joulecast.agent.client import LinkLimits, RemoteMeasurer, open_remote_measurer
from joulecast.campaign import find_profile_key
from joulecast.records.codec import Amount, ByteCount, Record, Share, not_stored
from joulecast.runtimes import PROFILE_NAMES
from joulecast.store.campaigns import AWAY, READY, REFUSED
from joulecast.system.errors import DeviceAwayError, FileError, InputError, JoulecastError
from joulecast.system.files import read_toml, show_value
from joulecast.system.toml_tables import (
    Json,
    Parser,
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
    refuse_unknown,
)
from joulecast.system.units import JOULES_PER_WH, parse_bytes

_LONGEST_NAME = 60
# A device that answers does so in milliseconds; one over ssh has to start its agent first.
CHECK_LIMITS = LinkLimits(connect_s=5.0, answer_s=60.0, retry_s=0.0)
_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class FleetDevice(Record):
    """A device of a fleet, as its file describes it.

    Attributes:
        token_file: File with the token of the agent; empty for that of the environment.
        runtime: Expected framework, perhaps with its version; empty for any. Likewise ``meter``
            and ``power_mode``.
        battery_j: Energy of the full battery; None for a device without one.
        reserve_share: Share of it that must remain.
        rest_w: Power that the battery supplies and the meter does not see.
        memory_bytes: Memory that training may use; None for what the device has.
    """

    name: str
    address: str
    token_file: str = not_stored("")
    runtime: str = ""
    meter: str = ""
    power_mode: str = ""
    battery_j: Amount | None = None
    charge_share: Share = 1.0
    reserve_share: Share = 0.0
    rest_w: Amount = 0.0
    memory_bytes: ByteCount | None = None


def read_fleet(path: str | Path) -> tuple[FleetDevice, ...]:
    """Read the devices of a file; paths in it are relative to its folder.

    Raises:
        FileError: The file cannot be read, is not TOML, or has an invalid value.
    """
    data = read_toml(Path(path))
    try:
        refuse_unknown("the file", data, ("device",))
        tables = list_tables(data, "device")
        return tuple(_parse_device(where, row, Path(path).parent) for where, row in tables)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


OpenDevice = Callable[[FleetDevice], RemoteMeasurer]


@dataclass(frozen=True)
class DeviceCheck:
    """What a device answered: ``ready``, ``away`` (try again later) or ``refused`` (correct it)."""

    device: FleetDevice
    state: str
    reason: str = ""
    profile_key: str = ""
    description: str = ""

    @property
    def is_ready(self) -> bool:
        return self.state == READY


def open_device(device: FleetDevice, limits: LinkLimits | None = None) -> RemoteMeasurer:
    """Return the measurer of a device; use it in a ``with`` statement.

    Raises:
        DeviceAwayError: Its agent does not answer.
        InputError: The token is wrong or missing, or the device is not what its file says.
    """
    token = read_token(device.token_file)
    measurer = open_remote_measurer(device.address, token, limits=limits)
    found = {
        "runtime": measurer.runtime.name,
        "meter": measurer.meter.name,
        "power_mode": measurer.runtime.device.power_mode,
    }
    for key, value in found.items():
        wanted = getattr(device, key)
        # A framework may be given without its version.
        framework = f"{PROFILE_NAMES.get(wanted, wanted)}-"
        is_framework = key == "runtime" and value.startswith(framework)
        if wanted and value != wanted and not is_framework:
            measurer.connection.close()
            raise InputError(
                f"the agent of {device.name} has {key} {value or 'unknown'!r}, not {wanted!r} as "
                "the fleet file says: start it with another one, or correct the file"
            )
    return measurer


def _check_device(device: FleetDevice) -> DeviceCheck:
    try:
        with open_device(device, CHECK_LIMITS) as measurer:
            runtime, meter = measurer.runtime, measurer.meter
            parts = (runtime.device.name, runtime.device.power_mode, runtime.name, meter.name)
            description = ", ".join(filter(None, parts))
            return DeviceCheck(device, READY, "", find_profile_key(measurer), description)
    except DeviceAwayError as error:
        return DeviceCheck(device, AWAY, str(error))
    except JoulecastError as error:
        return DeviceCheck(device, REFUSED, str(error))


def check_devices(devices: Sequence[FleetDevice]) -> tuple[DeviceCheck, ...]:
    """Ask many devices at once what they are; return the answers by name."""
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(devices))) as pool:
        return tuple(pool.map(_check_device, sorted(devices, key=lambda one: one.name)))


def _parse_device(where: str, row: Json, folder: Path) -> FleetDevice:
    values = parse_table(where, row, _PARSERS)
    if "address" not in values:
        raise InputError(f"{where}: address is missing: give that of its agent, {_EXAMPLES}")
    if "battery_wh" not in values:
        for key in ("charge", "reserve", "rest_w"):
            if key in values:
                raise InputError(f"{where}: {key} needs battery_wh: give the battery's capacity")
    if "token_file" in values:
        # Absolute, since workers have another current folder. A fleet file from somebody else must
        # not send any file of the user to any address.
        file = (folder / values["token_file"]).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise InputError(
                f"{where}: token_file is {show_value(values['token_file'])}, which is not in the "
                "folder of this file: move it there, or name it in JOULECAST_TOKEN_FILE"
            )
        values["token_file"] = str(file)
    if "battery_wh" in values:
        values["battery_j"] = values.pop("battery_wh") * JOULES_PER_WH
    return FleetDevice(**{_FIELDS.get(key, key): value for key, value in values.items()})


def _parse_name(value: Any) -> str:
    name = parse_text(value)
    if not name.isprintable() or "," in name or len(name) > _LONGEST_NAME:
        raise InputError(f"give up to {_LONGEST_NAME} characters without commas")
    return name


def _parse_address(value: Any) -> str:
    address = parse_text(value)
    parse_address(address)
    return address


def _parse_capacity(value: Any) -> float:
    capacity_wh = parse_number(value)
    if not capacity_wh:
        raise InputError("give watt-hours above 0, or leave it out")
    return capacity_wh


_EXAMPLES = 'like "http://board:8377" or "ssh://user@board"'
_PARSERS: dict[str, Parser] = {
    "name": _parse_name,
    "address": _parse_address,
    **dict.fromkeys(("token_file", "runtime", "meter", "power_mode"), parse_text),
    "battery_wh": _parse_capacity,
    **dict.fromkeys(("charge", "reserve"), parse_share_value),
    "rest_w": parse_number,
    "memory": lambda value: int(parse_bytes(parse_text(value))),
}
_FIELDS = {"charge": "charge_share", "reserve": "reserve_share", "memory": "memory_bytes"}
