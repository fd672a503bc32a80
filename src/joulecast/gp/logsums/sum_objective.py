"""Negative log posterior of θ at a fixed linearisation, with its gradient in closed form.

    r = ỹ - W·μ,  ỹ = y - f(z̄) + W·z̄,  C = W·K·Wᵀ + U + diag(σ_n² + v)
    -ln p(θ | y) = ½·rᵀC⁻¹r + ½·ln|C| - ln p(θ) + const.
    α = C⁻¹r,  V = C⁻¹ - α·αᵀ,  G = Wᵀ·V·W       twice the gradients by C and by K

Levels need G summed over cells alone. Gradients by length scales need no matrix for each axis:
½·Σ H·(x - x')² = Σ_i (H·1)_i·x_i² - Σ_i x_i·(H·x)_i for symmetric H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.gp.kernels import matern52_with_gradient, scale_points
from joulecast.gp.linalg import Floats, Ints, invert_covariance
from joulecast.gp.logsums.linearisation import LinearSums
from joulecast.gp.logsums.log_inputs import LogInputs, LogObservations
from joulecast.gp.logsums.prior_covariance import compare_cells, structure_products
from joulecast.gp.logsums.prior_mean import coefficient_gradient, prior_log_mean
from joulecast.gp.logsums.process import (
    NO_GROUP,
    KernelTerm,
    LogSumParameters,
    LogSumProcess,
    TermParameters,
)


class SumObjective:
    """Observations at a fixed linearisation, prepared for evaluation at many θ.

    Args:
        process: The process.
        inputs: Inputs of the observations, cell by cell.
        observations: Observed sums.
        linear: Their linearisation.
    """

    def __init__(
        self,
        process: LogSumProcess,
        inputs: LogInputs,
        observations: LogObservations,
        linear: LinearSums,
    ) -> None:
        from scipy.sparse import csr_array

        self.process, self.inputs = process, inputs
        weights, size = linear.weights, inputs.size
        entries = weights.weight, (weights.row, weights.column)
        self._weights = csr_array(entries, (weights.size, size))
        self._transposed = self._weights.T.tocsr()
        self._values = observations.log_values - linear.offsets
        self._known = observations.log_variance
        self._structures = _StructureProducts(observations)
        table, cell = inputs.cells
        indicator = np.ones(size), (cell, np.arange(size))
        self._cell_sums = csr_array(indicator, (len(table), size))
        self._same = [compare_cells(term, table, table) for term in process.terms]
        distinct = len(np.unique(inputs.identities))
        if distinct < size:
            raise ValueError(f"{size} inputs, of which only {distinct} are distinct")
        self._blocks = [_list_blocks(term, inputs) for term in process.terms]

    def negative_log_posterior(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ up to a constant, and its gradient."""
        hyper = self.process.unpack(theta)
        cov, kernels = self._make_covariance(hyper)
        row_cov = _sandwich(self._weights, cov) + self._structures.covariance(hyper)
        row_cov[np.diag_indices_from(row_cov)] += hyper.noise_sd**2 + self._known
        inverse, half_log_det = invert_covariance(row_cov)
        residual = self._values - self._weights @ prior_log_mean(self.inputs, hyper.coefficients)
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + half_log_det
        by_rows = np.subtract(inverse, np.outer(alpha, alpha), out=inverse)
        by_inputs = _sandwich(self._transposed, by_rows)
        by_mean = -(self._transposed @ alpha)
        prior, gradient = self.process.prior.negative_log_density(theta)
        gradient += np.concatenate(
            [
                by_mean @ coefficient_gradient(self.inputs, hyper.coefficients),
                *self._term_gradients(hyper, kernels, by_inputs),
                [hyper.nugget_sd**2 * float(np.trace(by_inputs))],
                self._structures.gradient(hyper, by_rows),
                [hyper.noise_sd**2 * float(np.trace(by_rows))],
            ]
        )
        return value + prior, gradient

    def _make_covariance(
        self, hyper: LogSumParameters
    ) -> tuple[Floats, list[list[tuple[Floats, Floats, Floats]]]]:
        """Return the covariance of inputs and, for each block, points, kernel and derivative."""
        _, cell = self.inputs.cells
        levels = np.zeros((len(self.inputs.cells[0]),) * 2)
        for term, own, same in zip(self.process.terms, hyper.terms, self._same, strict=True):
            if not term.axes:
                levels += own.shared_sd**2 * same[0] + own.regime_sd**2 * same[1]
        cov = levels.take(cell, axis=1).take(cell, axis=0)
        cov[np.diag_indices_from(cov)] += hyper.nugget_sd**2
        kernels = []
        for blocks, own in zip(self._blocks, hyper.terms, strict=True):
            made = []
            for block in blocks:
                points = scale_points(block.points, own.length_scales)
                kernel, derivative = matern52_with_gradient(points, block.workspace)
                cov[block.index] += kernel * block.factor(own)
                made.append((points, kernel, derivative))
            kernels.append(made)
        return cov, kernels

    def _term_gradients(
        self,
        hyper: LogSumParameters,
        kernels: list[list[tuple[Floats, Floats, Floats]]],
        by_inputs: Floats,
    ) -> list[Floats]:
        """Return the derivatives by the logarithms of each term's hyper-parameters."""
        by_cells = _sandwich(self._cell_sums, by_inputs)
        found = []
        for at, (term, own) in enumerate(zip(self.process.terms, hyper.terms, strict=True)):
            shared, regime = (float((by_cells * same).sum()) for same in self._same[at])
            length_scales = np.zeros(len(term.axes))
            if term.axes:
                shared, regime = 0.0, 0.0
                for block, made in zip(self._blocks[at], kernels[at], strict=True):
                    one, two, scales = block.gradient(own, made, by_inputs[block.index])
                    shared, regime = shared + one, regime + two
                    length_scales += scales
            sds = [] if term.shared_sd is None else [own.shared_sd**2 * shared]
            sds += [] if term.regime_sd is None else [own.regime_sd**2 * regime]
            found.append(np.concatenate([sds, length_scales]))
        return found


@dataclass(frozen=True)
class _KernelBlock:
    """Inputs of one group of a term.

    Attributes:
        index: Index of the block in a matrix over all inputs.
        points: Their coordinates on the axes of the term.
        same_regime: Which pairs share their regime.
        workspace: Memory of kernel and derivative, reused at every θ.
    """

    index: Any
    points: Floats
    same_regime: Floats
    workspace: Floats

    def factor(self, own: TermParameters) -> Floats:
        """Return the variance by which each pair's kernel is multiplied."""
        return own.shared_sd**2 + own.regime_sd**2 * self.same_regime

    def gradient(
        self, own: TermParameters, made: tuple[Floats, Floats, Floats], by_block: Floats
    ) -> tuple[float, float, Floats]:
        """Return derivatives by both variances and by the logarithms of the length scales."""
        points, kernel, derivative = made
        weighted = by_block * kernel
        shared = float(weighted.sum())
        regime = float(np.vdot(weighted, self.same_regime))
        weighted = np.multiply(by_block, derivative, out=weighted)
        weighted *= self.factor(own)
        scales = weighted.sum(axis=1) @ points**2
        scales = scales - np.einsum("ij,ij->j", points, weighted @ points)
        return shared, regime, scales


class _StructureProducts:
    """Covariance of discrepancies for given variances."""

    def __init__(self, observations: LogObservations) -> None:
        structures, identities = observations.sums.structures, observations.sums.identities
        self._size = observations.size
        self._rows = np.unique(structures.row)
        self._products = np.zeros((len(self._rows),) * 2)
        if len(self._rows):
            self._products = structure_products(structures, structures, self._rows, self._rows)
        own = identities[self._rows]
        self._own_products = self._products * (own[:, None] == own[None, :])

    def covariance(self, hyper: LogSumParameters) -> Floats:
        """Return the covariance of discrepancies of all observations."""
        cov = np.zeros((self._size, self._size))
        cov[np.ix_(self._rows, self._rows)] = (
            hyper.structure_sd**2 * self._products + hyper.sum_sd**2 * self._own_products
        )
        return cov

    def gradient(self, hyper: LogSumParameters, by_rows: Floats) -> list[float]:
        """Return the derivatives by the logarithms of both standard deviations."""
        block = by_rows[np.ix_(self._rows, self._rows)]
        return [
            hyper.structure_sd**2 * float(np.vdot(block, self._products)),
            hyper.sum_sd**2 * float(np.vdot(block, self._own_products)),
        ]


def _list_blocks(term: KernelTerm, inputs: LogInputs) -> list[_KernelBlock]:
    """Return the groups of a term; none for a level."""
    if not term.axes:
        return []
    column = inputs.group_column(term.group)
    groups = np.setdiff1d(column, [NO_GROUP])
    return [_make_block(term, inputs, np.flatnonzero(column == one)) for one in groups]


def _make_block(term: KernelTerm, inputs: LogInputs, members: Ints) -> _KernelBlock:
    points = inputs.points[members][:, list(term.axes)]
    regimes = inputs.regimes[members]
    same = (regimes[:, None] == regimes[None, :]).astype(float)
    first, last, size = int(members[0]), int(members[-1]), len(members)
    # Inputs come cell by cell, so that most groups are contiguous.
    is_slice = last - first + 1 == size
    index = (slice(first, last + 1),) * 2 if is_slice else np.ix_(members, members)
    return _KernelBlock(index, points - points.mean(axis=0), same, np.empty((2, size, size)))


def _sandwich(weights: Any, matrix: Floats) -> Floats:
    """Return weights · matrix · weightsᵀ of a symmetric matrix."""
    half = weights @ matrix
    return np.asarray(weights @ np.ascontiguousarray(half.T))
