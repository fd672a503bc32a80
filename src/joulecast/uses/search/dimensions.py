"""Dimensions of a search space: numeric ranges and choices, and how they are written as text.

c1=8..64      c1=8..64/8      lr=1e-4..1e-1/log      batch=16,32,64      optimizer=sgd
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Annotated

from joulecast.errors import InputError
from joulecast.records.codec import Json, PositiveCount, Range, Record, add_codec, check_fields

Value = int | float | str
_Bound = Annotated[float, Range(-1e15, 1e15)]
_EXAMPLES = "c1=8..64, c1=8..64/8, batch=16,32,64 or lr=1e-4..1e-1/log"


@dataclass(frozen=True)
class NumberRange(Record):
    """Numbers from ``low`` to ``high``.

    Attributes:
        step: Distance between integers; ignored if the range is not of integers.
        log: Whether values are drawn uniformly in the logarithm.
    """

    low: _Bound
    high: _Bound
    step: PositiveCount = 1
    log: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        is_bad_log = self.log and (self.low <= 0 or self.step != 1)
        if self.low > self.high or is_bad_log:
            raise InputError(
                f"{self.low}..{self.high} in steps of {self.step} is not a range: give the lower "
                "bound first; with /log, bounds above 0 and no step"
            )

    @property
    def is_integer(self) -> bool:
        """Whether the range consists of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def bounds(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value."""
        if not self.is_integer:
            return self.low, self.high
        return self.low, int(self.low + (self.high - self.low) // self.step * self.step)

    def draw(self, rng: random.Random) -> int | float:
        """Return a random value."""
        low, high = self.bounds
        if self.log:
            drawn = float(low * (high / low) ** rng.random())
            return round(drawn) if self.is_integer else drawn
        if self.is_integer:
            return int(low + self.step * rng.randint(0, int(high - low) // self.step))
        return rng.uniform(low, high)

    def shrink(self, value: float, share: float) -> int:
        """Return the integer at ``share`` of the distance from the lower bound to ``value``."""
        return int(self.low + self.step * round((value - self.low) * share / self.step))


@dataclass(frozen=True)
class Choice(Record):
    """One of several values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError(f"a choice has no values: give some, like {_EXAMPLES}")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            shown = ", ".join(map(str, self.values))
            raise InputError(f"a choice is {shown}: give finite values, like {_EXAMPLES}")

    def draw(self, rng: random.Random) -> Value:
        """Return a random value."""
        return rng.choice(self.values)


Dimension = NumberRange | Choice


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """Return the name and dimension of a text like ``c1=8..64/8`` or ``precision=fp32,bf16``."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not (name and equals and values):
        raise InputError(f"{text!r} is not a dimension: give one like {_EXAMPLES}")
    if ".." not in values:
        return name, Choice(tuple(_parse_value(one) for one in values.split(",") if one.strip()))
    bounds, _, spacing = values.partition("/")
    low, high = (_parse_value(one) for one in bounds.partition("..")[::2])
    is_spacing = spacing in ("", "log") or spacing.isdecimal()
    if isinstance(low, str) or isinstance(high, str) or not is_spacing:
        raise InputError(f"{text!r} is not a range: give one like {_EXAMPLES}")
    return name, NumberRange(
        low, high, int(spacing) if spacing.isdecimal() else 1, spacing == "log"
    )


def list_bounds(dimension: Dimension) -> tuple[Value, ...]:
    """Return the bounds of a range, or all values of a choice."""
    return dimension.bounds if isinstance(dimension, NumberRange) else dimension.values


def _parse_value(text: str) -> Value:
    for parse in (int, float):
        try:
            return parse(text.strip())
        except ValueError:
            continue
    return text.strip()


def _encode(dimension: Dimension) -> Json:
    return dimension.to_dict()


def _decode(data: Json) -> Dimension:
    return Choice.from_dict(data) if "values" in data else NumberRange.from_dict(data)


add_codec(Dimension, _encode, _decode)
