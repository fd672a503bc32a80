"""Read the devices of a fleet from a TOML file; every error is one line that names table and key.

    [[device]]    name address token_file, runtime meter power_mode, battery_wh charge reserve
                  rest_w memory

The agent of a device has chosen runtime and meter already. If the file names them, a device that
answers with others is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.agent.addresses import parse_address
from joulecast.errors import FileError, InputError
from joulecast.input_files import read_toml, show_value
from joulecast.records.codec import Amount, ByteCount, Record, Share, not_stored
from joulecast.toml_tables import (
    Json,
    Parser,
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
    refuse_unknown,
)
from joulecast.units import JOULES_PER_WH, parse_bytes

_LONGEST_NAME = 60


@dataclass(frozen=True)
class FleetDevice(Record):
    """A device of a fleet, as its file describes it.

    Attributes:
        address: Address of its agent.
        token_file: File with the token of the agent; empty for that of the environment.
        runtime: Expected framework, perhaps with its version; empty for any. Likewise ``meter``
            and ``power_mode``.
        battery_j: Energy of the full battery; None for a device without one.
        charge_share: Share of it that is charged.
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
    """Read the devices of a file.

    Raises:
        FileError: The file cannot be read, is not TOML, or has an invalid value.
    """
    data = read_toml(Path(path))
    try:
        return parse_fleet(data, Path(path).parent)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def parse_fleet(data: Mapping[str, Any], folder: Path) -> tuple[FleetDevice, ...]:
    """Parse the devices of a file's content; paths are relative to ``folder``."""
    refuse_unknown("the file", data, ("device",))
    return tuple(_parse_device(where, row, folder) for where, row in list_tables(data, "device"))


def _parse_device(where: str, row: Json, folder: Path) -> FleetDevice:
    values = parse_table(where, row, _PARSERS)
    if "address" not in values:
        raise InputError(f"{where}: address is missing: give that of its agent, {_EXAMPLES}")
    if "battery_wh" not in values:
        for key in ("charge", "reserve", "rest_w"):
            if key in values:
                raise InputError(f"{where}: {key} needs battery_wh: give the battery's capacity")
    if "token_file" in values:
        values["token_file"] = _find_token_file(where, values["token_file"], folder)
    if "battery_wh" in values:
        values["battery_j"] = values.pop("battery_wh") * JOULES_PER_WH
    return FleetDevice(**{_FIELDS.get(key, key): value for key, value in values.items()})


def _find_token_file(where: str, name: str, folder: Path) -> str:
    """Return the path of a token, which workers with another current folder can read.

    A file of somebody else could otherwise send any file of the user to any address.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"{where}: token_file is {show_value(name)}, which is not in the folder of this file: "
            "move it there, or name it in JOULECAST_TOKEN_FILE"
        )
    return str(path)


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
