"""What one thing may be: a range of numbers, or one of some values; and how people type it.

c1=8..64      c1=8..64/8      lr=1e-4..1e-1/log      batch=16,32,64      optimizer=sgd
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError

Json = dict[str, Any]
Value = int | float | str
_EXAMPLES = "c1=8..64, c1=8..64/8, batch=16,32,64 or lr=1e-4..1e-1/log"


@dataclass(frozen=True)
class NumberRange:
    """Numbers from ``low`` to ``high``: whole ones by ``step``, else any, evenly or by decades."""

    low: int | float
    high: int | float
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        bad_log = self.log and (self.low <= 0 or self.step != 1)
        infinite = not (math.isfinite(self.low) and math.isfinite(self.high))
        if infinite or self.low > self.high or self.step < 1 or bad_log:
            raise InputError(
                f"{self.low}..{self.high} in steps of {self.step} is no range: give two finite "
                "ends, the high one not below the low one, and a step of at least 1; above 0 for "
                "/log"
            )

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value."""
        if not self.whole:
            return self.low, self.high
        return self.low, int(self.low + (self.high - self.low) // self.step * self.step)

    def draw(self, rng: random.Random) -> int | float:
        """A value, each as probable as the others."""
        low, high = self.ends
        if self.log:
            drawn = float(low * (high / low) ** rng.random())
            return round(drawn) if self.whole else drawn
        if self.whole:
            return int(low + self.step * rng.randint(0, int(high - low) // self.step))
        return rng.uniform(low, high)

    def shrink(self, value: float, share: float) -> int:
        """A whole value so far from the low end as a share says."""
        return int(self.low + self.step * round((value - self.low) * share / self.step))

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError(f"a choice of nothing: give values, like {_EXAMPLES}")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            said = ", ".join(map(str, self.values))
            raise InputError(f"a choice of {said}: give finite values, like {_EXAMPLES}")

    def draw(self, rng: random.Random) -> Value:
        """A value, each as probable as the others."""
        return rng.choice(self.values)

    def to_dict(self) -> Json:
        return {"values": list(self.values)}


Dimension = NumberRange | Choice


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """``c1=8..64/8`` or ``precision=fp32,bf16`` → a name and what it may be."""
    name, equals, words = (word.strip() for word in text.partition("="))
    if not (name and equals and words):
        raise InputError(f"{text!r} says not what may vary: give one like {_EXAMPLES}")
    if ".." not in words:
        values = tuple(_read_value(word) for word in words.split(",") if word.strip())
        return name, Choice(values)
    ends, _, by = words.partition("/")
    low, high = (_read_value(word) for word in ends.split("..", 1))
    if isinstance(low, str) or isinstance(high, str) or not (by in ("", "log") or by.isdigit()):
        raise InputError(f"{text!r} is no range: give one like {_EXAMPLES}")
    return name, NumberRange(low, high, int(by) if by.isdigit() else 1, by == "log")


def _read_value(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word.strip())
        except ValueError:
            continue
    return word.strip()


def list_ends(dimension: Dimension) -> tuple[Value, ...]:
    """The first and the last value, or all of a choice."""
    return dimension.ends if isinstance(dimension, NumberRange) else dimension.values
