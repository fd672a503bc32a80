"""Estimates of several networks on one device, with the joint distribution of their errors.

    A, B          energies of two networks with means a, b
    ln A, ln B    jointly normal,  cov(ln A, ln B) = ln(1 + cov(A, B) / (a b))

Probabilities are log-normal, like the intervals, and all of them follow from this one covariance.
Two networks on one device share most of their errors, so their difference and ratio are known far
better than either energy. Equal queries are evaluated once: their estimates and draws are equal to
the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.gp import lognormal
from joulecast.records import Estimate
from joulecast.system.errors import InputError


@dataclass(frozen=True)
class Estimates(Sequence[Estimate]):
    """The energy of one step of each of n networks on one device.

    Attributes:
        estimates: The estimates, in the order of the networks.
        variance: Variance of each energy, n.
        cov: Joint covariance of the energies, n x n; None unless it was requested.
        first_occurrence: For each network the position of the first one that equals it.
    """

    estimates: tuple[Estimate, ...]
    variance: Floats
    cov: Floats | None
    first_occurrence: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.estimates)

    @overload
    def __getitem__(self, index: int) -> Estimate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Estimate]: ...
    def __getitem__(self, index: int | slice) -> Estimate | Sequence[Estimate]:
        return self.estimates[index]

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.estimates)

    @property
    def energy_j(self) -> Floats:
        """Mean energies, n."""
        return np.array([estimate.energy_j for estimate in self.estimates])

    @property
    def log_covariance(self) -> Floats:
        """Joint covariance of the logarithms of the energies, n x n."""
        if self.cov is None:
            raise InputError("ratios and draws need the joint covariance: estimate with joint=True")
        return lognormal.log_covariance(self.energy_j, self.cov)

    @property
    def log_variance(self) -> Floats:
        """Variance of the logarithm of each energy, n."""
        return lognormal.log_variance(self.energy_j, self.variance)

    def log_ratio_variance(self, reference: int, others: Sequence[int]) -> Floats:
        """Return the variance of the logarithm of each ratio of an energy to the reference's."""
        cov, index = self.log_covariance, np.asarray(others, int)
        return np.asarray(
            cov[reference, reference] + cov[index, index] - 2.0 * cov[reference, index]
        )

    def probability_within(self, limits_j: Sequence[float]) -> Floats:
        """Return the probability that each energy is at most its limit."""
        margins = np.log(np.asarray(limits_j) / self.energy_j)
        return lognormal.probability_below(margins, self.log_variance)

    def probability_ratio_within(
        self, reference: int, others: Sequence[int], ratios: Sequence[float]
    ) -> Floats:
        """Return the probability that each energy is at most its ratio times the reference's."""
        means, index = self.energy_j, np.asarray(others, int)
        margins = np.log(np.asarray(ratios) * means[reference] / means[index])
        return lognormal.probability_below(margins, self.log_ratio_variance(reference, others))

    def probability_less(
        self, one: int, others: Estimates, other: int, ratio: float = 1.0
    ) -> float:
        """Return the probability that ``self[one]`` is at most ``ratio`` times ``others[other]``.

        Estimates of another device share no errors with these.
        """
        if others is self:
            return float(self.probability_ratio_within(other, [one], [ratio])[0])
        margin = math.log(ratio * others.energy_j[other] / self.energy_j[one])
        variance = float(self.log_variance[one] + others.log_variance[other])
        return lognormal.probability_below(margin, variance)

    def draw(self, count: int, seed: int = 0) -> Floats:
        """Draw the energies jointly, count x n."""
        # Equal networks are drawn once: rounding would make their draws differ.
        first, back = np.unique(self.first_occurrence, return_inverse=True)
        covariance = self.log_covariance[np.ix_(first, first)]
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, len(root)))
        return np.asarray((self.energy_j[first] * np.exp(normal @ root.T))[:, back])

    def select(self, positions: Sequence[int]) -> Estimates:
        """Return the estimates at some positions, which may repeat."""
        first = {position: index for index, position in reversed(list(enumerate(positions)))}
        return Estimates(
            tuple(self.estimates[position] for position in positions),
            self.variance[list(positions)],
            None if self.cov is None else self.cov[np.ix_(positions, positions)],
            tuple(first[position] for position in positions),
        )
