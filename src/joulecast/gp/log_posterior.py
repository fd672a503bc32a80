"""Negative log posterior of the hyper-parameters, with its gradient in closed form.

    r = 1 - B·1,  C = B·K·Bᵀ + diag(σ_n² + v) + discrepancies + unit effects
    -ln p(θ | y) = ½·rᵀC⁻¹r + ½·ln|C| - ln p(θ) + const.
    α = C⁻¹r,  W = C⁻¹ - α·αᵀ            twice the gradient by C

The kernel K is a sum over groups of inputs, and so is its gradient (``kernel_blocks``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.gp.hyperparameters import HyperParameters, HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.kernel_blocks import KernelBlock, KernelGradient, KernelGroup, KernelParameters
from joulecast.gp.linalg import Floats, Ints, invert_covariance


class LogPosterior:
    """Training data and prior, prepared for evaluation at many hyper-parameters."""

    def __init__(self, inputs: Inputs, data: TrainingData, prior: HyperPrior) -> None:
        self.inputs, self.data, self.prior = inputs, data, prior
        self._row, self._column = np.nonzero(data.counts)
        self._relative_counts = data.counts[self._row, self._column] / data.values[self._row]
        self._discrepancies = data.discrepancy_factors @ data.discrepancy_factors.T
        self._units = data.unit_factors @ data.unit_factors.T
        labels = [np.flatnonzero(inputs.labels == label) for label in np.unique(inputs.labels)]
        self._local_groups = [self._make_group(members, inputs.points) for members in labels]
        everything = np.arange(inputs.size)
        has_shared = inputs.shared_points.shape[1] > 0
        self._shared_groups = (
            [self._make_group(everything, inputs.shared_points)] if has_shared else []
        )

    def negative_log_posterior(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ up to a constant, and its gradient."""
        hyper = self._unpack(theta)
        mean = self.inputs.mean(hyper)
        weights = self._relative_counts * mean[self._column]
        local, shared = self._make_blocks(hyper, weights)
        mean_ratio = np.asarray(np.bincount(self._row, weights, len(self.data.values)), float)
        value, alpha, by_cov = self._evaluate([*local, *shared], mean_ratio, hyper.noise_sd)
        by_local = self._sum_gradients(local, by_cov, hyper.local_length_scales)
        by_shared = self._sum_gradients(shared, by_cov, hyper.shared_length_scales)
        by_ratio = alpha - (by_cov * self._units) @ mean_ratio
        by_residual = np.bincount(self._column, weights * by_ratio[self._row], len(mean))
        by_mean = (by_local.means + by_shared.means - by_residual) / np.where(mean > 0, mean, 1.0)
        by_noise = hyper.noise_sd**2 * float(np.trace(by_cov))
        prior, gradient = self.prior.negative_log_density(theta)
        gradient += np.concatenate(
            [
                (by_mean @ self.inputs.basis) * hyper.coefficients,
                [by_local.sd, by_shared.sd, by_local.nugget_sd, by_noise],
                by_local.length_scales,
                by_shared.length_scales,
            ]
        )
        return value + prior, gradient

    def _unpack(self, theta: Floats) -> HyperParameters:
        sizes = self.inputs.basis.shape[1], self.inputs.points.shape[1]
        return HyperParameters.unpack(theta, *sizes, self.prior.offset_sd)

    def _make_group(self, members: Ints, points: Floats) -> KernelGroup:
        return KernelGroup(members, self.inputs.size, points[members], self._row, self._column)

    def _make_blocks(
        self, hyper: HyperParameters, weights: Floats
    ) -> tuple[list[KernelBlock], list[KernelBlock]]:
        """Return one block for each label, and the one that all labels share."""
        offset, nugget = hyper.offset_sd**2, hyper.nugget_sd**2
        local = KernelParameters(offset, hyper.local_sd**2, nugget, hyper.local_length_scales)
        shared = KernelParameters(0.0, hyper.shared_sd**2, 0.0, hyper.shared_length_scales)
        return (
            [KernelBlock(group, local, weights) for group in self._local_groups],
            [KernelBlock(group, shared, weights) for group in self._shared_groups],
        )

    def _evaluate(
        self, blocks: Sequence[KernelBlock], mean_ratio: Floats, noise_sd: float
    ) -> tuple[float, Floats, Floats]:
        """Return the negative log likelihood, α and W."""
        cov = np.diag(noise_sd**2 + self.data.relative_variance) + self._discrepancies
        cov += self._units * np.outer(mean_ratio, mean_ratio)
        for block in blocks:
            cov[block.group.block] += block.cov
        inverse, half_log_det = invert_covariance(cov)
        residual = 1.0 - mean_ratio
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + half_log_det
        return value, alpha, inverse - np.outer(alpha, alpha)

    def _sum_gradients(
        self, blocks: Sequence[KernelBlock], by_cov: Floats, length_scales: Floats
    ) -> KernelGradient:
        zero = KernelGradient(np.zeros(self.inputs.size), 0.0, 0.0, np.zeros(len(length_scales)))
        return sum((block.gradient(by_cov) for block in blocks), zero)
