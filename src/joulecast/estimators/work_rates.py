"""Fit a rough cost per FLOP, byte and launch, for layers without measurements of their own.

y ≈ a·FLOPs + b·bytes + c·launches      a, b, c ≥ 0
"""

from __future__ import annotations

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.kinds import Work


def count_work(work: Work) -> Floats:
    """Return FLOPs, bytes and launches."""
    return np.array([work.flops, work.size_bytes, float(work.launches)])


def fit_work_rates(work: Floats, costs: Floats, scales: Floats) -> tuple[Floats, float]:
    """Fit rates that minimise the sum of squares of (cost - work·rates) / scale.

    Args:
        work: FLOPs, bytes and launches, n x 3.
        costs: Energies or durations, n.
        scales: What the error of each cost is relative to, n.

    Returns:
        The rates, and the root mean square of the relative errors.
    """
    from scipy.optimize import nnls

    rows, targets = work / scales[:, None], costs / scales
    # FLOPs and launches differ by twelve orders of magnitude: unscaled, nnls stops too early.
    units = np.maximum(rows.max(axis=0), 1e-300)
    rates, _ = nnls(rows / units, targets)
    error_share = float(np.sqrt(np.mean((rows / units @ rates - targets) ** 2)))
    return np.asarray(rates / units), error_share
