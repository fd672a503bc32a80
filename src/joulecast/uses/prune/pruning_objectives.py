"""What candidates cost, and how unsure that is against a budget.

A guide says the ``cost`` of many networks at once, and the ``spread`` of the logarithm of what a
budget bounds. The estimator's errors of a net and of the same net with fewer channels go together,
so that a share of what it was is much surer than joules are: a share is bounded by the ratio with
its joint covariance, joules by the smaller net alone.

    ln(after / before) ~ N(ln(a / b), Laa + Lbb - 2 Lab)      L: covariance of ln a and ln b
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators import OpenProfile
from joulecast.kinds import network_work
from joulecast.records import Network, Setup
from joulecast.uses.prune.pruning_budget import EnergyBudget

Floats = NDArray[np.float64]


class PruningObjective(Protocol):
    """What decides how far to cut."""

    unit: str

    def cost(self, networks: Sequence[Network]) -> Floats:
        """What a step of each costs."""

    def spread(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """One deviation of the logarithm of what the budget bounds."""


class EnergyObjective:
    """Joules of a step by a profile's estimator."""

    unit = "J"

    def __init__(self, known: OpenProfile, setup: Setup) -> None:
        self.setup = setup
        self.known = known

    def cost(self, networks: Sequence[Network]) -> Floats:
        """Means; joules alone are asked for."""
        return self.known.ask_means([(one, self.setup) for one in networks])

    def spread(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """By the joint doubt of both nets."""
        pairs = [(before, self.setup), (after, self.setup)]
        found = self.known.ask(pairs, joint=True, details=False)
        vary = found.vary_ratios(0, [1])[0] if budget.share is not None else found.vary()[1]
        return math.sqrt(max(float(vary), 0.0))


class FlopsObjective:
    """FLOPs of a step: what everybody prunes by, to compare with."""

    unit = "FLOP"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def cost(self, networks: Sequence[Network]) -> Floats:
        """Contractions of the whole step, counted."""
        return np.array([network_work(one, self.setup).total.flops for one in networks])

    def spread(self, before: Network, after: Network, budget: EnergyBudget) -> float:
        """None: a count is kept or it is not. It says nothing of joules."""
        return 0.0
