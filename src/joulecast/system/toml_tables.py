"""Parse tables of TOML files that users write; every error is one line that names table and key.

[[device]]          where = "[[device]] phone"
name = "phone"
battery_wh = 15     each key has a parser: a function that raises InputError with what to give
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from joulecast.system.errors import InputError
from joulecast.system.files import show_value
from joulecast.system.units import parse_share

Json = dict[str, Any]
Parser = Callable[[Any], Any]
# Power, capacity and FLOP/s of the largest computers are smaller.
_MOST = 1e21


def list_tables(data: Mapping[str, Any], kind: str) -> list[tuple[str, Json]]:
    """Return what messages call each ``[[kind]]``, and its table; every one has its own name.

    Raises:
        InputError: There is none, one has no name, or two have the same.
    """
    rows = data.get(kind, [])
    if not isinstance(rows, list) or not rows:
        raise InputError(f"[[{kind}]] is missing: give at least one, with a name")
    named, names = [], set()
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(
                f"[[{kind}]] number {number} is {show_value(row)}: give a table with a name"
            )
        name = row.get("name")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"[[{kind}]] number {number} has no name: give one in quotes")
        if name in names:
            raise InputError(f"two [[{kind}]] are called {name!r}: give each its own name")
        names.add(name)
        named.append((f"[[{kind}]] {name}", row))
    return named


def parse_table(where: str, row: Mapping[str, Any], parsers: Mapping[str, Parser]) -> Json:
    """Return the values of a table by key, which ``where`` names in messages."""
    refuse_unknown(where, row, parsers)
    values = {}
    for key, value in row.items():
        try:
            values[key] = parsers[key](value)
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{where}: {key} is {show_value(value)}: {error}") from error
    return values


def refuse_unknown(where: str, row: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise InputError for a key that a table does not have."""
    for key in row:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}: known keys are {', '.join(known)}")


def parse_text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InputError("give a text in quotes")
    return value


def parse_number(value: Any) -> float:
    """Return a number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise InputError(f"give a number from 0 to {_MOST:g}, without a unit")
    return float(value)


def parse_share_value(value: Any) -> float:
    """Return the share that a number or a text like ``60%`` stands for."""
    if not isinstance(value, (str, int, float)):
        raise InputError("give a share like 60%")
    return parse_share(str(value))
