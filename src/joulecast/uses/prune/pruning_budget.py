"""What a pruned net may spend: a share of what it was, or joules of a step.

The grammar is that of every budget (``joulecast.budgets``); a net is cut to what a step may take.
"""

from __future__ import annotations

from joulecast.budgets import EnergyBudget, RunLength
from joulecast.budgets import parse_budget as parse_any
from joulecast.errors import InputError

__all__ = ["EnergyBudget", "parse_budget"]


def parse_budget(text: str, steps: int | None = None) -> EnergyBudget:
    """``50%`` of what it was; ``5J`` or ``5J/step`` a step; ``2Wh`` a run of so many steps.

    Raises:
        InputError: It is none of these, no more than nothing, or leaves nothing to cut.
    """
    found = parse_any(text, RunLength(steps))
    if found.share is not None and found.share >= 1:
        raise InputError(f"a budget of {text}: give a share above 0 % and below 100 %")
    return found.to_step(steps or 1)
