"""Fit the cost of kernels as a linear function of their work: the mean of regressions.

cost ≈ a·FLOPs + b·bytes + c·depth + d     all ≥ 0, by least squares of relative errors
depth = FLOPs of one output element
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.base import Floats, fit_work_rates
from joulecast.fusion import FusedKernel
from joulecast.kinds import output_shape
from joulecast.records.codec import Record

# Without any error to learn from, a linear function of work is off by about this much.
_UNKNOWN_LOG_SD = 0.5
_LEAST_LOG_SD = 0.2


@dataclass(frozen=True)
class WorkMean(Record):
    """Cost per FLOP, per byte, per FLOP of an output element and per kernel.

    Attributes:
        rates: a, b, c and d.
        log_sd: Standard deviation of the logarithm of a cost around it.
        count: Number of costs that it was fitted to.
    """

    rates: tuple[float, ...]
    log_sd: float
    count: int

    def log_costs(self, kernels: Sequence[FusedKernel]) -> Floats:
        """Return the logarithm of the cost of each kernel."""
        return np.asarray(np.log(np.maximum(count_kernels(kernels) @ np.array(self.rates), 1e-30)))


def count_kernels(kernels: Sequence[FusedKernel]) -> Floats:
    """Return FLOPs, bytes, depth and 1 for each kernel."""
    return np.array([[one.flops, one.size_bytes, find_depth(one), 1.0] for one in kernels])


def find_depth(kernel: FusedKernel) -> float:
    """Return the FLOPs of one output element of a kernel."""
    outputs = kernel.batch * math.prod(output_shape(kernel.network.layers[-1]))
    return kernel.flops / max(1, outputs)


def fit_work_mean(groups: Sequence[Sequence[FusedKernel]], costs: Floats) -> WorkMean:
    """Fit the costs of groups of kernels that ran together, each by its count."""
    work = np.array([_count_group(group) for group in groups])
    rates, error_share = fit_work_rates(work, costs, costs)
    freedom = len(costs) - int((rates > 0).sum())
    log_sd = _UNKNOWN_LOG_SD
    if freedom > 0:
        log_sd = max(_LEAST_LOG_SD, error_share * (len(costs) / freedom) ** 0.5)
    return WorkMean(tuple(rates.tolist()), log_sd, len(costs))


def _count_group(group: Sequence[FusedKernel]) -> Floats:
    counts = np.array([one.count for one in group], float)
    return np.asarray(counts @ count_kernels(group))
