"""How many joules there are, of what, and how surely: ``0.5Wh``, ``5J/step``, ``50%``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.units import format_energy, format_share, parse_energy

Json = dict[str, Any]
_PER = ("step", "run")


@dataclass(frozen=True)
class Length:
    """How long a run is: so many steps, or passes over samples, which take fewer larger steps."""

    steps: int = 1
    epochs: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) != (self.samples is None):
            raise InputError("epochs and samples belong together: give both, or steps")
        if min(self.steps, self.epochs or 1, self.samples or 1) < 1:
            raise InputError("a run has at least one step, epoch and sample: give 1 or more")

    def count_steps(self, batch: int) -> int:
        """Steps of a run at a batch."""
        if self.epochs is None or self.samples is None:
            return self.steps
        return self.epochs * math.ceil(self.samples / batch)

    @property
    def is_run(self) -> bool:
        """Whether it is longer than a step."""
        return self.steps > 1 or self.epochs is not None

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Budget:
    """What a net may cost.

    Attributes:
        limit_j: Joules of a step or of a whole run; None where it is a share.
        share: Of what the family's original takes.
        per: ``step`` or ``run``: what the joules are of.
        confidence: How probable it has to be that the budget is kept; 0.5 is the estimate itself.
    """

    limit_j: float | None = None
    share: float | None = None
    per: str = "step"
    confidence: float = 0.5

    def __post_init__(self) -> None:
        if (self.limit_j is None) == (self.share is None):
            raise InputError("a budget is joules or a share: give one like 0.5Wh, 5J or 50%")
        amount = self.limit_j if self.share is None else self.share
        if not amount or amount < 0 or not math.isfinite(amount):
            raise InputError(f"a budget of {amount}: give more than nothing, like 0.5Wh or 50%")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}: give a probability, like 0.9")
        if self.per not in _PER:
            raise InputError(f"a budget per {self.per!r}: give one per step or per run")

    def __str__(self) -> str:
        if self.share is not None:
            return f"{format_share(self.share)} of the original"
        return f"{format_energy(self.limit_j or 0.0)} a {self.per}"

    def to_dict(self) -> Json:
        return dict(self.__dict__)


def parse_budget(text: str, length: Length, confidence: float = 0.5) -> Budget:
    """``0.5Wh`` of a run where it has a length, else of a step; ``/step`` and ``/run`` say which.

    Args:
        text: Joules or watt-hours, or a share of the original like ``50%``.
        length: How long a run is.
        confidence: How probable it has to be that the budget is kept.
    """
    words = text.strip()
    if words.endswith("%"):
        return Budget(share=_read_percent(words), per=_choose(length), confidence=confidence)
    amount, slash, per = (word.strip() for word in words.partition("/"))
    if slash and per not in _PER:
        raise InputError(f"{text!r} is no budget: give one like 5J/step, 0.5Wh/run or 50%")
    if per == "run" and not length.is_run:
        raise InputError(f"{text!r} is for a run of unknown length: give its steps, or epochs too")
    return Budget(parse_energy(amount), per=per or _choose(length), confidence=confidence)


def _choose(length: Length) -> str:
    return "run" if length.is_run else "step"


def _read_percent(text: str) -> float:
    try:
        return float(text.rstrip("% ")) / 100
    except ValueError:
        raise InputError(f"{text!r} is no share: give one like 50%") from None
