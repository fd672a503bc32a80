"""Define a process over log values: its terms, its hyper-parameters θ and their prior.

θ = ln (c_1 … c_K, then for each term a_t, b_t, ℓ_t1 … ℓ_tD, then σ_j, σ_s, σ_t, σ_n)

A term without a prior for a_t or b_t has none, and θ leaves it out. The package has the notation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record

# Median and log standard deviation of a log-normal prior.
Prior = tuple[float, float]

ALL_INPUTS = -1

NO_GROUP = -(2**63)
"""Group of inputs that a term leaves out: it adds nothing to their variance."""


@dataclass(frozen=True)
class KernelTerm(Record):
    """One term of the covariance, shared by the inputs of a group.

    Attributes:
        group: Column of ``LogInputs.groups``; ALL_INPUTS if all inputs are one group.
        axes: Columns of ``LogInputs.points`` that its kernel depends on; none for a level.
        shared_sd: Prior of a_t, the standard deviation that all regimes share.
        regime_sd: Prior of b_t, the standard deviation of each regime.
        length_scale: Prior of every length scale.
    """

    group: int
    axes: tuple[int, ...] = ()
    shared_sd: Prior | None = None
    regime_sd: Prior | None = None
    length_scale: Prior = (2.0, 0.7)


@dataclass(frozen=True)
class LogSumProcess(Record):
    """Definition of a process: priors of coefficients, terms and standard deviations.

    Attributes:
        coefficients: Prior of the coefficient of each basis function, then of each basis function
            of the logarithm.
        terms: Terms of the covariance.
        nugget_sd: Prior of σ_j, the deviation of each distinct input.
        structure_sd: Prior of σ_s, the discrepancy of a structure.
        sum_sd: Prior of σ_t, the discrepancy of each distinct sum.
        noise_sd: Prior of σ_n, the noise of an observation.
    """

    coefficients: tuple[Prior, ...]
    terms: tuple[KernelTerm, ...]
    nugget_sd: Prior = (0.1, 0.5)
    structure_sd: Prior = (0.08, 0.5)
    sum_sd: Prior = (0.04, 0.5)
    noise_sd: Prior = (0.02, 0.5)

    @property
    def medians(self) -> Floats:
        """Medians of the priors of the coefficients."""
        return np.array([median for median, _ in self.coefficients])

    @cached_property
    def prior(self) -> ThetaPrior:
        """The prior of θ."""
        found = list(self.coefficients)
        for term in self.terms:
            found += [one for one in (term.shared_sd, term.regime_sd) if one is not None]
            found += [term.length_scale] * len(term.axes)
        found += [self.nugget_sd, self.structure_sd, self.sum_sd, self.noise_sd]
        medians, log_sds = np.array(found, float).T
        return ThetaPrior(np.log(medians), log_sds)

    def unpack(self, theta: Floats) -> LogSumParameters:
        """Return the hyper-parameters of θ."""
        values = iter(np.exp(theta).tolist())
        coefficients = np.array([next(values) for _ in self.coefficients])
        terms = []
        for term in self.terms:
            shared_sd = 0.0 if term.shared_sd is None else next(values)
            regime_sd = 0.0 if term.regime_sd is None else next(values)
            scales = np.array([next(values) for _ in term.axes])
            terms.append(TermParameters(shared_sd, regime_sd, scales))
        return LogSumParameters(coefficients, tuple(terms), *values)


@dataclass(frozen=True)
class ThetaPrior:
    """Independent normal priors of the elements of θ."""

    means: Floats
    sds: Floats

    def negative_log_density(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log density of θ up to a constant, and its gradient."""
        z = (theta - self.means) / self.sds
        return 0.5 * float(z @ z), z / self.sds


@dataclass(frozen=True)
class TermParameters:
    """Hyper-parameters of one term."""

    shared_sd: float
    regime_sd: float
    length_scales: Floats

    @property
    def variance(self) -> float:
        """Variance that the term gives to each input."""
        return self.shared_sd**2 + self.regime_sd**2


@dataclass(frozen=True)
class LogSumParameters:
    """Hyper-parameters by name."""

    coefficients: Floats
    terms: tuple[TermParameters, ...]
    nugget_sd: float
    structure_sd: float
    sum_sd: float
    noise_sd: float
