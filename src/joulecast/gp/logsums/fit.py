"""Fit hyper-parameters: the MAP estimate by L-BFGS on a stratified subset of the observations.

Sums are linearised around the posterior mean under the last estimate, then θ is fitted again. At a
fixed linearisation the negative log posterior has its gradient in closed form:

    r = ỹ - W·μ,  ỹ = y - f(z̄) + W·z̄,  C = W·K·Wᵀ + U + diag(σ_n² + v)
    -ln p(θ | y) = ½·rᵀC⁻¹r + ½·ln|C| - ln p(θ) + const.
    α = C⁻¹r,  V = C⁻¹ - α·αᵀ,  G = Wᵀ·V·W       twice the gradients by C and by K

Levels need G summed over cells alone. Gradients by length scales need no matrix for each axis:
½·Σ H·(x - x')² = Σ_i (H·1)_i·x_i² - Σ_i x_i·(H·x)_i for symmetric H.

A library may run one size of a layer a hundred times slower than its neighbours, which a Gaussian
process would take for a property of the whole region. Among many observations, one that all others
contradict is therefore given the variance of its own leave-one-out residual (R&W, eq. 5.12), so
that it says next to nothing. Several that agree predict each other and are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.gp.kernels import matern52_with_gradient, scale_points
from joulecast.gp.linalg import Floats, Ints, invert_covariance, matmul
from joulecast.gp.logsums.inputs import NO_GROUP, LinearSums, LogInputs, LogObservations
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    linearise_observations,
)
from joulecast.gp.logsums.prior import (
    FittedTerm,
    LogSumPrior,
    LogSumProcess,
    as_slice,
    coefficient_gradient,
    compare_cells,
    multiply_structures,
)
from joulecast.gp.logsums.selection import keep_linearisation

# Observations that hyper-parameters are fitted to, and inputs that their sums may contain.
MAX_FIT_ROWS, MAX_FIT_INPUTS = 800, 1100
# Fits of θ, each around the posterior mean of the last one, and steps of each.
_FIT_STEPS = (40, 15)
# Bounds of the search, in prior standard deviations.
_SEARCH_SDS = 6.0


def fit_logsums(
    process: LogSumProcess,
    inputs: LogInputs,
    observations: LogObservations,
    max_row_inputs: int | None = None,
) -> FittedLogSums:
    """Return the process with MAP hyper-parameters, ready to be conditioned.

    Where there are outliers, they are discounted and everything is fitted again. Without any
    observations, hyper-parameters are the medians of their priors.

    Hyper-parameters are fitted to MAX_FIT_ROWS observations, of sums of at most ``max_row_inputs``
    inputs if that is given.
    """
    if not observations.size:
        return FittedLogSums.start(process, process.theta_prior[0], inputs, observations)
    rows = select_subset(observations, MAX_FIT_ROWS, max_row_inputs=max_row_inputs)

    def fit(observations: LogObservations) -> FittedLogSums:
        theta = _find_mode(process, inputs, observations.take(rows))
        return keep_linearisation(FittedLogSums.start(process, theta, inputs, observations))

    fitted = fit(observations)
    discounted = discount_outliers(fitted)
    return fitted if discounted is None else fit(discounted)


def select_subset(
    observations: LogObservations,
    max_rows: int,
    max_inputs: int = MAX_FIT_INPUTS,
    max_row_inputs: int | None = None,
) -> Ints:
    """Return observations of all strata, ascending, with at most so many inputs.

    A stratum's number of observations grows with the square root of its size, until it runs out.

    ``max_inputs`` limits the distinct inputs of all chosen sums together, ``max_row_inputs`` those
    of each sum.
    """
    counts, size = observations.sums.counts, observations.size
    strata = np.zeros(size, np.int64) if observations.strata is None else observations.strata
    starts = np.searchsorted(counts.row, np.arange(size + 1))
    seen: set[int] = set()
    chosen = []
    shuffled, rank = np.random.default_rng(0).permutation(size), np.empty(size)
    for stratum in np.unique(strata):
        mine = shuffled[strata[shuffled] == stratum]
        rank[mine] = (np.arange(len(mine)) + 0.5) / np.sqrt(len(mine))
    for row in np.argsort(rank, kind="stable").tolist():
        own = set(counts.column[starts[row] : starts[row + 1]].tolist())
        if max_row_inputs is not None and len(own) > max_row_inputs:
            continue
        if len(own) == 1 or len(seen | own) <= max_inputs:
            seen |= own
            chosen.append(row)
        if len(chosen) == max_rows:
            break
    return np.sort(np.array(chosen, np.int64))


def _find_mode(process: LogSumProcess, inputs: LogInputs, observations: LogObservations) -> Floats:
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    theta, sds = process.theta_prior
    bounds = list(zip(theta - _SEARCH_SDS * sds, theta + _SEARCH_SDS * sds, strict=True))
    fitted = FittedLogSums.start(process, theta, inputs, observations)
    fitted = fitted.narrow(np.arange(observations.size))
    # The matrices are small: threads would wait for each other more than they work.
    with threadpool_limits(1, user_api="blas"):
        for steps in _FIT_STEPS:
            fitted = linearise_observations(replace(fitted, theta=theta))
            objective = SumObjective(process, fitted.inputs, fitted.observations, fitted.linear)
            found = minimize(
                objective.negative_log_posterior,
                theta,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": steps},
            )
            theta = np.asarray(found.x)
            if len(observations.sums.counts.row) == observations.size:
                break  # no sums of several inputs
    return theta


class SumObjective:
    """Observations at a fixed linearisation, prepared for evaluation at many θ.

    Inputs come cell by cell.
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
        # Where sums have structures, F·Fᵀ there, and this product for equal sums.
        place, products, is_same = multiply_structures(observations.sums, observations.sums)
        self._structures = place, products, products * is_same
        table, cell = inputs.cells
        indicator = np.ones(size), (cell, np.arange(size))
        self._cell_sums = csr_array(indicator, (len(table), size))
        self._same = [compare_cells(term.group, table, table) for term in process.terms]
        distinct = len(np.unique(inputs.identities))
        if distinct < size:
            raise ValueError(f"{size} inputs, of which only {distinct} are distinct")
        self._blocks = []
        for term in process.terms:
            column = inputs.group_column(term.group)
            groups = np.setdiff1d(column, [NO_GROUP]) if term.axes else ()
            blocks = [_KernelBlock(term.axes, inputs, np.flatnonzero(column == g)) for g in groups]
            self._blocks.append(blocks)

    def negative_log_posterior(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ up to a constant, and its gradient."""
        prior = self.process.unpack(theta)
        row_cov = _sandwich(self._weights, self._make_covariance(prior))
        place, shared, own = self._structures
        row_cov[place] += prior.structure_sd**2 * shared + prior.sum_sd**2 * own
        row_cov[np.diag_indices_from(row_cov)] += prior.noise_sd**2 + self._known
        inverse, half_log_det = invert_covariance(row_cov)
        residual = self._values - self._weights @ prior.mean(self.inputs)
        alpha = inverse @ residual
        value = 0.5 * float(residual @ alpha) + half_log_det
        by_rows = np.subtract(inverse, np.outer(alpha, alpha), out=inverse)
        by_inputs = _sandwich(self._transposed, by_rows)
        by_mean = -(self._transposed @ alpha)
        means, sds = self.process.theta_prior
        z = (theta - means) / sds
        gradient = z / sds + np.concatenate(
            [
                by_mean @ coefficient_gradient(self.inputs, prior.coefficients),
                *self._term_gradients(prior, by_inputs),
                [prior.nugget_sd**2 * float(np.trace(by_inputs))],
                [prior.structure_sd**2 * float(np.vdot(by_rows[place], shared))],
                [prior.sum_sd**2 * float(np.vdot(by_rows[place], own))],
                [prior.noise_sd**2 * float(np.trace(by_rows))],
            ]
        )
        return value + 0.5 * float(z @ z), gradient

    def _make_covariance(self, prior: LogSumPrior) -> Floats:
        """Return the covariance of inputs; blocks remember their kernels."""
        table, cell = self.inputs.cells
        levels = np.zeros((len(table), len(table)))
        for term, same in zip(prior.terms, self._same, strict=True):
            if not term.axes:
                levels += term.shared_sd**2 * same[0] + term.regime_sd**2 * same[1]
        cov = levels.take(cell, axis=1).take(cell, axis=0)
        cov[np.diag_indices_from(cov)] += prior.nugget_sd**2
        for blocks, term in zip(self._blocks, prior.terms, strict=True):
            for block in blocks:
                cov[block.index] += block.covary(term)
        return cov

    def _term_gradients(self, prior: LogSumPrior, by_inputs: Floats) -> list[Floats]:
        """Return the derivatives by the logarithms of each term's hyper-parameters."""
        by_cells = _sandwich(self._cell_sums, by_inputs)
        found = []
        for at, (term, own) in enumerate(zip(self.process.terms, prior.terms, strict=True)):
            shared, regime = (float((by_cells * same).sum()) for same in self._same[at])
            length_scales = np.zeros(len(term.axes))
            if term.axes:
                shared, regime = 0.0, 0.0
                for block in self._blocks[at]:
                    one, two, scales = block.gradient(own, by_inputs[block.index])
                    shared, regime = shared + one, regime + two
                    length_scales += scales
            sds = [] if term.shared_sd is None else [own.shared_sd**2 * shared]
            sds += [] if term.regime_sd is None else [own.regime_sd**2 * regime]
            found.append(np.concatenate([sds, length_scales]))
        return found


class _KernelBlock:
    """Inputs of one group of a term, with the kernel and its derivative at the last θ.

    Attributes:
        index: Index of the block in a matrix over all inputs.
    """

    def __init__(self, axes: tuple[int, ...], inputs: LogInputs, members: Ints) -> None:
        points, regimes = inputs.points[members][:, list(axes)], inputs.regimes[members]
        self._points = points - points.mean(axis=0)
        self._same_regime = (regimes[:, None] == regimes[None, :]).astype(float)
        # Memory of kernel and derivative.
        self._workspace = np.empty((2, len(members), len(members)))
        # Inputs come cell by cell, so that most groups are contiguous.
        rows = as_slice(members)
        is_slice = isinstance(rows, slice)
        self.index: Any = (rows, rows) if is_slice else np.ix_(members, members)

    def covary(self, term: FittedTerm) -> Floats:
        """Return the covariance of the inputs."""
        points = scale_points(self._points, term.length_scales)
        kernel, _ = matern52_with_gradient(points, self._workspace)
        return np.asarray(kernel * self._factor(term))

    def gradient(self, term: FittedTerm, by_block: Floats) -> tuple[float, float, Floats]:
        """Return derivatives by both variances and by the logarithms of the length scales."""
        kernel, derivative = self._workspace
        points = scale_points(self._points, term.length_scales)
        weighted = by_block * kernel
        shared = float(weighted.sum())
        regime = float(np.vdot(weighted, self._same_regime))
        weighted = np.multiply(by_block, derivative, out=weighted)
        weighted *= self._factor(term)
        scales = weighted.sum(axis=1) @ points**2
        scales = scales - np.einsum("ij,ij->j", points, weighted @ points)
        return shared, regime, scales

    def _factor(self, term: FittedTerm) -> Floats:
        """Return the variance by which each pair's kernel is multiplied."""
        return np.asarray(term.shared_sd**2 + term.regime_sd**2 * self._same_regime)


def _sandwich(weights: Any, matrix: Floats) -> Floats:
    """Return weights · matrix · weightsᵀ of a symmetric matrix."""
    half = weights @ matrix
    return np.asarray(weights @ np.ascontiguousarray(half.T))


# Of fewer observations each one counts, and what looks like an outlier may be the subject.
_FEWEST_ROWS = 1000
# An outlier is off by this factor and by so many standard deviations.
_FACTOR, _SDS = 2.5, 3.5


def discount_outliers(fitted: FittedLogSums) -> LogObservations | None:
    """Return the observations with larger variances for outliers; None if there are none.

    The largest outlier is discounted first: its neighbours may look like some only beside it.

    All observations have to be linearised around their joint posterior.
    """
    size = fitted.observations.size
    if size < _FEWEST_ROWS or fitted.row_weights is None:
        return None
    posterior = condition_logsums(fitted)
    inverse = matmul(posterior.inverse_factor.T, posterior.inverse_factor)
    weights, added = posterior.row_weights.copy(), np.zeros(size)
    while (worst := _find_worst(weights, np.diag(inverse))) is not None:
        column = inverse[worst].copy()
        variance = float(weights[worst] / column[worst]) ** 2
        added[worst] += variance
        # Sherman and Morrison: one more variance on the diagonal of C.
        share = variance / (1.0 + variance * column[worst])
        weights -= share * weights[worst] * column
        inverse -= share * np.outer(column, column)
    if not added.any():
        return None
    return replace(fitted.observations, log_variance=fitted.observations.log_variance + added)


def _find_worst(weights: Floats, precision: Floats) -> int | None:
    """Return the outlier with the most standard deviations, by C⁻¹·r and the diagonal of C⁻¹."""
    residual, deviations = np.abs(weights / precision), np.abs(weights) / np.sqrt(precision)
    deviations = np.where(residual > np.log(_FACTOR), deviations, 0.0)
    worst = int(np.argmax(deviations))
    return worst if deviations[worst] > _SDS else None
