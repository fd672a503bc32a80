"""Quantify how uncertain an estimate is about work that its layers do not count.

    u    share of a step's work that belongs to no layer, or that no cost rule counts
    E    energy of the step, whose relative variance grows by u²

Observations of such networks get the same variance when an estimator learns from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.records import Network, Observation, Setup, summarise_observations

NO_COST_RULE = "operators without a cost rule"
"""Name of the uncertainty source that operators of unknown cost bring."""

NO_LAYER = "work in no layer"
"""Name of the uncertainty source that work outside all layers brings."""

MIN_UNCOUNTED_SHARE = 0.005
"""Share below which uncounted work is lost among the errors of sums over layers, 1.3 %."""


def find_uncounted_share(network: Network) -> tuple[str, float]:
    """Return the largest share of a step that no layer counts, and the name of its source.

    A network that was not read from a module has none.
    """
    totals = network.totals
    if totals is None:
        return NO_LAYER, 0.0
    in_no_layer = max(totals.unattributed_flops_share, totals.unattributed_bytes_share)
    if totals.uncounted_bytes_share >= in_no_layer:
        return NO_COST_RULE, totals.uncounted_bytes_share
    return NO_LAYER, in_no_layer


def is_step_measured(network: Network, setup: Setup, observations: Sequence[Observation]) -> bool:
    """Return whether the energy of the whole step was measured, whatever its layers count.

    The loss does not matter: a user's own module may have its own.
    """

    def is_setup(other: Setup) -> bool:
        return replace(other, loss=setup.loss) == setup

    # Observations are parsed only if some of them have this setup.
    if not any(is_setup(one) for one, _ in summarise_observations(observations).setups):
        return False
    return any(
        one.energy_j
        and one.trial.execution.is_user_step
        and is_setup(one.trial.setup)
        and one.trial.network == network
        for one in observations
    )
