"""Parse energy budgets and lengths of training runs.

    50%                 a share of what the original network takes
    5J/step, 2Wh/run    energy of one step, or of the whole run
    5mJ/inference       energy of one inference, which is a step without training
    5J                  of the run if its length is given, else of one step
    2Wh, 3kJ            of the run; refused without a length

The length of a run is a number of steps, or of epochs over a number of samples.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from joulecast.records.codec import Record, not_stored
from joulecast.system.errors import ArgumentError, InputError, arg
from joulecast.system.units import format_energy, format_share, parse_energy, parse_share

MAX_COUNT = 10**12
"""The most steps, epochs or samples of a run: at a microsecond each, steps would take 12 days."""
_PERIODS = ("step", "run")
_SPELLINGS = {"inference": "step"}
_EXAMPLES = "give a share like 50%, or energy like 5J/step or 0.5Wh/run"
# A single step does not take watt-hours or kilojoules.
_RUN_UNITS = re.compile(r"([kKMGT][jJ]|[wW][hH])$")


@dataclass(frozen=True)
class RunLength(Record):
    """The length of a training run: steps, or epochs over a number of samples.

    Without either, energies and durations are those of one step.
    """

    steps: int | None = None
    epochs: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) != (self.samples is None):
            raise ArgumentError(
                f"{arg('epochs')} and {arg('samples')} belong together: give both, or "
                f"{arg('steps')}"
            )
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(
                f"a run has one length: give {arg('steps')}, or {arg('epochs')} and "
                f"{arg('samples')}"
            )
        for name in ("steps", "epochs", "samples"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= MAX_COUNT:
                raise ArgumentError(
                    f"{arg(name)} is {count}: give a whole number from 1 to {MAX_COUNT:,}"
                )

    def count_steps(self, batch: int) -> int:
        """Return the number of steps with so many samples; the last of an epoch may be smaller."""
        if self.epochs is None or self.samples is None:
            return self.steps or 1
        steps = self.epochs * math.ceil(self.samples / batch)
        if steps > MAX_COUNT:
            raise InputError(f"the run has {steps:,} steps: give at most {MAX_COUNT:,}")
        return steps

    @property
    def is_run(self) -> bool:
        """Whether a length was given."""
        return self.steps is not None or self.epochs is not None


@dataclass(frozen=True)
class EnergyBudget(Record):
    """The most energy that a network may take.

    Attributes:
        limit_j: Energy of a step or of a whole run; None if the budget is a share.
    """

    limit_j: float | None = None
    share: float | None = None  # share of the energy that the original network takes
    per: str = "step"  # step or run: the period that limit_j covers
    text: str = not_stored("", compare=False)  # the budget as the user wrote it

    def __post_init__(self) -> None:
        if (self.limit_j is None) == (self.share is None):
            raise InputError(f"a budget is either an energy or a share: {_EXAMPLES}")
        amount = self.limit_j if self.share is None else self.share
        if not amount or amount < 0 or not math.isfinite(amount):
            raise InputError(f"the budget is {self.text or amount}: give more than 0, like 50%")
        if self.per not in _PERIODS:
            raise InputError(f"the budget is per {self.per!r}: give one per step or per run")

    def __str__(self) -> str:
        return self.describe()

    def describe(self, step: str = "step") -> str:
        """Return it in words; ``step`` is what one step is called."""
        if self.share is not None:
            return f"{format_share(self.share)} of the original"
        return f"{format_energy(self.limit_j or 0.0)} per {step if self.per == 'step' else 'run'}"

    def limit(self, original_j: float) -> float:
        """Return the most energy allowed if the original network takes ``original_j``."""
        return self.share * original_j if self.share is not None else self.limit_j or 0.0

    def to_step(self, steps: int) -> EnergyBudget:
        """Return the same budget for one step of a run with ``steps`` steps."""
        if self.per == "step" or self.limit_j is None:
            return replace(self, per="step")
        return replace(self, limit_j=self.limit_j / steps, per="step")


def parse_budget(text: str, length: RunLength | None = None) -> EnergyBudget:
    """Return the budget of a text like ``50%``, ``5J/step`` or ``2Wh/run``."""
    if not isinstance(text, str):
        raise InputError(f"the budget is {text!r}: {_EXAMPLES}, as text")
    stripped, is_run = text.strip(), length is not None and length.is_run
    default_period = "run" if is_run else "step"
    try:
        if stripped.endswith("%"):
            share = parse_share(stripped, math.inf)
            return EnergyBudget(share=share, per=default_period, text=stripped)
        amount, slash, per = (part.strip() for part in stripped.partition("/"))
        per = _SPELLINGS.get(per, per)
        energy_j = parse_energy(amount)
    except InputError as error:
        raise InputError(f"{text!r} is not a budget ({error}): {_EXAMPLES}") from error
    if slash and per not in _PERIODS:
        raise InputError(f"{text!r} is not a budget: {_EXAMPLES}")
    if not is_run and (per == "run" or (not per and _RUN_UNITS.search(amount))):
        raise InputError(
            f"{text!r} is for a run of unknown length: give {arg('steps')}, or {arg('epochs')} and "
            f"{arg('samples')}; for one step write {amount}/step"
        )
    return EnergyBudget(energy_j, per=per or default_period, text=stripped)
