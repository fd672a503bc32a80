"""Sparse polynomial regression: many terms are offered, the Lasso keeps the few that predict.

    ŷ = c0 + Σ_j c_j · Π_i x_i^q_ij + Σ_s c'_s · F_s       Σ_i q_ij ≤ degree

    x   ordinary columns: sizes, or sizes and their logarithms
    F   special columns, which stand by themselves: FLOPs and bytes

For each degree a Lasso path is followed; ten-fold cross-validation chooses degree and penalty. What
the Lasso kept is then fitted by least squares, in cross-validation too: its own coefficients are
drawn towards zero. Squares are relative: layers of any size count alike.

scikit-learn is needed for fitting alone; a Polynomial is plain numbers.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]
Floats = NDArray[np.float64]
Powers = NDArray[np.int64]

_FOLDS = 10
# With fewer points there is nothing to choose terms by: special columns alone, never negative.
LEAST_POINTS = 10
_PENALTIES = np.logspace(0, -5, 40)
# Columns that differ by less carry the same information twice, or none.
_ALIKE = 1e-9
# No value counts as if it were smaller than this share of the largest one.
_LIGHT_SHARE = 0.05


@dataclass(frozen=True)
class Polynomial:
    """The terms that were kept: powers of the columns, their weights, and the constant."""

    powers: Powers
    weights: Floats
    offset: float

    def predict(self, columns: Floats) -> Floats:
        """Values at some rows of columns."""
        values: Floats = self.offset + _make_terms(columns, self.powers) @ self.weights
        return values

    def to_dict(self) -> Json:
        return {
            "columns": self.powers.shape[1],
            "powers": self.powers.tolist(),
            "weights": self.weights.tolist(),
            "offset": self.offset,
        }

    @classmethod
    def from_dict(cls, data: Json) -> Polynomial:
        powers = np.array(data["powers"], dtype=np.int64).reshape(-1, data["columns"])
        return cls(powers, np.array(data["weights"], dtype=float), data["offset"])


@dataclass(frozen=True)
class _Path:
    """A Lasso path over standardised terms.

    Attributes:
        mean: Of each term; ``scale`` its deviation; ``level`` the mean of the values.
        terms: Standardised terms, one row for each point, times the root of its weight.
        aims: The values less their mean, likewise.
        penalties: From the largest on; ``kept`` the terms that are left at each.
    """

    mean: Floats
    scale: Floats
    level: float
    terms: Floats
    aims: Floats
    penalties: Floats
    kept: tuple[list[int], ...]

    def find_step(self, penalty: float) -> int:
        """Where on the path a penalty lies."""
        return min(int(np.searchsorted(-self.penalties, -penalty)), len(self.kept) - 1)

    def solve(self, step: int) -> tuple[list[int], Floats, float]:
        """Terms kept at a step, their weights by least squares, and the constant."""
        kept = self.kept[step]
        found = np.linalg.lstsq(self.terms[:, kept], self.aims, rcond=_ALIKE)[0]
        weights: Floats = found / self.scale[kept]
        return kept, weights, float(self.level - weights @ self.mean[kept])


def fit_polynomial(
    columns: Floats, values: Floats, special: int, degree: int
) -> tuple[Polynomial, Floats]:
    """A polynomial, and what cross-validation predicted for each of its points.

    Args:
        columns: One row for each point, scaled to about 1; the ``special`` last ones stand alone.
        values: What to predict, positive.
        special: How many columns are special.
        degree: The highest degree to try.
    """
    weights = np.maximum(values, _LIGHT_SHARE * values.max()) ** -2.0
    if len(values) < LEAST_POINTS:
        return _fit_few(columns, values, weights, special), values
    tries = []
    for most in range(1, degree + 1):
        powers = _list_powers(columns.shape[1], special, most)
        powers, terms = _drop_alike(powers, _make_terms(columns, powers))
        penalty, guesses = _choose_penalty(terms, values, weights)
        error = float(weights @ (guesses - values) ** 2)
        tries.append((error, most, powers, terms, penalty, guesses))
    _, _, powers, terms, penalty, guesses = min(tries, key=lambda one: one[:2])
    path = _follow_path(terms, values, weights)
    kept, found, offset = path.solve(path.find_step(penalty))
    return Polynomial(powers[kept], found, offset), guesses


def _fit_few(columns: Floats, values: Floats, weights: Floats, special: int) -> Polynomial:
    """A constant and the special columns, with weights that are never negative."""
    from scipy.optimize import nnls

    roots = np.sqrt(weights)
    rows = np.hstack([np.ones((len(values), 1)), columns[:, columns.shape[1] - special :]])
    found, _ = nnls(rows * roots[:, None], values * roots)
    powers = np.eye(columns.shape[1], dtype=np.int64)[columns.shape[1] - special :]
    return Polynomial(powers, found[1:], float(found[0]))


def _choose_penalty(terms: Floats, values: Floats, weights: Floats) -> tuple[float, Floats]:
    """The penalty that predicts best what was left out, and what it predicted."""
    count = len(values)
    penalties = _PENALTIES * _follow_path(terms, values, weights).penalties[0]
    guesses = np.empty((len(penalties), count))
    for fold in range(min(_FOLDS, count)):
        left = np.arange(count) % _FOLDS == fold
        path = _follow_path(terms[~left], values[~left], weights[~left])
        guesses[:, left] = _guess_all(path, penalties, terms[left])
    errors = (guesses - values) ** 2 @ weights
    best = int(np.argmin(errors))
    return float(penalties[best]), guesses[best]


def _guess_all(path: _Path, penalties: Floats, terms: Floats) -> Floats:
    """What each penalty predicts."""
    steps = [path.find_step(float(penalty)) for penalty in penalties]
    solved = {step: path.solve(step) for step in set(steps)}
    rows = {step: offset + terms[:, kept] @ w for step, (kept, w, offset) in solved.items()}
    return np.array([rows[step] for step in steps])


def _follow_path(terms: Floats, values: Floats, weights: Floats) -> _Path:
    mean, level = weights @ terms / weights.sum(), float(weights @ values / weights.sum())
    scale = np.sqrt(weights @ (terms - mean) ** 2 / weights.sum())
    scale = np.where(scale > _ALIKE, scale, np.inf)  # constant here: of no use
    roots = np.sqrt(weights / weights.mean())
    rows, aims = (terms - mean) / scale * roots[:, None], (values - level) * roots
    penalties, found = _run_lasso(rows, aims)
    kept = tuple(np.flatnonzero(column).tolist() for column in found.T)
    return _Path(mean, scale, level, rows, aims, penalties, kept)


def _run_lasso(rows: Floats, aims: Floats) -> tuple[Floats, Floats]:
    """Penalties from the largest on, and the coefficients of all terms at each."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import lars_path

    if not rows.shape[1]:
        return np.zeros(1), np.zeros((rows.shape[1], 1))
    with warnings.catch_warnings():
        # Terms that explain nothing more are left out, and say so.
        warnings.simplefilter("ignore", ConvergenceWarning)
        penalties, _, found = lars_path(rows, aims, method="lasso", max_iter=len(aims) - 1)
    return penalties, found


def _list_powers(columns: int, special: int, degree: int) -> Powers:
    """One row for each term: products of ordinary columns, then the special ones."""
    rows = []
    for size in range(1, degree + 1):
        for chosen in itertools.combinations_with_replacement(range(columns - special), size):
            rows.append(np.bincount(chosen, minlength=columns))
    rows += list(np.eye(columns, dtype=np.int64)[columns - special :])
    return np.array(rows, dtype=np.int64).reshape(-1, columns)


def _make_terms(columns: Floats, powers: Powers) -> Floats:
    terms: Floats = np.prod(columns[:, None, :] ** powers[None, :, :], axis=2)
    return terms


def _drop_alike(powers: Powers, terms: Floats) -> tuple[Powers, Floats]:
    """Terms without those that say what another one says, or nothing."""
    spread = np.ptp(terms, axis=0)
    shapes = (terms - terms.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    _, first = np.unique(shapes.round(9), axis=1, return_index=True)
    keep = sorted(int(at) for at in first if spread[at] > _ALIKE)
    return powers[keep], terms[:, keep]
