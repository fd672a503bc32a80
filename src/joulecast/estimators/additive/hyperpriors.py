"""Priors of the hyper-parameters of the duration and energy processes.

Coefficients have log-normal priors by shares: the median of each is what it would be if its basis
function explained that share of a typical observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.gp.hyperparameters import HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.linalg import Floats


@dataclass(frozen=True)
class ProcessPrior:
    """Prior assumptions about a process.

    Attributes:
        basis_shares: Share of an observation that each basis function explains: FLOPs, then the
            others.
        sd_medians: Prior medians of the relative standard deviations: residuals within a label,
            residuals shared by all labels, nugget, noise.
        sd_log_sds: Standard deviations of the logarithms of these standard deviations.
        label_offset_sd: Relative standard deviation of a label's offset.
    """

    basis_shares: tuple[float, ...]
    sd_medians: tuple[float, float, float, float]
    sd_log_sds: tuple[float, float, float, float]
    label_offset_sd: float


DURATION_PRIOR = ProcessPrior(
    basis_shares=(0.35, 0.35, 0.2),
    sd_medians=(0.30, 0.1, 0.10, 0.004),
    sd_log_sds=(0.5, 0.5, 0.25, 0.2),
    label_offset_sd=0.5,
)
ENERGY_PRIOR = ProcessPrior(
    basis_shares=(0.25, 0.35, 0.30, 0.30),
    sd_medians=(0.10, 0.10, 0.03, 0.01),
    sd_log_sds=(0.5, 0.5, 0.5, 0.2),
    label_offset_sd=0.2,
)
# How an imported log was metered is unknown: its noise is fitted, and may be large. Energy meters
# are noisier than clocks, so that durations tell more about a layer.
IMPORTED_DURATION_PRIOR = replace(
    DURATION_PRIOR, sd_medians=(0.30, 0.1, 0.10, 0.01), sd_log_sds=(0.5, 0.5, 0.25, 1.0)
)
IMPORTED_ENERGY_PRIOR = replace(
    ENERGY_PRIOR,
    basis_shares=(0.10, 0.20, 0.60, 0.60),
    sd_medians=(0.10, 0.10, 0.03, 0.05),
    sd_log_sds=(0.5, 0.5, 0.5, 0.5),
)
_SHARE_LOG_SD = 1.0
_OVERHEAD_SHARE = 0.1
# Power of the busy device over that of the idle one.
_BUSY_FACTOR, _BUSY_LOG_SD = 3.0, 0.6
_LENGTH_SCALE, _SHARED_LENGTH_SCALE, _LENGTH_SCALE_LOG_SD = 1.5, 1.0, 0.5


def choose_priors(
    decomposed: Sequence[DecomposedObservation],
) -> tuple[ProcessPrior, ProcessPrior]:
    """Return the priors of duration and energy: wider ones if all observations are imported."""
    if all(one.is_imported for one in decomposed):
        return IMPORTED_DURATION_PRIOR, IMPORTED_ENERGY_PRIOR
    return DURATION_PRIOR, ENERGY_PRIOR


def make_hyperprior(
    inputs: Inputs,
    data: TrainingData,
    prior: ProcessPrior,
    overhead_count: int = 0,
    idle_w: float = 0.0,
) -> HyperPrior:
    """Return the prior of all hyper-parameters of a process.

    Args:
        inputs: Pieces as arrays.
        data: Their observed sums.
        prior: Prior assumptions about the process.
        overhead_count: Number of sources that have an overhead.
        idle_w: Power of the idle device, for energies: it sets the prior of a second's energy.
    """
    totals = data.counts @ inputs.basis
    flops_share, *other_shares = prior.basis_shares
    flop_classes = totals.shape[1] - len(other_shares) - overhead_count
    shares = [flops_share] * flop_classes + other_shares + [_OVERHEAD_SHARE] * overhead_count
    medians = np.array([_fit_alone(column, data.values) for column in totals.T]) * shares
    log_sds = [_SHARE_LOG_SD] * len(medians)
    if idle_w:
        busy = flop_classes + len(other_shares) - 1
        medians[busy], log_sds[busy] = _BUSY_FACTOR * idle_w, _BUSY_LOG_SD
    # A FLOP class without observations is taken to cost as the others do.
    medians = np.where(medians > 0, medians, medians[:flop_classes].max(initial=1e-30))
    scales = [_LENGTH_SCALE] * inputs.points.shape[1]
    scales += [_SHARED_LENGTH_SCALE] * inputs.shared_points.shape[1]
    log_sds = [*log_sds, *prior.sd_log_sds, *([_LENGTH_SCALE_LOG_SD] * len(scales))]
    return HyperPrior(
        np.array([*medians, *prior.sd_medians, *scales]), np.array(log_sds), prior.label_offset_sd
    )


def _fit_alone(column: Floats, values: Floats) -> float:
    """Return the coefficient of a basis function fitted alone, as a geometric mean."""
    used = column > 0
    return float(np.exp(np.log(values[used] / column[used]).mean())) if used.any() else 0.0
