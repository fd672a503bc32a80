"""Interpolate estimates over a search space, so that thousands of candidates take a moment.

    x      coordinates of a candidate: logarithms of its sizes, how these fill the tiles of matrix
           units, and its choices
    y      logarithms of energy, uncertainty, duration, parameters and FLOPs, and the unseen share
    y(x)   ~ GP(linear trend, Matern 5/2) + N(0, nugget)

The process is conditioned on exact estimates of a few hundred candidates. Its leave-one-out error
is added to the uncertainty of what it interpolates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from joulecast.families import FAMILIES
from joulecast.gp.kernels import matern52, scale_points
from joulecast.gp.linalg import Floats, cholesky_with_inverse, factorise_covariance, matmul
from joulecast.gp.lognormal import interval_log_sd, normal_quantile, probability_below
from joulecast.records import Estimate
from joulecast.uses.search.dimensions import Value, list_bounds
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate
from joulecast.uses.search.search_space import SETUP_NAMES, Params, SearchSpace

# Channels that matrix units process at once, about, and numbers that they read at once.
_TILE, _ALIGNED_ROW = 16, 8
# Length scales of sizes and of what follows from tiles and choices, and nuggets, to choose from.
_SIZE_SCALES, _OTHER_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0), (2.0, 4.0, 8.0, 16.0, 32.0)
_NUGGETS = (1e-5, 1e-4, 1e-3)
# Prior variance of the linear trend, in units of the kernel's variance.
_TREND_VARIANCE = 4.0
# Candidates whose covariances with the learnt ones are held at once.
_CHUNK = 1024
# Standard deviations below this are alike.
_LEAST_SD = 1e-6


@dataclass(frozen=True)
class EstimateInterpolator:
    """A process over the candidates of a space, conditioned on some of them.

    Attributes:
        screener: The space and the budget.
        learnt: The candidates that were estimated exactly.
        points: Their coordinates.
        weights: What each of them adds to each interpolated value.
        means: Means of these values.
        log_error_sd: Standard deviation of the logarithm of an interpolated energy.
    """

    screener: BudgetScreener
    learnt: tuple[ScreenedCandidate, ...]
    coordinates: Coordinates
    points: Floats
    length_scales: Floats
    weights: Floats
    means: Floats
    log_error_sd: float

    def screen(self, candidates: Sequence[Params]) -> list[ScreenedCandidate]:
        """Return candidates with interpolated estimates."""
        found: list[ScreenedCandidate] = []
        for start in range(0, len(candidates), _CHUNK):
            found += self._screen_chunk(candidates[start : start + _CHUNK])
        return found

    def _screen_chunk(self, candidates: Sequence[Params]) -> list[ScreenedCandidate]:
        screener, points = self.screener, self.coordinates.find(candidates)
        values = self.means + matmul(
            _find_covariance(points, self.points, self.length_scales), self.weights
        )
        energy_j, energy_sd, budget_sd, duration_s, parameters, flops = np.exp(values[:, :-1].T)
        factor = np.exp(normal_quantile(screener.level) * np.hypot(energy_sd, self.log_error_sd))
        steps = list(map(screener.count_steps, candidates))
        limits_j = np.array(list(map(screener.compute_step_limit_j, steps)))
        variance = budget_sd**2 + self.log_error_sd**2
        probability = probability_below(np.log(limits_j / energy_j), variance)
        unseen = np.clip(values[:, -1], 0.0, 1.0)
        cost = energy_j, energy_j / factor, energy_j * factor, duration_s, unseen
        rows = np.column_stack([*cost, probability, np.rint(parameters), flops]).tolist()
        make = partial(_make_candidate, screener, self.learnt[0].estimate)
        return list(map(make, candidates, steps, rows))


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of candidates.

    Attributes:
        sizes: Names of numeric dimensions that change an estimate.
        tiled: Those of them that exceed a tile.
        choices: Names of the other dimensions, with their values.
    """

    sizes: tuple[str, ...]
    tiled: tuple[str, ...]
    choices: tuple[tuple[str, tuple[Value, ...]], ...]

    @classmethod
    def of(cls, space: SearchSpace) -> Coordinates:
        """Return the coordinates of a space."""
        names = (*FAMILIES[space.family.partition(":")[0]].params, *SETUP_NAMES)
        bounds = {
            name: list_bounds(dimension)
            for name, dimension in space.dimensions.items()
            if name in names and len(set(list_bounds(dimension))) > 1
        }
        choices = {
            name: values
            for name, values in bounds.items()
            if any(isinstance(one, str) for one in values)
        }
        sizes = tuple(name for name in bounds if name not in choices)
        tiled = tuple(name for name in sizes if max(map(float, bounds[name])) > _TILE)
        return cls(sizes, tiled, tuple(choices.items()))

    @property
    def is_size(self) -> list[bool]:
        """Whether each coordinate is a size, rather than what follows from tiles or a choice."""
        others = 2 * len(self.tiled) + sum(len(values) for _, values in self.choices)
        return [True] * len(self.sizes) + [False] * others

    def find(self, candidates: Sequence[Params]) -> Floats:
        """Return the coordinates of candidates, a row each."""
        sizes, tiled = (_list_sizes(candidates, names) for names in (self.sizes, self.tiled))
        aligned = np.log2(np.gcd(tiled.astype(np.int64), _ALIGNED_ROW))
        padding = np.log(_TILE * np.ceil(tiled / _TILE) / tiled)
        chosen = [
            [float(params[name] == value) for params in candidates]
            for name, values in self.choices
            for value in values
        ]
        columns = [np.log(sizes), aligned, padding, np.array(chosen).reshape(-1, len(candidates)).T]
        return np.column_stack(columns)


def fit_interpolator(
    screener: BudgetScreener, candidates: Sequence[Params]
) -> EstimateInterpolator:
    """Estimate some candidates exactly, and return what interpolates all others."""
    learnt, budget_variance = screener.screen_with_variances(candidates)
    coordinates = Coordinates.of(screener.space)
    points = coordinates.find(candidates)
    values = np.array(list(map(_list_values, learnt, budget_variance.tolist())))
    means = values.mean(axis=0)
    length_scales, nugget = _choose_scales(points, values[:, 0] - means[0], coordinates.is_size)
    cov = _find_covariance(points, points, length_scales) + nugget * np.eye(len(points))
    inverse = cholesky_with_inverse(cov)[1]
    precision = matmul(np.ascontiguousarray(inverse.T), inverse)
    weights = matmul(precision, values - means)
    left_out = weights[:, 0] / np.diag(precision)
    error_sd = float(np.sqrt(np.mean(left_out**2)))
    return EstimateInterpolator(
        screener, learnt, coordinates, points, length_scales, weights, means, error_sd
    )


def _list_values(candidate: ScreenedCandidate, budget_variance: float) -> tuple[float, ...]:
    """Return what is interpolated: logarithms, and the unseen share as it is."""
    estimate = candidate.estimate
    energy_sd = interval_log_sd(estimate.energy_j, estimate.interval_j, estimate.level)
    budget_sd = float(np.sqrt(budget_variance))
    positive = (
        estimate.energy_j,
        energy_sd + _LEAST_SD,
        budget_sd + _LEAST_SD,
        estimate.duration_s,
        float(max(candidate.parameters, 1)),
        max(candidate.flops, 1.0),
    )
    return (*np.log(positive).tolist(), estimate.unseen_share)


def _make_candidate(
    screener: BudgetScreener, origin: Estimate, params: Params, steps: int, row: list[float]
) -> ScreenedCandidate:
    """Return a candidate with interpolated numbers; what they rest on is that of an exact one."""
    energy_j, low_j, high_j, duration_s, unseen_share, probability, parameters, flops = row
    estimate = Estimate(
        energy_j,
        (low_j, high_j),
        screener.level,
        duration_s,
        0,
        (),
        unseen_share,
        origin.provenance,
        origin.covers,
        origin.device,
        origin.estimator,
        device_memory_bytes=origin.device_memory_bytes,
        runtime=origin.runtime,
    )
    is_within = probability >= screener.confidence
    return ScreenedCandidate(
        params,
        screener.space,
        estimate,
        steps,
        probability,
        is_within,
        int(parameters),
        flops,
        is_interpolated=True,
    )


def _list_sizes(candidates: Sequence[Params], names: Sequence[str]) -> Floats:
    rows = [[params[name] for name in names] for params in candidates]
    return np.array(rows, float).reshape(len(candidates), len(names))


def _find_covariance(left: Floats, right: Floats, length_scales: Floats) -> Floats:
    """Return the prior covariance between candidates, trend included."""
    one, two = scale_points(left, length_scales), scale_points(right, length_scales)
    squares = (one**2).sum(axis=1)[:, None] + (two**2).sum(axis=1)
    trend = 1.0 + matmul(left, np.ascontiguousarray(right.T))
    squares -= 2.0 * matmul(one, np.ascontiguousarray(two.T))
    return np.asarray(matern52(squares) + _TREND_VARIANCE * trend)


def _choose_scales(
    points: Floats, residuals: Floats, is_size: Sequence[bool]
) -> tuple[Floats, float]:
    """Return length scales and nugget of the largest marginal likelihood."""
    best, least = (np.ones(len(is_size)), _NUGGETS[0]), np.inf
    for size, other in product(_SIZE_SCALES, _OTHER_SCALES):
        length_scales = np.where(is_size, size, other)
        cov = _find_covariance(points, points, length_scales)
        for nugget in _NUGGETS:
            factor = factorise_covariance(cov + nugget * np.eye(len(points)))
            whitened = np.linalg.solve(factor, residuals)
            scale = float(whitened @ whitened) / len(residuals)
            loss = 0.5 * len(residuals) * np.log(scale) + float(np.log(np.diag(factor)).sum())
            if loss < least:
                best, least = (length_scales, nugget), loss
    return best
