"""List the experiments, one row each, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from joulecast.errors import InputError
from joulecast.uses.reproduce.experiment import Experiment
from joulecast.uses.reproduce.time_and_energy import TIME_AND_ENERGY

ALL = "all"
"""Stands for all experiments."""

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (TIME_AND_ENERGY,)}
"""Every experiment by its name."""


def find_experiments(names: Sequence[str]) -> tuple[Experiment, ...]:
    """Return experiments by their names, each once; ``all`` stands for all of them.

    Raises:
        InputError: There is no such experiment.
    """
    known = ", ".join(EXPERIMENTS)
    if not names:
        raise InputError(f"name at least one experiment, or all: {known}")
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            close = get_close_matches(name.lower().replace(" ", ""), [*EXPERIMENTS, ALL], n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {known}, all"
            raise InputError(f"there is no experiment {name!r}; {hint}")
    return tuple(one for name, one in EXPERIMENTS.items() if name in names or ALL in names)
