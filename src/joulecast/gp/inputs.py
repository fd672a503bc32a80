"""Inputs of the process and observed sums over them, as arrays.

    y_i  = Σ_p A_ip·g_p·(1 + ε_i)        an observation sums the values g of a few inputs
    g_p  = m_p·(1 + δ_p)                 value of input p
    m_p  = h(p)ᵀβ                        mean: basis functions h, coefficients β > 0
    δ_p  = u_label + f_label(x_p) + r(q_p) + j_p
           u ~ N(0, σ_u²)                offset of a label
           f ~ GP(0, σ_f²·Matern 5/2)    over the points x of one label
           r ~ GP(0, σ_r²·Matern 5/2)    over the points q, shared by all labels
           j ~ N(0, σ_j²)                nugget of each distinct input
    a sum of several inputs has a discrepancy besides, Σ_k √share_k·a_k with a ~ N(0, σ_a²) per
    label k: a sum may cost more or less than its inputs one by one

Observations are divided by y_i, so that everything is relative: with B = A·diag(m)/y the residual
is 1 - B·1 and its covariance B·K·Bᵀ + diag(σ_n² + v) + discrepancies + unit effects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.linalg import Floats, Ints, matvec


@dataclass(frozen=True)
class Inputs:
    """P inputs of the process.

    Attributes:
        basis: Basis functions of the mean at each input, P x K.
        labels: Group of each input, P: inputs of one label share an offset and a kernel.
        points: Coordinates of the kernel within a label, P x D.
        shared_points: Coordinates of the kernel that all labels share, P x Q; Q may be 0.
        training_index: The training input that each input equals, or -1; None if all are new.
    """

    basis: Floats
    labels: Ints
    points: Floats
    shared_points: Floats
    training_index: Ints | None = None

    @property
    def size(self) -> int:
        """Number of inputs."""
        return len(self.labels)

    def mean(self, hyper: HyperParameters) -> Floats:
        """Return the prior mean m of each input."""
        return matvec(self.basis, hyper.coefficients)

    def take(self, index: Ints) -> Inputs:
        """Return some of the inputs."""
        return Inputs(
            self.basis[index],
            self.labels[index],
            self.points[index],
            self.shared_points[index],
            None if self.training_index is None else self.training_index[index],
        )


@dataclass(frozen=True)
class TrainingData:
    """N observed sums over P inputs.

    Attributes:
        counts: How often each sum contains each input, N x P.
        values: Observed values, N.
        relative_variance: Relative noise variance of each value that is known in advance, N.
        discrepancy_loadings: Loadings F of the covariance F·Fᵀ of discrepancies, N x L.
        unit_loadings: Likewise of unit effects, N x U: values from another unit of the device share
            an error relative to their mean. An error relative to the values themselves would have a
            trivial optimum: all means zero, and all units above that.
    """

    counts: Floats
    values: Floats
    relative_variance: Floats
    discrepancy_loadings: Floats
    unit_loadings: Floats

    def correlated_error_covariance(self, relative_mean: Floats) -> Floats:
        """Return the relative covariance of errors that sums share but no input explains, N x N.

        Args:
            relative_mean: Prior mean of each sum over its observed value.
        """
        units = self.unit_loadings * relative_mean[:, None]
        discrepancies = self.discrepancy_loadings @ self.discrepancy_loadings.T
        return np.asarray(discrepancies + units @ units.T)
