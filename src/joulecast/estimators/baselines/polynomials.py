"""Sparse polynomial regression: of many candidate terms, the Lasso keeps the few that predict.

    ŷ = c0 + Σ_j c_j · Π_i x_i^q_ij + Σ_s c'_s · F_s       Σ_i q_ij ≤ degree

    x   ordinary columns: sizes, or sizes and their logarithms
    F   special columns, which are in no product: FLOPs and bytes

Ten-fold cross-validation chooses the degree and the penalty from a Lasso path for each degree. The
terms that the Lasso keeps are refitted by least squares, in cross-validation too, because the
Lasso's own coefficients are shrunk. Squares are relative, so that layers of all sizes count alike.

scikit-learn is needed for fitting only.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record

Powers = NDArray[np.int64]

# With fewer points there is nothing to choose terms by: special columns alone, never negative.
MIN_POINTS = 10
_FOLDS = 10
_PENALTIES = np.logspace(0, -5, 40)
# Columns that differ by less are equal, or constant.
_MIN_DIFFERENCE = 1e-9
# No value weighs more than one of this share of the largest value.
_MIN_VALUE_SHARE = 0.05


@dataclass(frozen=True)
class Polynomial(Record):
    """The terms that were kept.

    Attributes:
        columns: Number of columns.
        powers: For each term the power of each column.
        weights: Coefficient of each term.
        offset: The constant.
    """

    columns: int
    powers: tuple[tuple[int, ...], ...]
    weights: Floats
    offset: float

    def predict(self, columns: Floats) -> Floats:
        """Return the values at some rows of columns."""
        powers = np.array(self.powers, dtype=np.int64).reshape(-1, self.columns)
        values: Floats = self.offset + _make_terms(columns, powers) @ self.weights
        return values


def fit_polynomial(
    columns: Floats, values: Floats, special: int, degree: int
) -> tuple[Polynomial, Floats]:
    """Return a polynomial, and the cross-validated prediction of each of its points.

    Args:
        columns: One row per point, scaled to about 1; the last ``special`` columns are special.
        values: What to predict, positive.
        special: Number of special columns.
        degree: Highest degree to try.
    """
    weights = np.maximum(values, _MIN_VALUE_SHARE * values.max()) ** -2.0
    if len(values) < MIN_POINTS:
        return _fit_special(columns, values, weights, special), values
    with _fast_sklearn():
        candidates = []
        for most in range(1, degree + 1):
            powers = _list_powers(columns.shape[1], special, most)
            powers, terms = _drop_equal(powers, _make_terms(columns, powers))
            path = _follow_path(terms, values, weights)
            penalty, predictions = _choose_penalty(path, terms, values, weights)
            error = float(weights @ (predictions - values) ** 2)
            candidates.append((error, most, powers, path, penalty, predictions))
    _, _, powers, path, penalty, predictions = min(candidates, key=lambda one: one[:2])
    (step,) = path.find_steps(np.array([penalty]))
    active, coefficients, offset = path.solve(int(step))
    return _make_polynomial(powers[active], coefficients, offset), predictions


@dataclass(frozen=True)
class _LassoPath:
    """A Lasso path over standardised terms.

    Attributes:
        mean: Mean of each term.
        scale: Standard deviation of each term.
        value_mean: Mean of the values.
        terms: Standardised terms, one row per point, times the root of its weight.
        targets: The values less their mean, times the root of the weight.
        penalties: The penalties of the path's steps, the largest first.
        active: The terms with non-zero coefficients at each step.
    """

    mean: Floats
    scale: Floats
    value_mean: float
    terms: Floats
    targets: Floats
    penalties: Floats
    active: tuple[list[int], ...]

    def find_steps(self, penalties: Floats) -> NDArray[np.intp]:
        """Return the step of the path at each penalty."""
        return np.minimum(np.searchsorted(-self.penalties, -penalties), len(self.active) - 1)

    def solve(self, step: int) -> tuple[list[int], Floats, float]:
        """Return the terms of a step, their least-squares weights, and the constant."""
        active = self.active[step]
        found = np.linalg.lstsq(self.terms[:, active], self.targets, rcond=_MIN_DIFFERENCE)[0]
        weights: Floats = found / self.scale[active]
        return active, weights, float(self.value_mean - weights @ self.mean[active])

    def predict(self, penalties: Floats, terms: Floats) -> Floats:
        """Return the predictions at each penalty for some rows of terms."""
        steps, back = np.unique(self.find_steps(penalties), return_inverse=True)
        rows = np.empty((len(steps), len(terms)))
        for at, step in enumerate(steps.tolist()):
            active, weights, offset = self.solve(step)
            rows[at] = offset + terms[:, active] @ weights
        return np.asarray(rows[back])


def _choose_penalty(
    path: _LassoPath, terms: Floats, values: Floats, weights: Floats
) -> tuple[float, Floats]:
    """Return the penalty with the least cross-validation error, and its predictions."""
    count = len(values)
    penalties = _PENALTIES * path.penalties[0]
    predictions = np.empty((len(penalties), count))
    for fold in range(min(_FOLDS, count)):
        left_out = np.arange(count) % _FOLDS == fold
        others = ~left_out
        fold_path = _follow_path(terms[others], values[others], weights[others])
        predictions[:, left_out] = fold_path.predict(penalties, terms[left_out])
    errors = (predictions - values) ** 2 @ weights
    best = int(np.argmin(errors))
    return float(penalties[best]), predictions[best]


def _follow_path(terms: Floats, values: Floats, weights: Floats) -> _LassoPath:
    total = weights.sum()
    mean, value_mean = weights @ terms / total, float(weights @ values / total)
    scale = np.sqrt(weights @ (terms - mean) ** 2 / total)
    # A term that is constant among these points explains nothing.
    scale = np.where(scale > _MIN_DIFFERENCE, scale, np.inf)
    roots = np.sqrt(weights / weights.mean())
    rows, targets = (terms - mean) / scale * roots[:, None], (values - value_mean) * roots
    penalties, found = _run_lasso(rows, targets)
    active = tuple(np.flatnonzero(column).tolist() for column in found.T)
    return _LassoPath(mean, scale, value_mean, rows, targets, penalties, active)


def _run_lasso(rows: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return penalties, the largest first, and the coefficients of all terms at each."""
    from sklearn.linear_model import lars_path

    if not rows.shape[1]:
        return np.zeros(1), np.zeros((0, 1))
    penalties, _, found = lars_path(rows, targets, method="lasso", max_iter=len(targets) - 1)
    return penalties, found


@contextmanager
def _fast_sklearn() -> Iterator[None]:
    """Skip scikit-learn's checks, half the time of a short path, and its warnings.

    It warns of terms that explain nothing more, and leaves them out.
    """
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning

    with (
        config_context(assume_finite=True, skip_parameter_validation=True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _fit_special(columns: Floats, values: Floats, weights: Floats, special: int) -> Polynomial:
    """Fit a constant and the special columns, with weights that are never negative."""
    from scipy.optimize import nnls

    count, roots = columns.shape[1], np.sqrt(weights)
    rows = np.hstack([np.ones((len(values), 1)), columns[:, count - special :]])
    found, _ = nnls(rows * roots[:, None], values * roots)
    return _make_polynomial(np.eye(count, dtype=np.int64)[count - special :], found[1:], found[0])


def _make_polynomial(powers: Powers, weights: Floats, offset: float) -> Polynomial:
    rows = tuple(map(tuple, powers.tolist()))
    return Polynomial(powers.shape[1], rows, np.asarray(weights), float(offset))


def _list_powers(columns: int, special: int, degree: int) -> Powers:
    """Return one row per term: products of ordinary columns, then the special columns."""
    rows = []
    for size in range(1, degree + 1):
        for chosen in itertools.combinations_with_replacement(range(columns - special), size):
            rows.append(np.bincount(chosen, minlength=columns))
    rows += list(np.eye(columns, dtype=np.int64)[columns - special :])
    return np.array(rows, dtype=np.int64).reshape(-1, columns)


def _make_terms(columns: Floats, powers: Powers) -> Floats:
    terms: Floats = np.prod(columns[:, None, :] ** powers[None, :, :], axis=2)
    return terms


def _drop_equal(powers: Powers, terms: Floats) -> tuple[Powers, Floats]:
    """Return the terms without those that equal another one up to scale, or are constant."""
    spread = np.ptp(terms, axis=0)
    shapes = (terms - terms.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    _, first = np.unique(shapes.round(9), axis=1, return_index=True)
    keep = sorted(int(at) for at in first if spread[at] > _MIN_DIFFERENCE)
    return powers[keep], terms[:, keep]
