"""What an estimator is: three verbs over observations.

    propose   target, observations → the next Trial, or why there is none
    fit       observations → fitted numbers (JSON, kept in the profile)
    predict   fitted numbers, networks → means with joint covariance

Fitted numbers are plain JSON, so that predicting needs numpy alone and nothing is ever pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from joulecast.records import LayerEstimate, Network, Observation, Setup, Trial

Json = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """What profiling is for: nets up to the widths of ``network``, trained as ``setup`` says.

    Attributes:
        guide: What decides where to measure next: ``energy`` or ``time``.
        uncertainty_share: A curve is known when its largest standard deviation is below this share
            of its profiled values.
    """

    network: Network
    setup: Setup
    guide: str = "energy"
    uncertainty_share: float = 0.05


@dataclass(frozen=True)
class Proposal:
    """The next trial to measure, or None with the reason to stop; and how sure the estimator is.

    Attributes:
        uncertainty_share: Largest standard deviation over its curve's profiled values, all curves.
        why: One line for people: which curve, at which widths; or why there is nothing to do.
        points: Observations that already show what the target needs.
    """

    trial: Trial | None
    uncertainty_share: float
    why: str
    points: int = 0


@dataclass(frozen=True)
class Prediction:
    """Joules and seconds of a step for each of n networks.

    Attributes:
        energy_j: Means, n.
        energy_cov: Joint covariance, n x n.
        duration_s: Means, n.
        layers: For each network what each of its layers costs.
        unseen_share: For each network the share of energy in layers that were never profiled.
    """

    energy_j: Floats
    energy_cov: Floats
    duration_s: Floats
    layers: tuple[tuple[LayerEstimate, ...], ...]
    unseen_share: tuple[float, ...]


class Estimator(Protocol):
    """A method of estimating. Stateless: what it learns is in the fitted numbers."""

    name: str

    def uses(self, observation: Observation) -> bool:
        """Whether an observation can be learnt from."""

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """The trial that is worth most next; the same one for the same observations."""

    def fit(self, observations: Sequence[Observation]) -> Json:
        """Fitted numbers.

        Raises:
            MissingError: Too little was observed to fit anything.
        """

    def predict(self, fitted: Json, networks: Sequence[Network], setup: Setup) -> Prediction:
        """What a step of each network costs."""


def share_doubt(networks: Sequence[Network], doubt: Floats) -> Floats:
    """Covariance of doubts of which half is the device's habit and half each network's own."""
    alike = [[0.5 + 0.5 * (one == two) for two in networks] for one in networks]
    cov: Floats = np.array(alike) * np.outer(doubt, doubt)
    return cov
