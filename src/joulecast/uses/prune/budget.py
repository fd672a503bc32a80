"""What a pruned net may spend: a share of what it was, or joules of a step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.units import format_energy, format_share, parse_energy

_SHARE = re.compile(r"([0-9]*\.?[0-9]+)\s*%")


@dataclass(frozen=True)
class Budget:
    """A share of what a step took before, or joules of a step; one of both.

    Attributes:
        text: As it was asked for.
    """

    share: float | None = None
    step_j: float | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.share is not None:
            return f"{format_share(self.share)} of what it was"
        return f"{format_energy(self.step_j or 0.0)} a step"

    def limit(self, before: float) -> float:
        """The most that a step may take where it took so much before."""
        return self.share * before if self.share is not None else self.step_j or 0.0


def parse_budget(text: str, steps: int | None = None) -> Budget:
    """``50%`` of what it was; ``5J`` a step; ``2Wh`` a run of so many steps.

    Raises:
        InputError: It is none of these, or no more than nothing.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is not None:
        share = float(match.group(1)) / 100
        if not 0 < share < 1:
            raise InputError(f"a budget of {text}: give a share above 0 % and below 100 %")
        return Budget(share=share, text=text)
    try:
        energy_j = parse_energy(text)
    except InputError as error:
        raise InputError(
            f"{text!r} is no budget: give a share like 50%, or joules of a step like 5J; with "
            "--steps of the whole run, like 2Wh"
        ) from error
    if energy_j <= 0:
        raise InputError(f"a budget of {text}: give more than nothing")
    return Budget(step_j=energy_j / (steps or 1), text=text)
