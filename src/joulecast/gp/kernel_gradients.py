"""Kernels of groups of inputs as blocks of the observations' covariance, with gradients.

    K = constant + variance·Matern 5/2 + nugget·I    among the inputs of a group
    B·K·Bᵀ                                           its block of the observations' covariance
    Bᵀ·W·B                                           2·∂s/∂K of a scalar s, W = 2·∂s/∂(B·K·Bᵀ)

The matrix B of weights is sparse: most observations contain few inputs. No matrix is larger than a
group, and no large one that is mostly zeros is multiplied; small ones are, since sparse bookkeeping
takes longer than their zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.gp.kernels import matern52_with_gradient, scale_points
from joulecast.gp.linalg import Floats, Ints

# Weight matrices of at most this many numbers are dense.
_MAX_DENSE_SIZE = 4096


@dataclass(frozen=True)
class KernelParameters:
    """Parameters of one kernel: its terms' variances and its length scales."""

    constant_variance: float
    variance: float
    nugget_variance: float
    length_scales: Floats


@dataclass(frozen=True)
class KernelGradient:
    """Gradient of a scalar with respect to logarithms of what a kernel depends on.

    Attributes:
        log_means: With respect to the log prior mean of each input, P.
        log_sd: With respect to the log standard deviation of the kernel.
        log_nugget_sd: With respect to the log standard deviation of the nugget.
        log_length_scales: With respect to each log length scale.
    """

    log_means: Floats
    log_sd: float
    log_nugget_sd: float
    log_length_scales: Floats

    def __add__(self, other: KernelGradient) -> KernelGradient:
        return KernelGradient(
            self.log_means + other.log_means,
            self.log_sd + other.log_sd,
            self.log_nugget_sd + other.log_nugget_sd,
            self.log_length_scales + other.log_length_scales,
        )


class KernelGroup:
    """Inputs that share a kernel.

    Args:
        members: Indices of the group's inputs, ascending.
        inputs: Number of all inputs.
        points: Coordinates of each member.
        row: Observation of each weight.
        column: Input of each weight.

    Attributes:
        block: Index of the group's observations in a matrix over all observations.
        workspace: Memory of kernel and gradient, reused at every θ.
    """

    def __init__(self, members: Ints, inputs: int, points: Floats, row: Ints, column: Ints) -> None:
        self.members, self.inputs = members, inputs
        self.points = points - points.mean(axis=0)
        self._entries = np.flatnonzero(np.isin(column, members))
        rows, self._row = np.unique(row[self._entries], return_inverse=True)
        self._column = np.searchsorted(members, column[self._entries])
        self._shape = len(rows), len(members)
        self.block = np.ix_(rows, rows)
        self.workspace = np.empty((2, len(members), len(members)))

    def weight_matrix(self, weights: Floats) -> tuple[Any, Any]:
        """Return B of this group and its transpose, as sparse matrices where they are large."""
        entries, index = weights[self._entries], (self._row, self._column)
        if self._shape[0] * self._shape[1] <= _MAX_DENSE_SIZE:
            dense = np.zeros(self._shape)
            dense[index] = entries
            return dense, np.ascontiguousarray(dense.T)
        from scipy.sparse import csr_array

        sparse = csr_array((entries, index), self._shape)
        return sparse, sparse.T.tocsr()


class KernelBlock:
    """The kernel of a group at some hyper-parameters; the next one reuses its memory.

    Attributes:
        cov: Its block of the observations' covariance.
    """

    def __init__(self, group: KernelGroup, kernel: KernelParameters, weights: Floats) -> None:
        self.group, self._parameters = group, kernel
        self._points = scale_points(group.points, kernel.length_scales)
        self._kernel, self._gradient = matern52_with_gradient(self._points, group.workspace)
        self._weights, self._transposed = group.weight_matrix(weights)
        self.cov = kernel.variance * _sandwich(self._weights, self._kernel)
        if kernel.constant_variance:
            sums = self._weights.sum(axis=1)
            self.cov += kernel.constant_variance * np.outer(sums, sums)
        if kernel.nugget_variance:
            own = self._weights @ self._transposed
            self.cov += kernel.nugget_variance * (
                own if isinstance(own, np.ndarray) else own.toarray()
            )

    def gradient(self, grad_cov: Floats) -> KernelGradient:
        """Return the gradient of a scalar by backpropagation through the kernel.

        Args:
            grad_cov: W, twice its gradient with respect to the covariance of all observations.
        """
        kernel, points = self._parameters, self._points
        grad_kernel = _sandwich(self._transposed, grad_cov[self.group.block])
        constant = kernel.constant_variance * grad_kernel.sum(axis=1)
        nugget = kernel.nugget_variance * np.diag(grad_kernel)
        matern = kernel.variance * np.einsum("ij,ij->i", grad_kernel, self._kernel)
        means = np.zeros(self.group.inputs)
        means[self.group.members] = constant + matern + nugget
        grad_kernel *= self._gradient
        # Half of Σ W·(x - x')² over all pairs, without a matrix for each axis.
        scales = grad_kernel.sum(axis=1) @ points**2
        scales = scales - np.einsum("ij,ij->j", points, grad_kernel @ points)
        return KernelGradient(
            means, float(matern.sum()), float(nugget.sum()), kernel.variance * scales
        )


def _sandwich(weights: Any, matrix: Floats) -> Floats:
    """Return weights · matrix · weightsᵀ of a symmetric matrix."""
    half = weights @ matrix
    return np.asarray(weights @ np.ascontiguousarray(half.T))
