"""Parse the energy budget of a pruned network's training step."""

from __future__ import annotations

from joulecast.budgets import EnergyBudget, RunLength, parse_budget
from joulecast.errors import InputError


def parse_pruning_budget(
    text: str, length: RunLength | None = None, batch: int = 1
) -> EnergyBudget:
    """Return a budget for one training step.

    Args:
        text: ``50%`` of the original network, ``5J/step``, or energy of a run like ``2Wh``.
        length: Length of the run that ``text`` may be about.
        batch: Batch size, which sets the number of steps in an epoch.

    Raises:
        InputError: ``text`` is not a budget, or leaves nothing to prune.
    """
    length = length or RunLength()
    budget = parse_budget(text, length)
    if budget.share is not None and budget.share >= 1:
        raise InputError(f"a budget of {text} leaves nothing to prune: give less than 100 %")
    return budget.to_step(length.count_steps(batch))
