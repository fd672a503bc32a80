"""Negative log posterior of the hyper-parameters, with its gradient in closed form.

    r = 1 - B·1,  C = B·K·Bᵀ + diag(σ_n² + v) + discrepancies + unit effects
    -ln p(θ | y) = ½·rᵀC⁻¹r + ½·ln|C| - ln p(θ) + const.
    α = C⁻¹r,  W = C⁻¹ - α·αᵀ            twice the gradient with respect to C

The kernel K is a sum over groups of inputs, and so is its gradient (``kernel_gradients``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.gp.hyperparameters import HyperParameters, HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.kernel_gradients import KernelBlock, KernelGradient, KernelGroup, KernelParameters
from joulecast.gp.linalg import Floats, Ints, invert_covariance


class LogPosterior:
    """Training data and prior, prepared for evaluation at many hyper-parameters."""

    def __init__(self, inputs: Inputs, data: TrainingData, prior: HyperPrior) -> None:
        self.inputs, self.data, self.prior = inputs, data, prior
        self._row, self._column = np.nonzero(data.counts)
        self._relative_counts = data.counts[self._row, self._column] / data.values[self._row]
        self._discrepancies = data.discrepancy_loadings @ data.discrepancy_loadings.T
        self._units = data.unit_loadings @ data.unit_loadings.T
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
        relative_mean = np.asarray(np.bincount(self._row, weights, len(self.data.values)), float)
        value, alpha, grad_cov = self._evaluate([*local, *shared], relative_mean, hyper.noise_sd)
        grad_local = self._sum_gradients(local, grad_cov, hyper.local_length_scales)
        grad_shared = self._sum_gradients(shared, grad_cov, hyper.shared_length_scales)
        grad_relative_mean = alpha - (grad_cov * self._units) @ relative_mean
        grad_residual = np.bincount(
            self._column, weights * grad_relative_mean[self._row], len(mean)
        )
        grad_log_mean = grad_local.log_means + grad_shared.log_means - grad_residual
        grad_mean = grad_log_mean / np.where(mean > 0, mean, 1.0)
        grad_noise = hyper.noise_sd**2 * float(np.trace(grad_cov))
        prior, gradient = self.prior.negative_log_density(theta)
        gradient += np.concatenate(
            [
                (grad_mean @ self.inputs.basis) * hyper.coefficients,
                [grad_local.log_sd, grad_shared.log_sd, grad_local.log_nugget_sd, grad_noise],
                grad_local.log_length_scales,
                grad_shared.log_length_scales,
            ]
        )
        return value + prior, gradient

    def _unpack(self, theta: Floats) -> HyperParameters:
        sizes = self.inputs.basis.shape[1], self.inputs.points.shape[1]
        return HyperParameters.unpack(theta, *sizes, self.prior.label_offset_sd)

    def _make_group(self, members: Ints, points: Floats) -> KernelGroup:
        return KernelGroup(members, self.inputs.size, points[members], self._row, self._column)

    def _make_blocks(
        self, hyper: HyperParameters, weights: Floats
    ) -> tuple[list[KernelBlock], list[KernelBlock]]:
        """Return one block for each label, and the one that all labels share."""
        offset, nugget = hyper.label_offset_sd**2, hyper.nugget_sd**2
        local = KernelParameters(offset, hyper.local_sd**2, nugget, hyper.local_length_scales)
        shared = KernelParameters(0.0, hyper.shared_sd**2, 0.0, hyper.shared_length_scales)
        return (
            [KernelBlock(group, local, weights) for group in self._local_groups],
            [KernelBlock(group, shared, weights) for group in self._shared_groups],
        )

    def _evaluate(
        self, blocks: Sequence[KernelBlock], relative_mean: Floats, noise_sd: float
    ) -> tuple[float, Floats, Floats]:
        """Return the negative log likelihood, α and W."""
        cov = np.diag(noise_sd**2 + self.data.relative_variance) + self._discrepancies
        cov += self._units * np.outer(relative_mean, relative_mean)
        for block in blocks:
            cov[block.group.block] += block.cov
        inverse, half_log_det = invert_covariance(cov)
        residual = 1.0 - relative_mean
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + half_log_det
        return value, alpha, inverse - np.outer(alpha, alpha)

    def _sum_gradients(
        self, blocks: Sequence[KernelBlock], grad_cov: Floats, length_scales: Floats
    ) -> KernelGradient:
        zero = KernelGradient(np.zeros(self.inputs.size), 0.0, 0.0, np.zeros(len(length_scales)))
        return sum((block.gradient(grad_cov) for block in blocks), zero)
