"""Condition the process on training data.

C = B·K·Bᵀ + diag(σ_n² + v) + discrepancies + unit effects = L·Lᵀ
B = A·diag(m)/y                       weights of the observations, relative to their values
P = Bᵀ·L⁻ᵀ                            projection of inputs onto whitened observations
δ | y  ~  N(k·P·z, k₀ - |k·P|²)       of any input: k its prior covariance with the training
                                      inputs, k₀ its prior variance, z = L⁻¹·residual
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.covariance import cross_covariance, prior_covariance
from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.linalg import Floats, SparsityPattern, cholesky_with_inverse, matvec


@dataclass(frozen=True)
class ConditionedProcess:
    """The posterior under one draw of the hyper-parameters.

    Attributes:
        inputs: Training inputs.
        projection: P, training inputs x observations.
        weights: P·z: the posterior mean of δ is the prior covariance with the training inputs times
            these.
        discrepancy_projection: As ``projection``, of the labels' discrepancies, L x observations.
        discrepancy_weights: As ``weights``, of the labels' discrepancies, L.
        discrepancy_sd: Standard deviation of the discrepancy of sums.
    """

    inputs: Inputs
    hyper: HyperParameters
    projection: Floats
    weights: Floats
    discrepancy_projection: Floats
    discrepancy_weights: Floats
    discrepancy_sd: float

    def covariance_with(self, inputs: Inputs) -> Floats:
        """Return the prior covariance of δ of inputs with that of the training inputs."""
        cov = cross_covariance(inputs, self.inputs, self.hyper)
        if inputs.training_index is not None:
            same = np.flatnonzero(inputs.training_index >= 0)
            cov[same, inputs.training_index[same]] += self.hyper.nugget_sd**2
        return cov


@dataclass(frozen=True)
class FittedProcess:
    """A process with its training data and draws of its hyper-parameters.

    Attributes:
        thetas: Draws of θ, the first of which is the mode.
        label_offset_sd: Standard deviation of a label's offset.
        discrepancy_sd: Standard deviation of the discrepancy of sums.
    """

    inputs: Inputs
    data: TrainingData
    label_offset_sd: float
    thetas: Floats
    discrepancy_sd: float = 0.0

    @cached_property
    def draws(self) -> tuple[ConditionedProcess, ...]:
        """The posterior under every draw, computed at first use."""
        return tuple(condition(self, theta) for theta in self.thetas)


def condition(fitted: FittedProcess, theta: Floats) -> ConditionedProcess:
    """Return the posterior under the hyper-parameters θ."""
    inputs, data = fitted.inputs, fitted.data
    sizes = inputs.basis.shape[1], inputs.points.shape[1]
    hyper = HyperParameters.unpack(theta, *sizes, fitted.label_offset_sd)
    row, column = np.nonzero(data.counts)
    weights = data.counts[row, column] / data.values[row] * inputs.mean(hyper)[column]
    sums = SparsityPattern(len(data.values), row, column)
    half = sums.matmul(weights, prior_covariance(inputs, hyper))
    cov = sums.matmul(weights, np.ascontiguousarray(half.T))
    relative_mean = np.asarray(np.bincount(row, weights, len(data.values)), float)
    cov[np.diag_indices_from(cov)] += hyper.noise_sd**2 + data.relative_variance
    cov += data.correlated_error_covariance(relative_mean)
    _, inverse_factor = cholesky_with_inverse(cov)
    transposed = SparsityPattern(inputs.size, column, row)
    projection = transposed.matmul(weights, np.ascontiguousarray(inverse_factor.T))
    whitened = matvec(inverse_factor, 1.0 - relative_mean)
    discrepancies = data.discrepancy_loadings.T @ inverse_factor.T
    return ConditionedProcess(
        inputs,
        hyper,
        projection,
        matvec(projection, whitened),
        discrepancies,
        matvec(discrepancies, whitened),
        fitted.discrepancy_sd,
    )
