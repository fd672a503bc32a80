"""An estimator without a thought of its own: it measures the networks of a request in their order.

What is left of a campaign is what the fleet does for every observation.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.estimators.base import Fitted, Proposal, Target
from joulecast.estimators.whole_networks import ConstantEstimator
from joulecast.records import Observation, Trial


class ListedEstimator(ConstantEstimator):
    """Proposes every network of the target once, and fits a constant."""

    name = "listed"

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the first network that was not measured yet."""
        # By name, which says it all of these networks: comparing layers would take longer.
        tried = {seen.trial.network.name for seen in observations}
        points = sum(network.name in tried for network in target.networks)
        for network in target.networks:
            if network.name not in tried:
                return Proposal(Trial(network, target.setup), 1.0, "the next network", points)
        return Proposal(None, 0.0, f"{points} networks were measured", points)
