"""Read what users know about devices: TDP, price and performance, in TOML or CSV.

[[device]]                      name,tdp,price,performance
name = "nvidia-h200"            nvidia-h200,700W,30000EUR,
tdp = "700W"
price = "30000EUR"
performance = 120               inferences per second; by default what was observed
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import FileError, InputError
from joulecast.input_files import read_toml
from joulecast.toml_tables import Json, list_tables, parse_table, refuse_unknown
from joulecast.traces.power_trace import read_csv
from joulecast.units import parse_money, parse_power
from joulecast.uses.score.device_score import DeviceFacts

_KEYS = ("name", "tdp", "price", "performance")


def read_device_file(path: str | Path) -> dict[str, DeviceFacts]:
    """Return what a file says about devices, by their names.

    Raises:
        FileError: The file cannot be read, or a value cannot be used.
    """
    path = Path(path)
    try:
        rows = _read_csv_rows(path) if path.suffix.lower() == ".csv" else _read_toml_rows(path)
        return {values["name"]: parse_facts(where, values) for where, values in rows}
    except FileError:
        raise
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def parse_facts(where: str, texts: Mapping[str, Any]) -> DeviceFacts:
    """Return the facts that texts state.

    Args:
        where: What messages call the texts.
        texts: ``tdp``, ``price`` and ``performance``; those that are missing are not known.
    """
    values = parse_table(where, texts, _PARSERS)
    price, currency = values.get("price", (None, ""))
    return DeviceFacts(
        values.get("tdp"),
        price=price,
        currency=currency,
        inferences_per_s=values.get("performance"),
    )


def _read_toml_rows(path: Path) -> list[tuple[str, Json]]:
    data = read_toml(path)
    refuse_unknown("the file", data, ("device",))
    return list_tables(data, "device")


def _read_csv_rows(path: Path) -> list[tuple[str, Json]]:
    table = read_csv(path)
    refuse_unknown("the header", dict.fromkeys(table.columns), _KEYS)
    if "name" not in table.columns:
        raise FileError(f"{path} has no column name: give the names of devices there")
    rows: list[tuple[str, Json]] = []
    names = set()
    for line, cells in table.read_rows():
        values = {key: cell.strip() for key, cell in zip(table.columns, cells, strict=False)}
        known = {key: cell for key, cell in values.items() if cell}
        if "name" not in known:
            raise FileError(f"{path}: line {line} has no name: give that of a device")
        if known["name"] in names:
            raise FileError(f"{path}: line {line}: {known['name']!r} is there twice: keep one")
        names.add(known["name"])
        rows.append((f"line {line}", known))
    if not rows:
        raise FileError(f"{path} has no devices: give one in each line")
    return rows


def _parse_text(value: Any) -> str:
    return str(value)


def _parse_tdp(value: Any) -> float:
    tdp_w = parse_power(str(value))
    if not tdp_w > 0:
        raise InputError("give more than 0 W, like 15W")
    return tdp_w


def _parse_performance(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0.0 < number < 1e15:
        raise InputError("give inferences per second, like 120")
    return number


_PARSERS = {
    "name": _parse_text,
    "tdp": _parse_tdp,
    "price": lambda value: parse_money(str(value)),
    "performance": _parse_performance,
}
