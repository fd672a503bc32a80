"""Costs of candidate networks, and the uncertainty of a cost relative to its budget.

    a, b    cost after and before pruning
    L       joint covariance of ln a and ln b

    budget in joules     ln a ~ N(ln â, L_aa)
    budget as a share    ln(a / b) ~ N(ln(â / b̂), L_aa + L_bb - 2 L_ab)

The estimator's errors for a network and for the same network with fewer channels are strongly
correlated, so the ratio is far more certain than either energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from joulecast.budgets import EnergyBudget
from joulecast.estimators import FittedProfile
from joulecast.kinds import network_work
from joulecast.records import Network, Setup

Floats = NDArray[np.float64]


class PruningObjective(Protocol):
    """A cost to minimise, in ``unit`` per training step."""

    unit: str

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return the cost of one step of each network."""

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return the standard deviation of the logarithm of the quantity the budget limits."""


class EnergyObjective:
    """Energy of a step as estimated from a profile."""

    unit = "J"

    def __init__(self, fitted_profile: FittedProfile, setup: Setup) -> None:
        self.fitted_profile = fitted_profile
        self.setup = setup

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return mean energies. No variances are computed, which is twice as fast."""
        return self.fitted_profile.predict_means(networks, self.setup)

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return the deviation of the ratio for a share, of the pruned network for joules."""
        found = self.fitted_profile.estimate([before, after], self.setup, joint=True, details=False)
        is_share = budget.share is not None
        variance = found.log_ratio_variance(0, [1])[0] if is_share else found.log_variance[1]
        return math.sqrt(max(float(variance), 0.0))


class FlopsObjective:
    """FLOPs of a step: the usual proxy of energy, as a baseline."""

    unit = "FLOP"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def compute_costs(self, networks: Sequence[Network]) -> Floats:
        """Return the FLOPs of forward, backward and update."""
        return np.array([network_work(one, self.setup).total.flops for one in networks])

    def compute_log_sd(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """Return zero: FLOPs are counted, not estimated."""
        return 0.0
