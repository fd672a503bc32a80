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
        networks: The nets that a person cares about; where there are none, ``network`` and
            narrower ones.
        guide: What decides where to measure next: ``target`` (what the totals of these nets gain
            most from); the paper's rule, the largest deviation of ``energy`` or ``time``;
            ``missing`` (kinds that were never measured, and seconds of every layer of these nets);
            or ``probe`` (those seconds, then joules of the few layers that leave most doubt).
        uncertainty_share: Known well enough: for the paper's rule a curve's largest standard
            deviation as a share of its profiled values, else half the 95 % interval of a total.
        modes: Ways to run a step that the device's runtime has: ``eager``, ``graph``.
    """

    network: Network
    setup: Setup
    guide: str = "target"
    uncertainty_share: float = 0.05
    networks: tuple[Network, ...] = ()
    modes: tuple[str, ...] = ("eager",)


@dataclass(frozen=True)
class Proposal:
    """The next trial to measure, or None with the reason to stop; and how sure the estimator is.

    Attributes:
        uncertainty_share: How unsure it is, in the terms of the target's ``uncertainty_share``.
        why: One line for people: what is measured and why; or why there is nothing to do.
        points: Observations that already show what the target needs.
        energy: Whether joules are wanted, or seconds only: a probe.
    """

    trial: Trial | None
    uncertainty_share: float
    why: str
    points: int = 0
    energy: bool = True


@dataclass(frozen=True)
class Prediction:
    """Joules and seconds of a step for each of n networks.

    Attributes:
        energy_j: Means, n.
        energy_sd_j: Standard deviations, n.
        energy_cov: Joint covariance, n x n; None where it was not asked for.
        duration_s: Means, n.
        layers: For each network what each of its layers costs.
        unseen_share: For each network the share of energy in layers that were never profiled.
        device_j: The device's own part, without waiting for the host, n; None where nobody knows.
        doubts: For each network where its variance comes from: words and shares of it.
        duration_sd_s: Standard deviations of the seconds, n; None where nobody knows.
    """

    energy_j: Floats
    energy_sd_j: Floats
    energy_cov: Floats | None
    duration_s: Floats
    layers: tuple[tuple[LayerEstimate, ...], ...]
    unseen_share: tuple[float, ...]
    device_j: Floats | None = None
    doubts: tuple[dict[str, float], ...] = ()
    duration_sd_s: Floats | None = None


class Estimator(Protocol):
    """A method of estimating. Stateless: what it learns is in the fitted numbers."""

    name: str

    def uses(self, observation: Observation) -> bool:
        """Whether an observation can be learnt from."""

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """The trial that is worth most next; the same one for the same observations."""

    def list_probes(self, target: Target, observations: Sequence[Observation]) -> tuple[Trial, ...]:
        """Time probes that the estimates of ``target.networks`` still lack; most need none."""

    def fit(self, observations: Sequence[Observation]) -> Json:
        """Fitted numbers.

        Raises:
            MissingError: Too little was observed to fit anything.
        """

    def predict(
        self, fitted: Json, networks: Sequence[Network], setup: Setup, joint: bool = True
    ) -> Prediction:
        """What a step of each network costs; ``joint`` asks for how their errors go together."""


def share_doubt(asked: Sequence[object], doubt: Floats) -> Floats:
    """Covariance of doubts of which half is the device's habit and half each question's own."""
    # Equal ones get equal numbers, so that long records are not compared pair by pair.
    numbers: dict[object, int] = {}
    which = np.array([numbers.setdefault(one, len(numbers)) for one in asked], int)
    alike = 0.5 + 0.5 * (which[:, None] == which)
    cov: Floats = alike * np.outer(doubt, doubt)
    return cov
