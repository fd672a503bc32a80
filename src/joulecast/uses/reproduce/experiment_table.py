"""List the experiments, one row each, in the order in which they are measured.

What is most particular to the paper comes first, because time may end before all is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from joulecast.errors import InputError
from joulecast.uses.reproduce.channel_costs import CHANNEL_COSTS
from joulecast.uses.reproduce.depth_errors import DEPTH_ERRORS
from joulecast.uses.reproduce.experiment import Experiment
from joulecast.uses.reproduce.family_errors import FAMILY_ERRORS
from joulecast.uses.reproduce.guided_points import GUIDED_POINTS
from joulecast.uses.reproduce.layer_surfaces import LAYER_SURFACES
from joulecast.uses.reproduce.profiling_times import PROFILING_TIMES
from joulecast.uses.reproduce.pruned_networks import PRUNED_NETWORKS
from joulecast.uses.reproduce.random_networks import RANDOM_NETWORKS
from joulecast.uses.reproduce.stacked_layers import STACKED_LAYERS
from joulecast.uses.reproduce.surface_errors import SURFACE_ERRORS
from joulecast.uses.reproduce.time_and_energy import TIME_AND_ENERGY
from joulecast.uses.reproduce.transformer_errors import TRANSFORMER_ERRORS

ALL = "all"
"""Stands for all experiments."""

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        STACKED_LAYERS,
        GUIDED_POINTS,
        CHANNEL_COSTS,
        TIME_AND_ENERGY,
        RANDOM_NETWORKS,
        LAYER_SURFACES,
        SURFACE_ERRORS,
        DEPTH_ERRORS,
        FAMILY_ERRORS,
        TRANSFORMER_ERRORS,
        PROFILING_TIMES,
        PRUNED_NETWORKS,
    )
}
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
