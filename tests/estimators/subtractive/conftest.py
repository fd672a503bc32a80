"""Fixtures for the subtractive estimator: a device whose costs add up exactly."""

import pytest

from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.testing.estimators import FAMILY, SETUP, run_short_campaign
from joulecast.variants import block_widths, split_network


class AdditiveDevice:
    """A device whose costs add up; its time is a tenth of its energy."""

    def true_cost(self, trial):
        energy_j = self.energy_j(trial.network)
        return type("Cost", (), {"energy_j": energy_j, "duration_s": energy_j / 10})

    def energy_j(self, network):
        """Return one joule per block, and a little for every width."""
        return sum(
            placed.calls * (1.0 + 0.02 * sum(block_widths(placed.block)))
            for placed in split_network(network)
        )


@pytest.fixture(scope="session")
def additive_device():
    return AdditiveDevice()


@pytest.fixture(scope="session")
def additive(additive_device):
    """Return the observations of a campaign on the additive device."""
    target = Target(make_family(FAMILY), SETUP)
    return run_short_campaign(SubtractiveEstimator(), target, 45, additive_device)
