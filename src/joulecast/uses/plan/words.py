"""Words of a plan's file: each reader takes a TOML value and gives what it means, or complains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from joulecast.errors import InputError
from joulecast.units import parse_bytes, parse_duration, parse_shape, parse_share

Json = dict[str, Any]
Reader = Callable[[Any], Any]
_MOST_STEPS = 10**12


def read_words(where: str, row: Json, readers: Mapping[str, Reader]) -> Json:
    """What a table holds, each key by its reader."""
    refuse_strange(where, row, readers)
    found = {}
    for key, value in row.items():
        try:
            found[key] = readers[key](value)
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{where}: {key} is {value!r}: {error}") from error
    return found


def refuse_strange(where: str, row: Mapping[str, Any], known: Iterable[str]) -> None:
    """Complain of a key that means nothing."""
    for key in row:
        if key not in known:
            raise InputError(f"{where}: there is no key {key!r}: known are {', '.join(known)}")


def make_moment_reader(now: datetime) -> Reader:
    """Seconds from now of a duration or a time.

    A time without a zone is in that of ``now``; where now has none either, both are times of this
    machine's clock, which may change between them.
    """
    begun = now.astimezone() if now.tzinfo is None else now

    def read(value: Any) -> float:
        if isinstance(value, datetime):
            moment = value
        elif not isinstance(value, str):
            raise InputError("give a duration like 2h in quotes, or a time like 2030-05-01T22:00")
        else:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                return parse_duration(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=now.tzinfo) if now.tzinfo else moment.astimezone()
        return (moment - begun).total_seconds()

    return read


def read_text(value: Any) -> str:
    """Words."""
    if not isinstance(value, str) or not value.strip():
        raise InputError("give words in quotes")
    return value


def read_texts(value: Any) -> tuple[str, ...]:
    """Several words."""
    if not isinstance(value, list) or not value:
        raise InputError('give a list like ["phone", "laptop"]')
    return tuple(map(read_text, value))


def read_tables(value: Any) -> list[Any]:
    """Several tables."""
    if not isinstance(value, list):
        raise InputError("give [[device.charging]] tables with from and to")
    return value


def read_count(value: Any) -> int:
    """A whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_STEPS:
        raise InputError("give a whole number of at least 1")
    return value


def read_number(value: Any) -> float:
    """A number from 0 on: watts, watt-hours, FLOPs a second."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError("give a number of at least 0, without a unit")
    return float(value)


def read_flag(value: Any) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise InputError("give true or false")
    return value


def read_share(value: Any) -> float:
    """``60%`` or ``0.6``."""
    return parse_share(value if isinstance(value, str) else f"{value}")


def read_bytes(value: Any) -> float:
    """``8GiB``."""
    return parse_bytes(read_text(value))


def read_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of ``3x96x96`` or ``[3, 96, 96]``."""
    if isinstance(value, list):
        return parse_shape("x".join(map(str, value)))
    if not isinstance(value, str):
        raise InputError("give the sizes of one sample, like 3x96x96")
    return parse_shape(value)
