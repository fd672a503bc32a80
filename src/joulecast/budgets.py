"""What may be spent, and how long a run is: one grammar for every command that has a budget.

50%                 a share of what the original takes
5J/step, 2Wh/run    joules of a step, or of a whole run
5J                  of the run where it has a length, else of a step
2Wh, 3kJ            of the run; without a length nobody can know what is meant: refused
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.errors import InputError
from joulecast.units import count_steps, format_energy, format_share, parse_energy, parse_share

Json = dict[str, Any]
_PER = ("step", "run")
_EXAMPLES = "give a share like 50%, or energy like 5J/step or 0.5Wh/run"
# Watt-hours and thousands of joules are what whole runs take.
_OF_A_RUN = re.compile(r"([kKMGT][jJ]|[wW][hH])$")


@dataclass(frozen=True)
class RunLength:
    """How long a run is: so many steps, or passes over samples, which take fewer larger steps.

    Without either nobody said it, and joules are those of a step.
    """

    steps: int | None = None
    epochs: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) != (self.samples is None):
            raise InputError("epochs and samples belong together: give both, or steps")
        if self.steps is not None and self.epochs is not None:
            raise InputError("a run has one length: give steps, or epochs and samples")
        if any(count is not None and count < 1 for count in self.__dict__.values()):
            raise InputError("a run has at least one step, epoch and sample: give 1 or more")

    def count_steps(self, batch: int) -> int:
        """Steps of a run at a batch; 1 where nobody said how long it is."""
        if self.epochs is None or self.samples is None:
            return self.steps or 1
        return count_steps(self.epochs, self.samples, batch)

    @property
    def is_run(self) -> bool:
        """Whether somebody said how long a run is."""
        return self.steps is not None or self.epochs is not None

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class EnergyBudget:
    """What a net may cost.

    Attributes:
        limit_j: Joules of a step or of a whole run; None where it is a share.
        share: Of what the original takes.
        per: ``step`` or ``run``: what the joules are of.
        text: As it was asked for.
    """

    limit_j: float | None = None
    share: float | None = None
    per: str = "step"
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (self.limit_j is None) == (self.share is None):
            raise InputError(f"a budget is joules or a share: {_EXAMPLES}")
        amount = self.limit_j if self.share is None else self.share
        if not amount or amount < 0 or not math.isfinite(amount):
            raise InputError(f"a budget of {self.text or amount}: give more than nothing, like 50%")
        if self.per not in _PER:
            raise InputError(f"a budget per {self.per!r}: give one per step or per run")

    def __str__(self) -> str:
        if self.share is not None:
            return f"{format_share(self.share)} of the original"
        return f"{format_energy(self.limit_j or 0.0)} a {self.per}"

    def limit(self, original: float) -> float:
        """The most that is allowed where the original takes so much, of a step or of a run."""
        return self.share * original if self.share is not None else self.limit_j or 0.0

    def to_step(self, steps: int) -> EnergyBudget:
        """The same budget as one of a step, where a run has so many of them."""
        if self.per == "step" or self.limit_j is None:
            return replace(self, per="step")
        return replace(self, limit_j=self.limit_j / steps, per="step")

    def to_dict(self) -> Json:
        return {"limit_j": self.limit_j, "share": self.share, "per": self.per}


def parse_budget(text: str, length: RunLength | None = None) -> EnergyBudget:
    """A budget as people type it; see the module.

    Args:
        text: A share of the original, or joules or watt-hours.
        length: How long a run is.

    Raises:
        InputError: It is none of these, no more than nothing, or of a run of unknown length.
    """
    words, is_run = text.strip(), length is not None and length.is_run
    usual = "run" if is_run else "step"
    try:
        if words.endswith("%"):
            return EnergyBudget(share=parse_share(words, math.inf), per=usual, text=words)
        amount, slash, per = (word.strip() for word in words.partition("/"))
        energy_j = parse_energy(amount)
    except InputError as error:
        raise InputError(f"{text!r} is no budget ({error}): {_EXAMPLES}") from error
    if slash and per not in _PER:
        raise InputError(f"{text!r} is no budget: {_EXAMPLES}")
    if not is_run and (per == "run" or (not per and _OF_A_RUN.search(amount))):
        raise InputError(
            f"{text!r} is for a run of unknown length: give --steps, or --epochs and --samples; of "
            f"a step it is {amount}/step"
        )
    return EnergyBudget(energy_j, per=per or usual, text=words)
