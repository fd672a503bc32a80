"""Check single values of records against the types and limits that their annotations declare.

    batch: Annotated[int, Range(1, 10**9)]
    phase: Annotated[str, Choices(("train", "inference"))]
    reads: Annotated[tuple[int, ...], MaxLength(1000)]

``codec.py`` compiles the checks of a class and applies them to everything that it decodes, so that
these annotations are the only place that says which values a field may have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from joulecast.errors import InputError
from joulecast.input_files import show_value

Check = Callable[[Any], Any]

# A list that declares no limit of its own.
_MOST_ITEMS = 1_000_000


@dataclass(frozen=True)
class Range:
    """The numbers that a field allows; both ends belong to it.

    Attributes:
        tiny: Numbers closer to 0 are refused, except 0 itself: their inverse is infinite.
    """

    least: float
    most: float
    tiny: float = 0.0


@dataclass(frozen=True)
class Choices:
    """The texts that a field allows."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class MaxLength:
    """The largest number of items that a list may have."""

    most: int


_ANY_NUMBER = Range(-math.inf, math.inf)
# A larger integer fits no database and no array.
_ANY_INTEGER = Range(-(2**63), 2**63 - 1)

Amount = Annotated[float, Range(0.0, 1e15, tiny=1e-60)]
"""A quantity that is never negative, such as joules or seconds."""
Share = Annotated[float, Range(0.0, 1.0)]
"""A share of a whole."""
Count = Annotated[int, Range(0, 10**9)]
"""A number of things, perhaps none."""
PositiveCount = Annotated[int, Range(1, 10**9)]
"""A number of things, at least one."""
ByteCount = Annotated[int, Range(0, 2**63 - 1)]
"""A size in memory."""
UnixTime = Annotated[float, Range(0.0, 253_402_300_799.0)]
"""Seconds since 1970, up to the year 9999, the last that a calendar can show."""


class InvalidFieldError(InputError):
    """A value that its field does not allow, with the path to the field."""

    def __init__(self, reason: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path]
        return f"{''.join(steps).lstrip('.')} {self.reason}".strip()

    def within(self, step: str | int) -> InvalidFieldError:
        """Return the error as seen from the record or list that contains the value."""
        return InvalidFieldError(self.reason, (step, *self.path))


def refuse_value(value: Any, advice: str) -> InvalidFieldError:
    """Return the error for a value, with what to give instead."""
    return InvalidFieldError(f"is {show_value(value)}: {advice}")


def check_integers(limits: Range = _ANY_INTEGER) -> Check:
    """Return the check of an integer."""
    least, most = limits.least, limits.most

    def check(value: Any) -> Any:
        if type(value) is int and least <= value <= most:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            at_least = "" if limits == _ANY_INTEGER else f" of at least {least}"
            raise refuse_value(value, f"give a whole number{at_least}")
        if value > most:
            raise refuse_value(value, f"give at most {most:,}")
        return value

    return check


def check_numbers(limits: Range = _ANY_NUMBER) -> Check:
    """Return the check of a float; integers are numbers too."""
    least, most, tiny = limits.least, limits.most, limits.tiny

    def check(value: Any) -> Any:
        if type(value) is float and least <= value <= most and tiny <= abs(value) < math.inf:
            return value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise refuse_value(value, "give a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse_value(value, "give a finite number")
        if not least <= value <= most:
            side = f"least {least:g}" if value < least else f"most {most:g}"
            raise refuse_value(value, f"give a number of at {side}")
        if 0 < abs(value) < tiny:
            raise refuse_value(value, f"give 0, or a number of at least {tiny:g}")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise refuse_value(value, "give a number that fits a float")
        return value

    return check


def check_texts(choices: Choices | None = None) -> Check:
    """Return the check of a text."""
    allowed = None if choices is None else frozenset(choices.values)

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise refuse_value(value, "give a text")
        if allowed is not None and value not in allowed:
            raise refuse_value(value, f"choose one of {', '.join(choices.values)}")  # type: ignore[union-attr]
        if not value.isascii():
            _check_unicode(value)
        return value

    return check


def check_flag(value: Any) -> Any:
    """Return a truth value, or raise an error for any other value."""
    if value is True or value is False:
        return value
    raise refuse_value(value, "give true or false")


def check_list(value: Any, limit: MaxLength | None = None) -> Any:
    """Return a list or a tuple, or raise an error for any other value and for one too long."""
    if not isinstance(value, (list, tuple)):
        raise refuse_value(value, "give a list")
    most = _MOST_ITEMS if limit is None else limit.most
    if len(value) > most:
        raise InvalidFieldError(f"has {len(value):,} items: give at most {most:,}")
    return value


def check_object(value: Any) -> Any:
    """Return a JSON object, or raise an error for any other value and for odd names in it."""
    if not isinstance(value, dict):
        raise refuse_value(value, "give an object")
    for name in value:
        _check_name(name)
    return value


def _check_unicode(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # Half of a surrogate pair can be neither stored nor printed.
        raise refuse_value(value, "give text that is valid Unicode") from error


_check_name = check_texts()
